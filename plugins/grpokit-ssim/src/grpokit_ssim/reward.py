"""The rewards `ssim` and `mse`: how close a picture comes to its prompt's target picture.

Both look at RGB in [0, 1], at the target's size; a row without a target is NaN, "cannot score". They are plain
functions, since they keep nothing between calls; the targets that a group shares are converted once per call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from skimage.metrics import structural_similarity

from grpokit import DataError, Sample
from grpokit.images import to_rgb

WINDOW = 7
"""Pixels; the side of SSIM's window, scikit-image's default. Smaller pictures get the largest odd side that fits."""

RESAMPLING = Image.Resampling.BICUBIC
"""The filter that brings an output to its target's size (with Pillow's antialiasing where it shrinks)."""

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
    return _compare(samples, "ssim", structure)


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
    return _compare(samples, "mse", lambda output, target: -float(np.mean((output - target) ** 2)))


def structure(output: Pixels, target: Pixels) -> float:
    """SSIM of two pictures of the same size, both [h, w, 3] in [0, 1].

    A side below 3 pixels has no window with a variance; there the edge pixels are repeated up to 3.
    """
    height, width = target.shape[:2]
    missing = [(0, max(0, 3 - height)), (0, max(0, 3 - width)), (0, 0)]
    output, target = np.pad(output, missing, mode="edge"), np.pad(target, missing, mode="edge")
    shortest = min(target.shape[:2])
    window = min(WINDOW, shortest - (shortest + 1) % 2)
    value = structural_similarity(  # type: ignore[no-untyped-call]
        target, output, win_size=window, data_range=1.0, channel_axis=2
    )
    return max(-1.0, min(1.0, float(value)))  # the declared range holds exactly, whatever the rounding


def _compare(samples: Sequence[Sample], name: str, measure: Callable[[Pixels, Pixels], float]) -> list[float]:
    targets: dict[int, Pixels] = {}  # by the identity of the picture that a group's prompts share
    scores = []
    for row, sample in enumerate(samples):
        picture = to_rgb(sample.output, what=f"the output of row {row} (reward '{name}')")
        target = sample.prompt.target
        if target is None:
            scores.append(math.nan)
            continue
        if not isinstance(target, Image.Image):
            raise DataError(
                f"The reward '{name}' compares pictures: expected a PIL.Image.Image as the target of row {row} (prompt "
                f"{sample.prompt.text!r}), got {type(target).__name__}. Give the prompts a folder of target images."
            )
        if id(target) not in targets:
            targets[id(target)] = _pixels(to_rgb(target, what=f"the target of row {row} (reward '{name}')"))
        if picture.size != target.size:
            picture = picture.resize(target.size, RESAMPLING)
        scores.append(measure(_pixels(picture), targets[id(target)]))
    return scores


def _pixels(image: Image.Image) -> Pixels:
    return np.asarray(image, dtype=np.float64) / 255  # [h, w, 3]
