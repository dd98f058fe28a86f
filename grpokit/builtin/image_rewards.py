"""Rewards on pictures that need neither weights nor a target.

The size as a JPEG and the brightness are for trying a policy: a run that climbs one learns to draw one flat colour. The
diversity is a monitor, for the modifier `diversity`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageStat

from grpokit.images import to_rgb
from grpokit.rewards.submission import by_group
from grpokit.types import Sample

_SMALL = (32, 32)
QUALITY = 95
"""Of the JPEG, with Pillow's own subsampling and tables for it."""


def jpeg_size(samples: Sequence[Sample]) -> list[float]:
    """Minus the bytes of each output as a JPEG, in units of 100,000.

    The compressibility of Black et al. (2024, "Training Diffusion Models with Reinforcement Learning",
    arXiv:2305.13301, section 5.1), in another unit.

    Args:
        samples: B samples.

    Returns:
        B scores below 0; NaN for an output that is not a picture.

    Raises:
        RewardError: a picture has no pixels, or a mode that does not define which number is white.
    """
    return _each_picture(samples, "jpeg-size", lambda picture: -_bytes(picture) / 1e5)


def brightness(samples: Sequence[Sample]) -> list[float]:
    """The mean of each output's pixels in grey (luma of ITU-R BT.601), from 0 for black to 1 for white.

    Args:
        samples: B samples.

    Returns:
        B scores; NaN for an output that is not a picture.

    Raises:
        RewardError: a picture has no pixels, or a mode that does not define which number is white.
    """
    return _each_picture(samples, "brightness", lambda picture: ImageStat.Stat(picture.convert("L")).mean[0] / 255)


def pixel_diversity(samples: Sequence[Sample]) -> list[float]:
    """How unlike the nearest other output of its group each output is: the mean difference of their pixels, 0 to 1.

    Pictures are compared at 32 x 32 pixels.

    Args:
        samples: B samples, with whole groups.

    Returns:
        B scores; NaN for an output that is not a picture, or is the only one of its group.

    Raises:
        RewardError: a picture has no pixels, or a mode that does not define which number is white.
    """
    scores = [math.nan] * len(samples)
    for group in by_group(samples):
        rows = [row for row in group if isinstance(samples[row].output, Image.Image)]
        if len(rows) < 2:
            continue
        vectors = []
        for row in rows:
            small = to_rgb(samples[row].output, what=f"the output of row {row}").resize(_SMALL)
            vectors.append(np.asarray(small, dtype=np.float32).ravel())
        pixels = np.stack(vectors) / 255  # [G, 3072]
        for row, own in zip(rows, pixels, strict=True):
            scores[row] = float(np.partition(np.abs(pixels - own).mean(1), 1)[1])  # the least one is its own
    return scores


def _each_picture(samples: Sequence[Sample], reward: str, score: Callable[[Image.Image], float]) -> list[float]:
    """The scores of pictures in RGB; NaN for other outputs."""
    scores = [math.nan] * len(samples)
    for row, sample in enumerate(samples):
        if isinstance(sample.output, Image.Image):
            scores[row] = score(to_rgb(sample.output, what=f"the output of row {row} (reward '{reward}')"))
    return scores


def _bytes(picture: Image.Image) -> int:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY, comment=b"")  # one that the picture brings would count
    return file.tell()
