"""FLUX.1 Kontext: FLUX.1 that edits a picture, whose tokens stand beside those that are denoised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS
from PIL.Image import Image
from torch import Tensor

from grpokit import Prompt
from grpokit.images import to_rgb
from grpokit_diffusers.families.flux import Flux
from grpokit_diffusers.family import Told
from grpokit_hf.diffusion.family import Size

_KEPT = 1024  # pictures


class FluxKontext(Flux):
    """`FluxKontextPipeline`, with one picture to edit, or none."""

    sources = 1

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self._seen: dict[tuple[int, Size], tuple[Image, Tensor]] = {}  # the picture keeps its id in use

    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Told:
        """See `Family`."""
        told = super().condition(prompt, size, shared)
        if prompt.image is None:
            return told
        tokens, grid = self._tokens(prompt.image, size), self.grid(self.source_size(prompt.image, size))
        source = tokens.to(self.device), self.places(grid, 1)
        return Told(text=told.text, negative=told.negative, size=size, source=source)

    def source_size(self, picture: Image, size: Size) -> Size:
        """Height and width at which a picture is looked at.

        The pipeline takes the nearest in shape of the sizes that it was trained with, all of 1024 x 1024 pixels or so.
        A smaller or larger result has its source in proportion.
        """
        shape = picture.width / picture.height
        width, height = min(PREFERRED_KONTEXT_RESOLUTIONS, key=lambda each: abs(shape - each[0] / each[1]))
        scale = math.sqrt(size[0] * size[1]) / 1024
        height, width = (max(1, int(side * scale) // self.multiple) * self.multiple for side in (height, width))
        return height, width

    def _tokens(self, picture: Image, size: Size) -> Tensor:
        """The tokens [1, N, 4 C] of a picture, which are kept."""
        key = (id(picture), size)
        if key not in self._seen:
            if len(self._seen) >= _KEPT:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = picture, self._looked_at(picture, self.source_size(picture, size)).cpu()
        return self._seen[key][1]

    @torch.no_grad()
    def _looked_at(self, picture: Image, size: Size) -> Tensor:
        vae, processor = self.pipeline.vae, self.pipeline.image_processor
        pixels = processor.preprocess(processor.resize(to_rgb(picture), *size), *size)
        with self.as_loaded():
            latents = vae.encode(pixels.to(self.device, vae.dtype)).latent_dist.mode()
        return self.packed((latents - vae.config.shift_factor) * vae.config.scaling_factor)
