"""Qwen-Image 2.1: text, source pictures and result are one sequence, with the pictures where the text has places."""

from __future__ import annotations

import math
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from grpokit import Prompt
from grpokit.images import to_rgb
from grpokit_diffusers.families.qwen_image_edit import fitted
from grpokit_diffusers.family import Text, Told
from grpokit_diffusers.packed import EditFamily, FilmFamily, source_area
from grpokit_hf.diffusion.family import Schedule, Size


class QwenImage21(EditFamily, FilmFamily):
    """`QwenImage21Pipeline`, which draws without guidance; its pictures have a fourth channel, for transparency."""

    eval_guidance = 1.0
    negative = " "
    sources = 10  # what its authors recommend at most
    patch = 1

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.multiple = 2 * pipeline.vae_scale_factor  # the text has one place for 2 x 2 tokens of a picture

    def schedule(self, steps: int, size: Size) -> Schedule:
        """See `Family`; a model may bring noise levels of its own, for one number of steps."""
        own = self.pipeline.config.sample_sigmas or ()
        return self.scheduled(steps, size, sigmas=own) if len(own) == steps else super().schedule(steps, size)

    def read(self, text: str, prompt: Prompt, size: Size) -> Text:
        """See `PipelineFamily`; pictures are read with both texts."""
        return self.kept(self.encoded_beside, text, tuple(prompt.images), size)

    def encoded(self, text: str) -> Text:
        """See `encoded_beside`."""
        return self.encoded_beside(text, (), (0, 0))

    def encoded_beside(self, text: str, pictures: tuple[Image, ...], size: Size) -> Text:
        """Embeddings [1, L, D] of a text with pictures, and which places are those of pictures [1, L]."""
        seen = [self.prepared(to_rgb(picture), size) for picture in pictures]
        embeddings, _, places = self.pipeline.encode_prompt(text, seen or None, device=self.device)
        return embeddings, places

    def prepared(self, picture: Image, size: Size) -> Image:
        """See `EditFamily`; with four channels, and as of Qwen-Image-Edit."""
        return fitted(self.pipeline, picture.convert("RGBA"), source_area(size))

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """See `PipelineFamily`; sources stand before the result."""
        embeddings, places = told.text
        result, *sources = self.grids(told)
        count = math.prod(result)
        v = self.output(
            hidden_states=latents.roll(-count, 1),
            timestep=times / 1000,
            encoder_hidden_states=embeddings,
            img_shapes=[[(1, *grid) for grid in (*sources, result)]] * len(latents),
            img_mask=torch.cat([places, places.new_ones(len(latents), count // 4)], dim=1),
        )
        return v[:, -count:]
