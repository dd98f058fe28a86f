"""Families whose latents are rows of tokens, with those of pictures to edit behind them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import torch
from PIL.Image import Image
from torch import Tensor

from grpokit import Prompt
from grpokit.images import to_rgb
from grpokit_diffusers.family import PipelineFamily, Text, Told, rows
from grpokit_hf.diffusion.family import Size


class PackedFamily(PipelineFamily):
    """A family whose latents are rows of tokens [n, N, 4 C], each with 2 x 2 numbers of every channel."""

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """See `Family`: tokens, and the numbers of one."""
        return self.tokens(size), self.transformer.config.in_channels

    def grids(self, told: Told) -> list[tuple[int, int]]:
        """Rows and columns of the result's tokens, and of those of each source picture."""
        sources = [(each.shape[1], each.shape[2]) for each in told.sources]
        return [self.grid(told.size), *sources]

    def places(self, told: Told, *, apart: int = 1) -> Tensor:
        """Where the tokens of the result and of source pictures are: [N + M, 3], with number, row and column.

        Args:
            told: with the size and the source pictures.
            apart: from one picture's number to the next one's; the result has 0.
        """
        places = []
        for number, (height, width) in enumerate(self.grids(told)):
            of_picture = torch.tensor([apart * number])
            places.append(torch.cartesian_prod(of_picture, torch.arange(height), torch.arange(width)))
        return torch.cat(places).to(self.device)

    def packed(self, latents: Tensor) -> Tensor:
        """The autoencoder's latents [n, C, h, w] as tokens [n, N, 4 C]."""
        side = self.patch
        cells: Tensor = latents.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # [n, C, h / 2, 2, w / 2, 2]
        return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def unpacked(self, latents: Tensor, size: Size) -> Tensor:
        """Tokens [n, N, 4 C] as the autoencoder reads them: [n, C, h, w]."""
        (height, width), side = self.grid(size), self.patch
        cells = latents.view(len(latents), height, width, -1, side, side)
        apart = cells.permute(0, 3, 1, 4, 2, 5)  # [n, C, rows, side, columns, side]
        return apart.reshape(len(latents), -1, side * height, side * width)

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W] of tokens."""
        return super().decoded(self.unpacked(latents, size), size)

    def looked_at(self, pixels: Tensor) -> Tensor:
        """Tokens [1, N, 4 C] of pixels [1, 3, H, W] between -1 and 1, by the autoencoder."""
        config = self.pipeline.vae.config
        latents = self.pipeline.vae.encode(pixels).latent_dist.mode()
        return self.packed((latents - (config.shift_factor or 0.0)) * config.scaling_factor)


class FilmFamily(PackedFamily):
    """A family whose autoencoder is one for films, and a picture the first and only frame."""

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W] of tokens."""
        mean, std = self.scale(latents)
        frames = (self.unpacked(latents, size) * std + mean)[:, :, None]
        pixels: Tensor = self.pipeline.vae.decode(frames, return_dict=False)[0][:, :, 0]
        return pixels

    def looked_at(self, pixels: Tensor) -> Tensor:
        """Tokens [1, N, 4 C] of pixels [1, 3, H, W]."""
        latents = self.pipeline.vae.encode(pixels[:, :, None]).latent_dist.mode()[:, :, 0]
        mean, std = self.scale(latents)
        return self.packed((latents - mean) / std)

    def scale(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation [1, C, 1, 1] of the autoencoder's latents."""
        config = self.pipeline.vae.config
        mean, std = (
            torch.tensor(x).to(latents)[None, :, None, None] for x in (config.latents_mean, config.latents_std)
        )
        return mean, std


class EditFamily(PackedFamily):
    """A family that looks at source pictures, whose tokens stand behind those that are denoised."""

    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Told:
        """See `Family`."""
        sources = tuple(self.kept(self.source, picture, size)[0] for picture in prompt.images)
        return replace(super().condition(prompt, size, shared), sources=sources)

    def inputs(self, latents: Tensor, told: Told) -> Tensor:
        """Tokens [n, N, 4 C] with those of source pictures behind: [n, N + M, 4 C]."""
        tokens = super().inputs(latents, told)
        sources = (rows(each.flatten(1, 2), len(tokens)).to(tokens) for each in told.sources)
        return torch.cat([tokens, *sources], dim=1)

    def source(self, picture: Image, size: Size) -> Text:
        """The tokens [1, rows, columns, 4 C] of a source picture, for a result of a size."""
        pixels = self.pipeline.image_processor.preprocess(self.prepared(to_rgb(picture), size))
        tokens = self.looked_at(pixels.to(self.device, self.pipeline.vae.dtype))
        return (tokens.unflatten(1, self.grid(pixels.shape[2:])),)

    @abstractmethod
    def prepared(self, picture: Image, size: Size) -> Image:
        """A source picture in RGB as the pipeline resizes it for a result of a size."""


def source_area(size: Size) -> int:
    """The pixels of a source picture, or so: 1024 x 1024, and beside a smaller result as many as that has."""
    return min(1024**2, size[0] * size[1])
