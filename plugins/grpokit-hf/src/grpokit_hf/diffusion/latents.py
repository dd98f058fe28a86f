"""The noise that latents begin as, and the pictures that they become."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from grpokit.sampling import normals
from grpokit_hf.diffusion.family import Size

_BEHIND_ALL_ELSE = 2**40  # the earlier random numbers of a seed draw tokens, where a pipeline has such


def noise(seeds: Tensor, shape: Sequence[int], *, index: int = 0, device: torch.device) -> Tensor:
    """Noise [n, *shape] fp32, drawn on the device: for every batch the same, and for every device to a last bit.

    Args:
        seeds: [n].
        shape: of one.
        index: 0 for where a path begins, 1 + k for step k.
        device: where it is needed.
    """
    count = math.prod(shape)
    start = _BEHIND_ALL_ELSE + index * count
    flat = normals(seeds.to(device, non_blocking=True), count, start=start).float()
    found: Tensor = flat.unflatten(1, shape)
    return found


def painted(
    latents: Tensor, decode: Callable[[Tensor], Tensor], processor: Any, *, size: Size, most: int
) -> list[Image]:
    """The pictures of latents, without mixed precision, in which autoencoders lose what they need.

    Args:
        latents: [n, ...].
        decode: latents -> pixels [n, 3, H, W].
        processor: the pipeline's, which makes pictures of pixels.
        size: height and width of a picture.
        most: pixels that are decoded at a time; a whole picture always is.
    """
    some = max(1, most // (size[0] * size[1]))
    with torch.no_grad(), torch.autocast(latents.device.type, enabled=False):
        parts = [decode(part) for part in latents.split(some)]  # all are started before the host waits for the first
        return [picture for pixels in parts for picture in processor.postprocess(pixels, output_type="pil")]
