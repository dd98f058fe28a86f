"""The rewards `ssim` and `mse`, against the prompt's target picture, and `structure`, against its source picture.

All look at RGB in [0, 1], at the other picture's size (`for_comparison`); a row without that picture is NaN, "cannot
score". They are plain functions, since they keep nothing between calls; pictures that a group shares are converted once
per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from skimage.metrics import structural_similarity

from grpokit import Sample
from grpokit.images import picture_to_compare, to_rgb

WINDOW = 7
"""Pixels; the side of SSIM's window, scikit-image's default. Smaller pictures get the largest odd side that fits."""

RESAMPLING = Image.Resampling.BICUBIC
"""The filter that brings an output to the other picture's size (with Pillow's antialiasing where it shrinks)."""

Pixels = NDArray[np.float64]


def ssim(samples: Sequence[Sample]) -> list[float]:
    """Structural similarity of each output and its target (Wang et al. 2004), in [-1, 1].

    `skimage.metrics.structural_similarity` with data range 1, on the three colours separately, uniform window of
    `WINDOW` x `WINDOW` pixels, mean over pixels and colours.

    Args:
        samples: B samples whose outputs are pictures.

    Returns:
        B scores; 1 for the same picture, NaN where the prompt has no target.

    Raises:
        RewardError: an output is not a picture.
        DataError: a target is not a picture.
    """
    return _compare(samples, "ssim", "target", similarity)


def mse(samples: Sequence[Sample]) -> list[float]:
    """Minus the mean squared difference of each output and its target, in [-1, 0].

    Args:
        samples: B samples whose outputs are pictures.

    Returns:
        B scores; 0 for the same picture, NaN where the prompt has no target.

    Raises:
        RewardError: an output is not a picture.
        DataError: a target is not a picture.
    """
    return _compare(samples, "mse", "target", lambda output, target: -float(np.mean((output - target) ** 2)))


def structure(samples: Sequence[Sample]) -> list[float]:
    """Structural similarity of each output and the source picture that it edits, in [-1, 1]; otherwise as `ssim`.

    Args:
        samples: B samples whose outputs are pictures.

    Returns:
        B scores; 1 for the source picture itself, NaN where the prompt has no source picture.

    Raises:
        RewardError: an output is not a picture.
        DataError: a source is not a picture.
    """
    return _compare(samples, "structure", "source", similarity)


def similarity(output: Pixels, target: Pixels) -> float:
    """SSIM of two pictures of the same size, both [h, w, 3] in [0, 1].

    A side below 3 pixels has no window with a variance; there the edge pixels are repeated up to 3.
    """
    height, width = target.shape[:2]
    down, right = max(0, 3 - height), max(0, 3 - width)
    missing = [(0, down), (0, right), (0, 0)]
    output = np.pad(output, missing, mode="edge")
    target = np.pad(target, missing, mode="edge")
    shortest = min(target.shape[:2])
    window = min(WINDOW, shortest - (shortest + 1) % 2)
    value = structural_similarity(  # type: ignore[no-untyped-call]
        target, output, win_size=window, data_range=1.0, channel_axis=2
    )
    return max(-1.0, min(1.0, float(value)))  # the declared range holds exactly, whatever the rounding


def _compare(
    samples: Sequence[Sample],
    name: str,
    against: Literal["target", "source"],
    measure: Callable[[Pixels, Pixels], float],
) -> list[float]:
    others: dict[int, Pixels] = {}  # by the identity of the picture that a group's prompts share
    scores = []
    for row, sample in enumerate(samples):
        picture = to_rgb(sample.output, what=f"the output of row {row} (reward '{name}')")
        other = sample.prompt.target if against == "target" else sample.prompt.image
        if other is None:
            scores.append(math.nan)
            continue
        if id(other) not in others:
            shown = picture_to_compare(other, sample.prompt.text, row, role=against, reward=name)
            others[id(other)] = _pixels(shown)
        pixels = others[id(other)]
        size = pixels.shape[1], pixels.shape[0]
        if picture.size != size:
            picture = picture.resize(size, RESAMPLING)
        scores.append(measure(_pixels(picture), pixels))
    return scores


def _pixels(image: Image.Image) -> Pixels:
    return np.asarray(image, dtype=np.float64) / 255  # [h, w, 3]
