"""Pictures as the three models were given them: `pickscore` and `imagereward` the middle, `hpsv2` the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Of OpenAI's CLIP, which all three models took over."""

LONGEST = 64
"""How many times longer than wide a picture is looked at: of more, nothing would be left to see."""


def pixels(pictures: Sequence[Image.Image], size: int, *, odd: Literal["down", "even"]) -> Tensor:
    """RGB pictures -> [b, 3, size, size] in fp32: the shorter side to `size` (bicubic), the middle, normalised.

    Args:
        pictures: b pictures.
        size: of the model's pictures.
        odd: where the middle lies if an odd number of pixels is cut off: "down" as transformers does it, "even" as
            torchvision does it (to the even one of the two places).
    """
    squares = [_square(picture, size, odd) for picture in pictures]
    return torch.stack([_normalised(_colours(square)) for square in squares])


def whole_pixels(pictures: Sequence[Image.Image], size: int) -> Tensor:
    """RGB pictures -> [b, 3, size, size] in fp32: the longer side to `size`, black beside the shorter one, normalised.

    It is resized in floats (bicubic, antialiased), as torchvision does it with tensors: nothing is rounded or clipped.

    Args:
        pictures: b pictures.
        size: of the model's pictures.
    """
    colours = [_colours(_middle(picture)) for picture in pictures]
    return torch.stack([_normalised(_padded(x, size)) for x in colours])


def _padded(x: Tensor, size: int) -> Tensor:
    longer = max(x.shape[1:])
    height, width = (max(1, round(side * (size / longer))) for side in x.shape[1:])
    if longer != size:
        x = F.interpolate(x[None], size=(height, width), mode="bicubic", antialias=True)[0]
    down, right = size - height, size - width
    left, top = right // 2, down // 2
    return F.pad(x, (left, right - left, top, down - top))  # [3, h, w] -> [3, size, size]


def _square(picture: Image.Image, size: int, odd: str) -> Image.Image:
    picture = _middle(picture)
    short = min(picture.size)
    width, height = (size if side == short else int(size * side / short) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    if odd == "down":
        left, top = (width - size) // 2, (height - size) // 2
    else:
        left, top = round((width - size) / 2), round((height - size) / 2)
    return picture.crop((left, top, left + size, top + size))


def _middle(picture: Image.Image) -> Image.Image:
    """Cut a very long picture, which would take memory without end when it is enlarged."""
    most = LONGEST * min(picture.size)
    width, height = (min(side, most) for side in picture.size)
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((left, top, left + width, top + height))


def _colours(picture: Image.Image) -> Tensor:
    """[3, h, w], from 0 to 1."""
    values = np.asarray(picture, dtype=np.float32) / 255  # [h, w, 3]
    return torch.from_numpy(values).permute(2, 0, 1).contiguous()


def _normalised(x: Tensor) -> Tensor:
    mean = torch.tensor(MEAN)[:, None, None]
    std = torch.tensor(STD)[:, None, None]
    return (x - mean) / std
