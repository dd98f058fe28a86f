"""What GLM-Image's vision tower makes of the pictures of an edit: visual tokens, which both halves read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from grpokit.images import to_rgb


@torch.no_grad()
def source_codes(model: Any, processor: Any, pictures: Sequence[Image]) -> list[Tensor]:
    """The visual tokens [h * w] of each picture, one for 32 x 32 pixels.

    The stock pipeline asks `get_image_features` for them, whose answer has another form in transformers 5.23 than the
    pipeline of diffusers 0.42 expects. The vision tower and its codebook are the same in all versions.

    Args:
        model: the autoregressive half, with its vision tower.
        processor: of the model.
        pictures: with sides that the processor does not change.
    """
    read = processor.image_processor(images=[to_rgb(picture) for picture in pictures], return_tensors="pt")
    grids = read["image_grid_thw"].to(model.device)
    tower, codebook = model.model.visual, model.model.vqmodel
    codes = []
    with torch.autocast(model.device.type, enabled=False):  # codes close to each other would be taken for one another
        features = tower(read["pixel_values"].to(model.device, tower.dtype), grid_thw=grids).pooler_output  # [all, C]
        for own, (_, rows, columns) in zip(features.split(grids.prod(-1).tolist()), grids.tolist(), strict=True):
            codes.append(codebook.encode(own.view(1, rows, columns, -1).permute(0, 3, 1, 2)).image_tokens.flatten())
    return codes
