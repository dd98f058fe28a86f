"""Statistics of pictures.

Each is a reward: B samples -> B numbers, NaN for an output that is not a picture. Except for sharpness they look at a
picture of at most 256 pixels a side, so a large one takes milliseconds more than a small one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from PIL import Image

from grpokit.images import to_rgb
from grpokit_diagnosis.statistics.one_by_one import Reward, one_by_one

_SIDE = 256  # pixels
_LINES = 128  # rows, and as many columns, in which sharpness is measured
_BLUR = 9  # pixels of the blur that sharpness compares with
_HUES = 24
_COLOURLESS = 1e-3  # a mean saturation below which hues are rounding
_TILE = 16  # pixels a side of the squares in which letters are sought
_STROKE = 8  # the widest stroke of a letter in pixels
_STEP = 0.2  # of brightness, between a letter and its ground
_TWO_TONES = 0.78  # share of a square's variance between its dark and its light pixels; of noise it is 0.75


def of_pictures(measure: Callable[[Image.Image], float]) -> Reward:
    """A reward from a number of one RGB picture."""

    def one(output: object) -> float:
        if not isinstance(output, Image.Image):
            return math.nan
        return measure(to_rgb(output, what="an output"))

    return one_by_one(one, like=measure)


@of_pictures
def contrast(picture: Image.Image) -> float:
    """The standard deviation of a picture's brightness, from 0 for one flat tone to 0.5 for half black, half white."""
    return float(_grey(picture).std())


@of_pictures
def saturation(picture: Image.Image) -> float:
    """How far a picture's colours are from grey: the mean of the largest channel less the smallest, 0 to 1."""
    return float(_saturations(_small(picture)).mean())


@of_pictures
def hue_entropy(picture: Image.Image) -> float:
    """How many hues a picture has: the entropy of 24 hues weighted by their saturation, 0 for one and 1 for all.

    A grey picture has 0.
    """
    small = _small(picture)
    weights = _saturations(small).ravel()
    if weights.mean() < _COLOURLESS:
        return 0.0
    hues = np.asarray(small.convert("HSV"))[..., 0].ravel().astype(int)
    shares = np.bincount(hues * _HUES // 256, weights, minlength=_HUES) / weights.sum()
    present = shares[shares > 0]
    entropy = -(present * np.log(present)).sum() / math.log(_HUES)
    return max(0.0, round(float(entropy), 6))


@of_pictures
def sharpness(picture: Image.Image) -> float:
    """How much of the difference between neighbouring pixels a blur of 9 pixels takes away: 0 for blurred, 1 for sharp.

    It is 1 minus the blur of Crete et al. (2007, "The blur effect: perception and estimation with a new no-reference
    perceptual blur metric"), measured in at most 128 rows and 128 columns. A flat picture has 0.
    """
    grey = np.asarray(picture.convert("L"), np.float32)
    rows = grey[:: math.ceil(len(grey) / _LINES)]
    columns = grey.T[:: math.ceil(len(grey.T) / _LINES)]
    return min(_sharp_lines(rows), _sharp_lines(columns))


@of_pictures
def edge_strength(picture: Image.Image) -> float:
    """The mean size of the gradient of a picture's brightness, in the whole range of brightness a pixel."""
    grey = _grey(picture)
    down = np.diff(grey, axis=0, prepend=grey[:1])
    right = np.diff(grey, axis=1, prepend=grey[:, :1])
    return float(np.hypot(down, right).mean())


@of_pictures
def symmetry(picture: Image.Image) -> float:
    """The correlation of a picture's brightness with that of its mirror image: 1 if left and right are the same.

    A flat picture has 1.
    """
    grey = _grey(picture)
    difference = np.square(grey - grey[:, ::-1]).mean()
    variance = grey.var()
    return 1.0 if variance < 1e-8 else float(1 - difference / (2 * variance))


@of_pictures
def text_area(picture: Image.Image) -> float:
    """The share of a picture that looks like printed text: squares of two tones with thin strokes in most rows.

    It reads nothing. Stripes, lattices and brick walls count as well, and letters with strokes wider than 8 pixels of
    256 do not. Of a page of lines it finds about half, of photographs at most a tenth.
    """
    grey = _grey(picture)
    high, wide = (size // _TILE for size in grey.shape)
    if not high or not wide:
        return 0.0
    grey = grey[: high * _TILE, : wide * _TILE]
    strokes = _in_tiles(_strokes(grey))  # [n, tile, tile]
    rows_with_strokes = strokes.any(2).mean(1)  # [n]
    per_row = strokes.sum(2).mean(1)
    is_text = (rows_with_strokes >= 0.4) & (per_row >= 0.8) & (_two_tones(_in_tiles(grey)) >= _TWO_TONES)
    return float(is_text.mean())


def _small(picture: Image.Image) -> Image.Image:
    """A picture of at most `_SIDE` pixels a side, each of which is the mean of a square."""
    factor = math.ceil(max(picture.size) / _SIDE)
    return picture.reduce(factor) if factor > 1 else picture


def _grey(picture: Image.Image) -> np.ndarray:
    """The brightness of a small copy: [h, w], 0 to 1."""
    return np.asarray(_small(picture).convert("L"), np.float32) / 255


def _saturations(picture: Image.Image) -> np.ndarray:
    """The largest channel less the smallest: [h, w], 0 to 1."""
    red, green, blue = (np.asarray(channel, np.float32) for channel in picture.split())
    largest = np.maximum(np.maximum(red, green), blue)
    smallest = np.minimum(np.minimum(red, green), blue)
    return (largest - smallest) / 255


def _sharp_lines(lines: np.ndarray) -> float:
    """The share of the differences between neighbours [n, w] that a blur along the lines takes away."""
    padded = np.pad(lines, ((0, 0), (_BLUR // 2, _BLUR // 2)), mode="edge")
    before = np.abs(np.diff(lines, axis=1))
    after = np.abs(padded[:, _BLUR:] - padded[:, :-_BLUR]) / _BLUR  # between neighbours of the blurred lines
    total = before.sum()
    return float(np.maximum(before - after, 0).sum() / total) if total > 0 else 0.0


def _in_tiles(pixels: np.ndarray) -> np.ndarray:
    """[h, w] -> [n, tile, tile]."""
    high, wide = (size // _TILE for size in pixels.shape)
    tiles = pixels.reshape(high, _TILE, wide, _TILE).swapaxes(1, 2)
    return tiles.reshape(high * wide, _TILE, _TILE)


def _strokes(grey: np.ndarray) -> np.ndarray:
    """Where a thin stroke ends: a step of brightness along a row with the opposite step a few pixels before. [h, w]"""
    right = np.diff(grey, axis=1, prepend=grey[:, :1])
    wide = right[:, 1:] + right[:, :-1]  # an edge may be spread over two pixels
    right[:, 1:] = np.where(np.abs(wide) > np.abs(right[:, 1:]), wide, right[:, 1:])
    up = right > _STEP
    down = right < -_STEP
    ends = np.zeros_like(up)
    for width in range(1, _STROKE + 1):
        ends[:, width:] |= up[:, width:] & down[:, :-width]
        ends[:, width:] |= down[:, width:] & up[:, :-width]
    begins = np.pad(ends, ((0, 0), (1, 0)))[:, :-1]
    return ends & ~begins  # neighbours are one edge


def _two_tones(tiles: np.ndarray) -> np.ndarray:
    """The share of the variance of each tile [n, tile, tile] that lies between its dark and its light pixels."""
    pixels = tiles.reshape(len(tiles), -1)
    middle = (pixels.min(1) + pixels.max(1)) / 2
    light = pixels > middle[:, None]
    share = light.mean(1)
    mean = pixels.mean(1)
    light_mean = np.where(light, pixels, 0).sum(1) / np.maximum(light.sum(1), 1)
    dark_mean = np.where(light, 0, pixels).sum(1) / np.maximum((~light).sum(1), 1)
    between = share * (light_mean - mean) ** 2 + (1 - share) * (dark_mean - mean) ** 2
    shares: np.ndarray = between / np.maximum(pixels.var(1), 1e-6)
    return shares
