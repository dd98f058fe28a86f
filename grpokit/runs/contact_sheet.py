"""One picture of many samples: a row for each prompt, with its text above, and a column for each sample."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from grpokit.files import replacing
from grpokit.images import Drawable, to_rgb
from grpokit.types import Sample

SHEET = "contact_sheet.png"
_ROWS = 64
_WIDEST = 4000  # pixels, to which the cells shrink
_CELL, _GAP, _LINE = 192, 8, 20  # pixels


def contact_sheet(columns: Mapping[str, Sequence[Sample]], path: Path) -> None:
    """Write a contact sheet of the first 64 prompts as a PNG file, unless no sample is a picture.

    Args:
        columns: title -> samples, each prompt's next to each other, in the same order for every title. With several
            titles, such as before and after, they stand side by side.
        path: of the file.

    Raises:
        OSError: it cannot be written.
    """
    path.unlink(missing_ok=True)  # of earlier samples
    rows = list(zip(*map(_by_prompt, columns.values()), strict=True))[:_ROWS]
    pictures = [[[_picture(sample) for sample in side] for side in row] for row in rows]
    if not any(picture for row in pictures for side in row for picture in side):
        return
    widths = [max(len(row[i]) for row in pictures) for i in range(len(columns))]
    cell = max(16, min(_CELL, _WIDEST // sum(widths) - _GAP))
    width = max(sum(widths) * (cell + _GAP) + _GAP * len(widths), 2 * _CELL)
    lefts = [_GAP + sum(widths[:i]) * (cell + _GAP) + i * _GAP for i in range(len(widths))]
    small = [[[picture and _fit(picture, cell) for picture in side] for side in row] for row in pictures]
    captions = [textwrap.wrap(row[0][0].prompt.text, width // 8, max_lines=3, placeholder=" …") for row in rows]
    tops, top = [], (_LINE + _GAP) * (len(columns) > 1)
    for caption, row in zip(captions, small, strict=True):
        tops.append(top)
        top += len(caption) * _LINE + 2 * _GAP + max((x.height for side in row for x in side if x), default=0)
    sheet = Image.new("RGB", (width, top), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for title, left in zip(columns, lefts, strict=True):
        draw.text((left, _GAP), title, fill="#1a63bd", font=font)
    for caption, top, row in zip(captions, tops, small, strict=True):
        draw.multiline_text((_GAP, top + _GAP // 2), "\n".join(caption), fill="black", font=font)
        for side, left in zip(row, lefts, strict=True):
            for place, picture in enumerate(side):
                if picture:
                    sheet.paste(picture, (left + place * (cell + _GAP), top + len(caption) * _LINE + _GAP))
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG")


def _by_prompt(samples: Sequence[Sample]) -> list[list[Sample]]:
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    return list(groups.values())


def _picture(sample: Sample) -> Image.Image | None:
    if isinstance(sample.output, Image.Image):
        return to_rgb(sample.output.convert("L") if sample.output.mode in ("I", "F") else sample.output)
    if isinstance(sample.output, Drawable):
        return to_rgb(Image.open(io.BytesIO(sample.output._repr_png_())))
    return None


def _fit(picture: Image.Image, cell: int) -> Image.Image:
    """The picture in a cell; the pixels of a small one made larger."""
    small = max(picture.size) <= cell // 2
    return ImageOps.contain(picture, (cell, cell), Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS)
