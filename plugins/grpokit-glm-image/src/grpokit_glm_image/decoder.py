"""Makes the pictures of visual tokens, by the diffusion decoder of a GLM-Image pipeline.

The tokens of a grid say what is where; a diffusion transformer paints that, starting from noise, and an autoencoder
turns the result into pixels. The stock pipeline does the same in `pipe(prior_token_ids=...)`, with equal pictures. Here
what a group shares is computed once (the glyphs of its prompt, and what the transformer sees of source pictures), and
the noise comes from seeds: the global random state is neither read nor changed.

Each prompt is decoded by itself. Together, prompts with texts of different length would change each other's pictures,
since the transformer ignores the mask of padded glyphs (diffusers 0.42, issue 13587).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from PIL.Image import Image, Resampling
from torch import Tensor

from grpokit import Prompt, Seeds, UsageError
from grpokit.registry.settings import read_settings
from grpokit.settings import Settings
from grpokit_glm_image.grids import PIXELS, Grid, Target
from grpokit_glm_image.painter import Painter, Told
from grpokit_hf.diffusion.latents import noise

TOKENS_PER_PASS = 2**15  # of the transformer: 8 pictures of 1024 x 1024, some 4 GB in the released model


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(Settings):
    """The keys of `decode` and `eval_decode`.

    Attributes:
        steps: of denoising; the time of a picture is proportional to it.
        guidance: how much the prompt and its tokens are exaggerated; 1 for not at all, which takes half the time.
        tokens: make the picture of the "large" grid, or of the "draft", which shows the same at about 512 x 512.
        size: height and width of the picture in pixels, multiples of 32; None for 32 a token. The tokens are the same.
        reward_size: height and width to which pictures are shrunk before anybody sees them, for rewards that need no
            more; None leaves them as they are.
        noise: "group": the samples of a prompt begin with the same noise, so only tokens make them differ; "row": each
            has its own.
        rows: the most pictures in one pass of the transformer; None for 8 of 1024 x 1024, and more of smaller ones.
    """

    steps: Annotated[int, Ge(1), Le(1000)] = 50
    guidance: Annotated[float, Ge(1)] = 1.5
    tokens: Literal["large", "draft"] = "large"
    size: Sequence[int] | None = None
    reward_size: Sequence[int] | None = None
    noise: Literal["group", "row"] = "group"
    rows: Annotated[int, Ge(1)] | None = None

    def check_together(self) -> None:
        """Refuse sizes that no picture can have.

        Raises:
            UsageError: with what was expected.
        """
        if self.size is not None:
            check_size(self.size)
        sides = (1, 1) if self.reward_size is None else self.reward_size
        if len(sides) != 2 or min(sides) < 1:
            raise UsageError(
                f"reward_size must be height and width in pixels, such as [512, 512]; got {self.reward_size!r}."
            )

    @classmethod
    def read(cls, given: Mapping[str, Any], *, key: str, steps: int = 50) -> DecodeSettings:
        """The settings of a mapping, such as {"steps": 10, "guidance": 1.0}.

        Args:
            given: field -> value.
            key: what the config calls it.
            steps: where the mapping does not say.

        Raises:
            UsageError: a key is unknown, or a value is out of bounds.
        """
        settings = read_settings(cls, given, key=key, example="{steps: 10, guidance: 1.0}")
        return settings if "steps" in given else replace(settings, steps=steps)

    def grid(self, target: Target) -> Grid:
        """The grid whose picture is made.

        Raises:
            UsageError: the picture has no such grid.
        """
        grid = target.draft if self.tokens == "draft" else target.large
        if grid is None:
            raise UsageError("tokens is 'draft', and an edit has no draft. Leave it out, or set it to 'large'.")
        return grid

    def resolution(self, target: Target) -> tuple[int, int]:
        """Height and width in pixels of the picture.

        Raises:
            UsageError: the picture has no such grid, or `size` would distort it.
        """
        grid = self.grid(target)
        own = grid.rows * PIXELS, grid.columns * PIXELS
        if self.size is None:
            return own
        height, width = self.size
        _check_shape("size", (height, width), own, of=f"the {self.tokens} grid's picture")
        return height, width

    def check(self, target: Target) -> None:
        """Refuse settings that do not fit a picture.

        Raises:
            UsageError: the picture has no such grid, or `size` or `reward_size` would distort it.
        """
        resolution = self.resolution(target)
        if self.reward_size is not None:
            height, width = self.reward_size
            _check_shape("reward_size", (height, width), resolution, of="the picture")


def _check_shape(key: str, size: tuple[int, int], own: tuple[int, int], *, of: str) -> None:
    stretch = (size[0] / size[1]) / (own[0] / own[1])
    if not 0.8 <= stretch <= 1.25:  # a draft has not quite the shape of its picture
        raise UsageError(
            f"{key} is {size[0]} x {size[1]}, and {of} has the shape of {own[0]} x {own[1]}. Give a size of that shape."
        )


def check_size(size: Sequence[int], *, key: str = "size") -> tuple[int, int]:
    """Height and width in pixels.

    Args:
        size: whole numbers.
        key: what the config calls it.

    Raises:
        UsageError: these are not two positive multiples of 32.
    """
    if len(size) != 2 or any(side < PIXELS or side % PIXELS for side in size):
        near = ""
        if len(size) == 2:
            near = f" The nearest is {[max(1, round(side / PIXELS)) * PIXELS for side in size]}."
        raise UsageError(
            f"{key} must be height and width in pixels, both positive multiples of {PIXELS}, such as [1024, 1024]; got "
            f"{size!r}.{near}"
        )
    return size[0], size[1]


def check_eval_size(eval_size: Any, size: Any) -> None:
    """Refuse a size of evaluation at which the tokens of a picture would be distorted.

    Args:
        eval_size: what a config gives; None for `size`.
        size: likewise, of the picture whose tokens are written.

    Raises:
        UsageError: one is no size, or they have different shapes.
    """
    own = check_size(size)
    if eval_size is not None:
        _check_shape("eval_size", check_size(eval_size, key="eval_size"), own, of="the picture of the tokens")


class Decoder:
    """The diffusion decoder of a pipeline, which makes pictures of visual tokens.

    Args:
        painter: the pipeline's diffusion half.
    """

    def __init__(self, painter: Painter) -> None:
        self.painter = painter

    @torch.no_grad()
    def pictures(
        self,
        tokens: Tensor,
        prompts: Sequence[Prompt],
        *,
        seeds: Seeds,
        settings: DecodeSettings,
        target: Target,
        source_codes: Sequence[Sequence[Tensor]] = (),
    ) -> list[Image | None]:
        """The pictures of B = P * G rows of tokens, prompt by prompt.

        Args:
            tokens: [B, T] codes: the draft, if there is one, and the large grid.
            prompts: P.
            seeds: of the noise.
            settings: how to decode.
            target: the grids of the tokens.
            source_codes: for an edit: for each prompt the codes of its pictures, as
                `source_pictures.source_codes` returns them.
        """
        painter, size, grid = self.painter, settings.resolution(target), settings.grid(target)
        codes = tokens[:, target.part(settings.tokens)].unflatten(1, (grid.rows, grid.columns))
        prior = painter.prior(codes, size)  # [B, transformer's tokens]
        group = len(tokens) // len(prompts)
        passes = math.ceil(group / (settings.rows or max(1, TOKENS_PER_PASS // prior.shape[1])))
        pictures: list[Image | None] = []
        with torch.autocast(painter.device.type, enabled=False):  # the autoencoder overflows in float16
            for index, (prompt, rows) in enumerate(zip(prompts, prior.split(group), strict=True)):
                own = seeds.row[index * group :][:group] if settings.noise == "row" else seeds.group[index : index + 1]
                noise = self.noise(own, *size).expand(group, -1, -1, -1)
                sources = painter.sources(prompt.images, source_codes[index]) if source_codes else None
                for some, start in zip(rows.tensor_split(passes), noise.tensor_split(passes), strict=True):
                    told = painter.told(prompt, some, size, sources=sources)
                    pictures += painter.pictures(self._clean(start, told, settings), size)
        if settings.reward_size is None:
            return pictures
        height, width = settings.reward_size
        return [picture and picture.resize((width, height), Resampling.LANCZOS) for picture in pictures]

    def noise(self, seeds: Tensor, height: int, width: int) -> Tensor:
        """Noise [n, C, h, w] on the device."""
        return noise(seeds, self.painter.latent_shape((height, width)), device=self.painter.device)

    def _clean(self, latents: Tensor, told: Told, settings: DecodeSettings) -> Tensor:
        """Latents [n, C, h, w] without noise, by the pipeline's own scheduler."""
        scheduler, times = self.painter.scheduler(settings.steps, told.size)
        for time in times:
            flow = self.painter.velocity(latents, time, told, guidance=settings.guidance)
            latents = scheduler.step(flow, time, latents, return_dict=False)[0]
        return latents
