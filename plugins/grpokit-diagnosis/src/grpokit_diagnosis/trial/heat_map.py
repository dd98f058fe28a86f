"""The worth of a picture's squares as colours over the picture: blue raises the score, red lowers it.

Colour-blind people can tell these two apart. Each place shows the mean of the squares that cover it, and the picture
beneath is gray, so that every colour is the map's.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from grpokit import UsageError
from grpokit_diagnosis.trial.measure import Tried
from grpokit_diagnosis.trial.parts import Square
from grpokit_diagnosis.trial.sentences import figure, strongest

RAISES, LOWERS = (24, 90, 169), (197, 40, 30)
"""RGB of the strongest colours."""

STRONGEST = 0.85
"""How much of the strongest place is colour; the rest is picture."""

_SIDE = 720  # pixels of a map's longer side
_LEAST = 240  # of its width, so that a tiny picture can be seen
_MARK = ("Software", "grpokit try")  # in our PNG files, so that no other is overwritten
_MARGIN, _BAR, _LINE = 16, 14, 20
_INK, _PAPER = (28, 32, 36), (255, 255, 255)

Values = NDArray[np.float64]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Cells:
    """A map: the worth of each cell [rows, columns], and where the cells' borders are, in pixels."""

    values: Values
    columns: Sequence[int]
    rows: Sequence[int]


def cells_of(squares: Sequence[Square], worth: Sequence[float], size: tuple[int, int]) -> Cells:
    """The mean worth of the squares over each cell; NaN where none of them has one.

    Args:
        squares: which may overlap.
        worth: of each; NaN for none.
        size: of the picture: width, height.
    """
    width, height = size
    columns = sorted({0, width}.union(*({square.left, square.right} for square in squares)))
    rows = sorted({0, height}.union(*({square.top, square.bottom} for square in squares)))
    total = np.zeros((len(rows) - 1, len(columns) - 1))
    count = np.zeros_like(total)
    for square, value in zip(squares, worth, strict=True):
        if np.isnan(value):
            continue
        across = slice(columns.index(square.left), columns.index(square.right))
        down = slice(rows.index(square.top), rows.index(square.bottom))
        total[down, across] += value
        count[down, across] += 1
    values = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return Cells(values, columns, rows)


def tried_cells(tried: Tried) -> Cells:
    """The map of a picture that was taken apart; changes that may be chance count as 0."""
    assert tried.divided is not None
    squares = [part for part in tried.divided.parts if isinstance(part, Square)]
    return cells_of(squares, tried.counted, tried.sample.output.size)


def drawn(tried: Tried, most: float) -> Image.Image:
    """The map over a picture, with a frame round the square that raises the score most and the one that lowers it most.

    Args:
        tried: the picture, taken apart.
        most: the worth of the strongest colour.
    """
    image = overlay(tried.sample.output, tried_cells(tried), most)
    draw = ImageDraw.Draw(image)
    scale = image.width / tried.sample.output.width
    for place in strongest(tried):
        part = tried.divided.parts[place] if tried.divided else None
        if isinstance(part, Square):
            left, top, right, bottom = (round(edge * scale) for edge in part.box)
            box = (left, top, max(left, right - 1), max(top, bottom - 1))
            draw.rectangle(box, outline=_PAPER, width=3)  # two tones can be seen on any colour
            draw.rectangle(box, outline=_INK, width=2)
    return image


def overlay(picture: Image.Image, cells: Cells, most: float) -> Image.Image:
    """The map over its picture, made smaller or larger to be looked at.

    Args:
        picture: RGB.
        cells: of the picture.
        most: the worth of the strongest colour.
    """
    width, height = picture.size
    scale = min(1.0, _SIDE / max(picture.size)) if width >= _LEAST else min(_LEAST / width, _SIDE / max(picture.size))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    gray = np.asarray(picture.convert("L").resize(size, Image.Resampling.BICUBIC), dtype=np.float64)
    base = np.repeat((96 + gray * 0.6)[..., None], 3, axis=2)  # pale: [h, w] -> [h, w, 3]
    values = np.nan_to_num(cells.values)[_cell_of(size[1], height, cells.rows)]  # [rows, columns] -> [h, columns]
    values = values[:, _cell_of(size[0], width, cells.columns)][..., None]  # [h, w, 1]
    share = np.clip(np.abs(values) / most, 0, 1) * STRONGEST if most else np.zeros_like(values)
    colour = np.where(values > 0, np.array(RAISES), np.array(LOWERS))
    return Image.fromarray((base * (1 - share) + colour * share).round().astype(np.uint8))


def _cell_of(pixels: int, length: int, edges: Sequence[int]) -> NDArray[np.int64]:
    """For each pixel of a side that has another length now, the cell that its middle lies in."""
    middles = (np.arange(pixels) + 0.5) * length / pixels
    places: NDArray[np.int64] = np.searchsorted(np.asarray(edges), middles, side="right") - 1
    return places


def png(every: Sequence[Tried], name: str) -> bytes:
    """The maps of pictures one below the other, with their scores and one scale of colours, as a PNG file.

    Args:
        every: pictures that were taken apart.
        name: of the reward.
    """
    most = max(tried.largest for tried in every)
    maps = [drawn(tried, most) for tried in every]
    titles = [f"{name} {tried.score:.4f}  {Path(tried.where).name}" for tried in every]
    width = max(each.width for each in maps) + 2 * _MARGIN
    height = sum(each.height + _LINE + _MARGIN for each in maps) + 2 * _MARGIN + _BAR + 2 * _LINE
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(14)
    top = _MARGIN // 2
    for title, each in zip(titles, maps, strict=True):
        draw.text((_MARGIN, top), _fitting(title, draw, font, width - 2 * _MARGIN), fill=_INK, font=font)
        sheet.paste(each, (_MARGIN, top + _LINE))
        top += each.height + _LINE + _MARGIN
    _draw_scale(sheet, top, most, font)
    information = PngInfo()
    information.add_text(*_MARK)
    out = io.BytesIO()
    sheet.save(out, format="PNG", pnginfo=information)
    return out.getvalue()


def _fitting(text: str, draw: ImageDraw.ImageDraw, font: Font, most: int) -> str:
    """A text on one line, cut to a width in pixels."""
    line = " ".join(text.split())
    while draw.textlength(line, font=font) > most and len(line) > 1:
        line = f"{line[:-2]}…"
    return line


def _draw_scale(sheet: Image.Image, top: int, most: float, font: Font) -> None:
    """A bar of the colours with its numbers."""
    draw = ImageDraw.Draw(sheet)
    left, right = _MARGIN, sheet.width - _MARGIN
    for x in range(left, right):
        share = 2 * (x - left) / max(1, right - left - 1) - 1
        colour = RAISES if share > 0 else LOWERS
        mix = abs(share) * STRONGEST
        fill = tuple(round(216 * (1 - mix) + part * mix) for part in colour)
        draw.line([(x, top), (x, top + _BAR)], fill=fill)
    below = top + _BAR + 3
    words = below + _LINE - 3
    lowest = figure(-most, sign="+").replace("\u2212", "-")  # which the font has not
    draw.text((left, below), lowest, fill=_INK, font=font)
    draw.text(((left + right) / 2, below), "0", fill=_INK, font=font, anchor="ma")
    draw.text((right, below), figure(most, sign="+"), fill=_INK, font=font, anchor="ra")
    draw.text((left, words), "lowers the score", fill=_INK, font=font)
    draw.text((right, words), "raises it", fill=_INK, font=font, anchor="ra")


def check_png(path: Path) -> None:
    """Refuse to overwrite a PNG, or another file, that is no heat map.

    Raises:
        UsageError: the path has one, or is a folder.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder; expected the picture's file, such as {path / 'map.png'}.")
    if not path.exists():
        return
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            is_ours = picture.info.get(_MARK[0]) == _MARK[1]
    except (OSError, SyntaxError, ValueError):  # Pillow's, for another kind of file
        is_ours = False
    if not is_ours:
        raise UsageError(f"{path} exists already and is no heat map of `grpokit try`. Choose another file with --out.")
