"""One picture of many samples: a row for each prompt, with its text above, and a column for each sample.

Each caption is set in one installed font that has all its letters, the default font first. Pillow shapes and orders
them as their script asks for, where its build can (raqm).
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from grpokit.files import replacing
from grpokit.images import Drawable, to_rgb
from grpokit.types import Sample

SHEET = "contact_sheet.png"
_CELL, _GAP, _MARGIN = 192, 8, 16  # pixels
_WIDEST, _HIGHEST = 4000, 16_000  # of a sheet, in pixels; cells shrink to the width, and rows end at the height
_LINES = 4  # of a caption
_SIZE = 16  # of its letters


def contact_sheet(columns: Mapping[str, Sequence[Sample]], path: Path) -> list[str]:
    """Write a contact sheet as a PNG file, unless no sample is a picture.

    Args:
        columns: title -> samples, each prompt's next to each other, in the same order for every title. With several
            titles, such as before and after, they stand side by side.
        path: of the file.

    Returns:
        Warnings: what the sheet lacks.

    Raises:
        OSError: it cannot be written.
    """
    path.unlink(missing_ok=True)  # of earlier samples
    sides = [_by_prompt(samples) for samples in columns.values()]
    rows = [(own[0][0].prompt.text, own) for own in zip(*sides, strict=True)]
    pictures = [[[_picture(sample) for sample in side] for side in own] for _, own in rows]
    if not any(picture for row in pictures for side in row for picture in side):
        return []
    widths = [max(len(row[i]) for row in pictures) for i in range(len(columns))]
    room = _WIDEST - 2 * _MARGIN - _GAP * (sum(widths) + len(widths))
    cell = max(16, min(_CELL, room // sum(widths)))
    width = max(2 * _MARGIN + sum(widths) * (cell + _GAP) + _GAP * (len(widths) - 1), 2 * _CELL)
    strips: list[Image.Image] = [_titles(columns, widths, cell, width)] if len(columns) > 1 else []
    height, left_out = sum(strip.height for strip in strips), 0
    missing: set[str] = set()
    for (text, _), row in zip(rows, pictures, strict=True):
        strip, unknown = _strip(text, row, widths, cell, width)
        if height + strip.height > _HIGHEST:
            left_out += 1
            continue
        strips.append(strip)
        height += strip.height
        missing |= unknown
    sheet = Image.new("RGB", (width, height + _MARGIN), "white")
    top = 0
    for strip in strips:
        sheet.paste(strip, (0, top))
        top += strip.height
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG")
    warnings = []
    if missing:
        letters = "".join(sorted(missing)[:20])
        warnings.append(
            f"no installed font has all the letters of some captions in {path.name}: {letters}. Install one, such as "
            "Noto; samples.jsonl has the whole prompts"
        )
    if left_out:
        warnings.append(
            f"{path.name} has room for {len(rows) - left_out:,} of {len(rows):,} prompts; samples.jsonl lists all"
        )
    return warnings


def _by_prompt(samples: Sequence[Sample]) -> list[list[Sample]]:
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return list(groups.values())


def _picture(sample: Sample) -> Image.Image | None:
    if isinstance(sample.output, Image.Image):
        plain = sample.output.convert("L") if sample.output.mode in ("I", "F") else sample.output
        return to_rgb(plain)
    if isinstance(sample.output, Drawable):
        return to_rgb(Image.open(io.BytesIO(sample.output._repr_png_())))
    return None


def _strip(
    text: str, row: Sequence[Sequence[Image.Image | None]], widths: Sequence[int], cell: int, width: int
) -> tuple[Image.Image, set[str]]:
    """A prompt's caption and pictures, and the letters that no font has."""
    thumbnails = [[picture and _fit(picture, cell) for picture in side] for side in row]
    highest = max((t.height for side in thumbnails for t in side if t), default=0)
    letters = " ".join(text.split()) or "(no text)"
    font, unknown = _font(letters)
    lines = _wrapped(letters, font, width - 2 * _MARGIN)
    line_height = round(_SIZE * 1.4)
    caption = len(lines) * line_height + _GAP
    strip = Image.new("RGB", (width, _MARGIN + caption + highest + 2), "white")
    draw = ImageDraw.Draw(strip)
    for number, line in enumerate(lines):
        draw.text((_MARGIN, _MARGIN + number * line_height), line, fill="black", font=font)
    left = _MARGIN
    for side, count in zip(thumbnails, widths, strict=True):
        for place, thumbnail in enumerate(side):
            if thumbnail:
                x, y = left + place * (cell + _GAP), _MARGIN + caption
                strip.paste(thumbnail, (x, y))
                draw.rectangle((x - 1, y - 1, x + thumbnail.width, y + thumbnail.height), outline="#c8ccd2")
        left += count * (cell + _GAP) + _GAP
    return strip, unknown


def _titles(columns: Mapping[str, object], widths: Sequence[int], cell: int, width: int) -> Image.Image:
    strip = Image.new("RGB", (width, _MARGIN + 2 * _SIZE), "white")
    draw, left = ImageDraw.Draw(strip), _MARGIN
    for title, count in zip(columns, widths, strict=True):
        draw.text((left, _MARGIN), title, fill="#1a63bd", font=_font(title)[0])
        left += count * (cell + _GAP) + _GAP
    return strip


def _fit(picture: Image.Image, cell: int) -> Image.Image:
    """The picture in a cell: a large one made smaller, the pixels of a small one made larger."""
    longest = max(picture.size)
    if longest <= cell:
        factor = cell // longest
        return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    width, height = (max(1, round(side * cell / longest)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """The text in lines, broken at spaces, or anywhere in a word that is longer than a line."""
    lines: list[str] = []
    rest = text
    while rest and len(lines) < _LINES:
        end = _fitting(rest, font, width)
        if end < len(rest):
            space = rest.rfind(" ", 1, end + 1)
            end = space if space > 0 else end
        lines.append(rest[:end].strip())
        rest = rest[end:].strip()
    if rest:
        lines[-1] = f"{lines[-1][: _fitting(lines[-1], font, width - 2 * _SIZE)]} …"
    return lines


def _fitting(text: str, font: ImageFont.FreeTypeFont, width: int) -> int:
    """How many of the first characters fit into a width, at least one."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if font.getlength(text[:middle]) <= width else (low, middle - 1)
    return low


def _font(text: str) -> tuple[ImageFont.FreeTypeFont, set[str]]:
    """The first font that has all letters, or the one that has most of them, and those that it lacks."""
    letters = frozenset(c for c in text if not c.isspace() and c.isprintable())
    default = str(font_manager.findfont("DejaVu Sans"))
    best, fewest = default, letters - _letters(default)
    for file in _installed() if fewest else ():
        lacking = letters - _letters(file)
        if len(lacking) < len(fewest):
            best, fewest = file, lacking
        if not fewest:
            break
    return ImageFont.truetype(best, _SIZE), set(fewest)


@functools.cache
def _letters(file: str) -> frozenset[str]:
    try:
        return frozenset(map(chr, FT2Font(file).get_charmap()))
    except (OSError, RuntimeError):  # a font that cannot be read
        return frozenset()


@functools.cache
def _installed() -> list[str]:
    """The files of fonts, upright ones of plain weight first; without the one whose letters all are empty boxes."""
    fonts = sorted(
        font_manager.fontManager.ttflist,
        key=lambda f: (f.style != "normal", str(f.weight) not in ("400", "normal", "regular"), f.name, f.fname),
    )
    return list(dict.fromkeys(font.fname for font in fonts if not font.name.startswith("Last Resort")))
