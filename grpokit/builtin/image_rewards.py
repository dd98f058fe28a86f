"""Rewards on pictures that need neither weights nor a target: the size as a JPEG, and the brightness.

They are for trying a policy that makes pictures. A run that climbs one learns to draw one flat colour.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from PIL import Image, ImageStat

from grpokit.images import to_rgb
from grpokit.types import Sample

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
    return [
        -_bytes(to_rgb(s.output, what=f"the output of row {row} (reward 'jpeg-size')")) / 1e5
        if isinstance(s.output, Image.Image)
        else math.nan
        for row, s in enumerate(samples)
    ]


def brightness(samples: Sequence[Sample]) -> list[float]:
    """The mean of each output's pixels in grey (luma of ITU-R BT.601), from 0 for black to 1 for white.

    Args:
        samples: B samples.

    Returns:
        B scores; NaN for an output that is not a picture.

    Raises:
        RewardError: a picture has no pixels, or a mode that does not define which number is white.
    """
    return [
        ImageStat.Stat(to_rgb(s.output, what=f"the output of row {row} (reward 'brightness')").convert("L")).mean[0]
        / 255
        if isinstance(s.output, Image.Image)
        else math.nan
        for row, s in enumerate(samples)
    ]


def _bytes(picture: Image.Image) -> int:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=QUALITY, comment=b"")  # one that the picture brings would count
    return file.tell()
