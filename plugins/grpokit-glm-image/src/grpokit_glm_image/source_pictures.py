"""What GLM-Image's vision tower makes of the pictures of an edit: visual tokens, which both halves read."""

from __future__ import annotations

from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from grpokit.images import to_rgb


@torch.no_grad()
def source_codes(model: Any, processor: Any, picture: Image) -> Tensor:
    """The visual tokens [h * w] of a picture, one for 32 x 32 pixels.

    The stock pipeline asks `get_image_features` for them, whose answer has another form in transformers 5.23 than the
    pipeline of diffusers 0.42 expects. The vision tower and its codebook are the same in all versions.

    Args:
        model: the autoregressive half, with its vision tower.
        processor: of the model.
        picture: with sides that the processor does not change.
    """
    read = processor.image_processor(images=[to_rgb(picture)], return_tensors="pt")
    grid, tower, codebook = read["image_grid_thw"], model.model.visual, model.model.vqmodel
    _, rows, columns = grid[0].tolist()
    with torch.autocast(model.device.type, enabled=False):  # codes close to each other would be taken for one another
        pixels = read["pixel_values"].to(model.device, tower.dtype)
        features = tower(pixels, grid_thw=grid.to(model.device)).pooler_output  # [h * w, C]
        codes: Tensor = codebook.encode(features.view(1, rows, columns, -1).permute(0, 3, 1, 2)).image_tokens
    return codes.flatten()
