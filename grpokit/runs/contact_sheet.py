"""One picture of many samples: a row for each prompt, with its text above, and a column for each sample."""

from __future__ import annotations

import io
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from grpokit.files import replacing
from grpokit.images import Drawable, to_rgb
from grpokit.types import Sample

SHEET = "contact_sheet.png"
_ROWS, _COLUMNS = 64, 20
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
    groups: dict[int, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))  # group -> title -> samples
    for title, samples in columns.items():
        for sample in samples:
            groups[sample.group][title].append(sample)
    shown = list(groups.values())[:_ROWS]
    most = max(len(samples) for row in shown for samples in row.values())
    each = min(_COLUMNS // len(columns), most)
    column_width = each * (_CELL + _GAP)
    width = _GAP + len(columns) * column_width
    height = _CELL + _LINE + 2 * _GAP  # of a row
    top = _LINE + _GAP
    sheet = Image.new("RGB", (width, top + len(shown) * height), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(14)
    if len(columns) > 1:
        for side, title in enumerate(columns):
            left = _GAP + side * column_width
            draw.text((left, _GAP // 2), title, fill="#1a63bd", font=font)
    pictures = 0
    for row in shown:
        first, *_ = next(iter(row.values()))
        caption = textwrap.shorten(first.prompt.text, width // 9, placeholder=" …")
        draw.text((_GAP, top), caption, fill="black", font=font)
        for side, title in enumerate(columns):
            left = _GAP + side * column_width
            for sample in row[title][:each]:
                if picture := thumbnail(sample):
                    sheet.paste(picture, (left, top + _LINE + _GAP))
                    pictures += 1
                left += _CELL + _GAP
        top += height
    if pictures:
        with replacing(path) as temporary:
            sheet.save(temporary, format="PNG")


def thumbnail(sample: Sample) -> Image.Image | None:
    """What can be seen of a sample, 192 pixels wide or high; the pixels of a small picture are made larger."""
    picture = sample.output
    if isinstance(picture, Drawable):
        picture = Image.open(io.BytesIO(picture._repr_png_()))
    if not isinstance(picture, Image.Image):
        return None
    picture = to_rgb(picture.convert("L") if picture.mode in ("I", "F") else picture)
    is_small = max(picture.size) <= _CELL // 2
    method = Image.Resampling.NEAREST if is_small else Image.Resampling.LANCZOS
    return ImageOps.contain(picture, (_CELL, _CELL), method)
