"""The noise that latents begin as, and the pictures that they become."""

from __future__ import annotations

import math
import warnings
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
    latents: Tensor, decode: Callable[[Tensor], Tensor], pipeline: Any, *, size: Size, most: int
) -> list[Image | None]:
    """The pictures of latents, without mixed precision, in which autoencoders lose what they need.

    A picture with pixels that are not finite is None, and a warning names what made them.

    Args:
        latents: [n, ...], as the autoencoder reads them.
        decode: latents -> pixels [n, 3, H, W].
        pipeline: whose `vae` decodes, and whose `image_processor` makes pictures of pixels.
        size: height and width of a picture.
        most: pixels that are decoded at a time; a whole picture always is.
    """
    some = max(1, most // (size[0] * size[1]))
    with torch.no_grad(), torch.autocast(latents.device.type, enabled=False):
        parts = [decode(part) for part in latents.split(some)]  # all are started before the host waits for the first
        pictures: list[Image | None] = []
        for pixels in (part.cpu() for part in parts):
            finite = pixels.isfinite().flatten(1).all(1).tolist()
            whole = pipeline.image_processor.postprocess(pixels.nan_to_num(), output_type="pil")
            pictures += [picture if good else None for picture, good in zip(whole, finite, strict=True)]
    if None in pictures:
        model = pipeline.vae if latents.isfinite().all() else pipeline.transformer
        remedy = " Use bfloat16 or float32 for it." if model.dtype == torch.float16 else ""
        warnings.warn(
            f"{type(model).__name__} in {str(model.dtype).removeprefix('torch.')} gave numbers that are not finite, of "
            f"which no picture can be made. Such samples are not scored.{remedy}",
            stacklevel=2,
        )
    return pictures
