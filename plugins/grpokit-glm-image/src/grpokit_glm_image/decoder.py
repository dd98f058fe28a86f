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
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from diffusers import GlmImagePipeline
from diffusers.models.transformers.transformer_glm_image import GlmImageKVCache
from diffusers.pipelines.glm_image.pipeline_glm_image import calculate_shift, retrieve_timesteps
from PIL.Image import Image, Resampling
from torch import Tensor
from torch.nn.functional import interpolate

from grpokit import Prompt, Seeds, UsageError, knobs
from grpokit.hf.settings import read_settings
from grpokit.images import to_rgb
from grpokit.sampling import normals
from grpokit_glm_image.grids import PIXELS, Grid, Target

_FINE = 16  # pixels of a picture's side, for one token of the transformer
TOKENS_PER_PASS = 2**15  # of the transformer: 8 pictures of 1024 x 1024, some 4 GB in the released model
PIXELS_PER_PASS = 2**16  # of the autoencoder: more at a time take more memory, and no less time
_BEHIND_THE_TOKENS = 2**40  # a row's earlier random numbers draw its tokens


@dataclass(frozen=True, kw_only=True)
class DecodeSettings:
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

    def __post_init__(self) -> None:
        knobs.check(self)
        if self.size is not None:
            check_size(self.size)
        if self.reward_size is not None:
            whole = isinstance(self.reward_size, Sequence) and all(type(side) is int for side in self.reward_size)
            if not whole or len(self.reward_size) != 2 or min(self.reward_size) < 1:
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


def check_size(size: Any, *, key: str = "size") -> tuple[int, int]:
    """Height and width in pixels.

    Args:
        size: what a config gives.
        key: what the config calls it.

    Raises:
        UsageError: these are not two positive multiples of 32.
    """
    whole = isinstance(size, Sequence) and not isinstance(size, str) and all(type(side) is int for side in size)
    if not whole or len(size) != 2 or any(side < PIXELS or side % PIXELS for side in size):
        near = ""
        if whole and len(size) == 2:
            near = f" The nearest is {[max(1, round(side / PIXELS)) * PIXELS for side in size]}."
        raise UsageError(
            f"{key} must be height and width in pixels, both positive multiples of {PIXELS}, such as [1024, 1024]; got "
            f"{size!r}.{near}"
        )
    return size[0], size[1]


class Decoder:
    """The diffusion decoder of a pipeline.

    Args:
        pipeline: with its transformer, autoencoder, text encoder, tokenizer and scheduler. The autoregressive half is
            not used and may be absent.
    """

    def __init__(self, pipeline: GlmImagePipeline) -> None:
        self._pipeline = pipeline
        self._glyphs = lru_cache(maxsize=1024)(self._encoded)

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
    ) -> list[Image]:
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
        height, width = settings.resolution(target)
        grid = settings.grid(target)
        codes = tokens[:, target.part(settings.tokens)].unflatten(1, (grid.rows, grid.columns))
        prior = _resampled(codes.to(self._device), height // _FINE, width // _FINE)  # [B, transformer's tokens]
        group = len(tokens) // len(prompts)
        passes = math.ceil(group / (settings.rows or max(1, TOKENS_PER_PASS // prior.shape[1])))
        pictures: list[Image] = []
        with torch.autocast(self._device.type, enabled=False):  # the autoencoder overflows in float16
            for index, (prompt, rows) in enumerate(zip(prompts, prior.split(group), strict=True)):
                own = seeds.row[index * group :][:group] if settings.noise == "row" else seeds.group[index : index + 1]
                noise = self.noise(own, height, width).expand(group, -1, -1, -1)
                sources = self._sources(prompt, source_codes[index]) if source_codes else None
                for some, start in zip(rows.tensor_split(passes), noise.tensor_split(passes), strict=True):
                    pictures += self._painted(start, some, prompt, settings, sources)
        if settings.reward_size is None:
            return pictures
        height, width = settings.reward_size
        return [picture.resize((width, height), Resampling.LANCZOS) for picture in pictures]

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._pipeline.transformer.device
        return device

    def _encoded(self, text: str) -> Tensor:
        """The glyphs [1, L, D] of what stands in quotes in a text; of nothing if there are no quotes."""
        embeddings: Tensor = self._pipeline.encode_prompt(
            text, do_classifier_free_guidance=False, device=self._device, dtype=self._pipeline.transformer.dtype
        )[0]
        return embeddings

    def noise(self, seeds: Tensor, height: int, width: int) -> Tensor:
        """Noise [n, C, h, w] on the device; drawn on the CPU, so that it is the same for every device and batch."""
        scale = self._pipeline.vae_scale_factor
        shape = (self._pipeline.transformer.config.in_channels, height // scale, width // scale)
        flat = normals(seeds.cpu(), math.prod(shape), start=_BEHIND_THE_TOKENS)
        return flat.float().unflatten(1, shape).to(self._device)

    def _sources(self, prompt: Prompt, codes: Sequence[Tensor]) -> GlmImageKVCache:
        """What the transformer's attention remembers of the source pictures, for all samples of a prompt."""
        pipeline, transformer = self._pipeline, self._pipeline.transformer
        mean, std = self._scale()
        memory = GlmImageKVCache(num_layers=transformer.config.num_layers)
        memory.set_mode("write")
        for picture, own in zip(prompt.images, codes, strict=True):
            width, height = picture.size
            pixels = pipeline.image_processor.preprocess(to_rgb(picture), height=height, width=width)
            latents = pipeline.vae.encode(pixels.to(self._device, pipeline.vae.dtype)).latent_dist.mode()
            grid = own.to(self._device).view(1, height // PIXELS, width // PIXELS)
            prior = _resampled(grid, height // _FINE, width // _FINE)
            transformer(
                hidden_states=((latents - mean) / std).to(transformer.dtype),
                encoder_hidden_states=self._glyphs("")[:, :0],
                prior_token_id=prior,
                prior_token_drop=torch.zeros_like(prior, dtype=torch.bool),
                timestep=torch.zeros(1, device=self._device),
                target_size=torch.tensor([[height, width]], device=self._device),
                crop_coords=torch.zeros(1, 2, device=self._device),
                kv_caches=memory,
            )
        return memory

    def _painted(
        self, noise: Tensor, prior: Tensor, prompt: Prompt, settings: DecodeSettings, sources: GlmImageKVCache | None
    ) -> list[Image]:
        """Pictures from noise [n, C, h, w] and the transformer's tokens [n, N]."""
        transformer = self._pipeline.transformer
        scale = self._pipeline.vae_scale_factor
        rows, size = len(noise), [side * scale for side in noise.shape[2:]]
        sizes = torch.tensor([size], dtype=transformer.dtype, device=noise.device).expand(rows, -1)

        def velocity(latents: Tensor, time: Tensor, text: str, *, conditional: bool) -> Tensor:
            if sources is not None:
                sources.set_mode("read" if conditional else "skip")
            flow: Tensor = transformer(
                hidden_states=latents.to(transformer.dtype),
                encoder_hidden_states=self._glyphs(text).repeat(rows, 1, 1),  # a view would be rounded in another way
                prior_token_id=prior,
                prior_token_drop=torch.full_like(prior, not conditional, dtype=torch.bool),
                timestep=time.expand(rows) - 1,
                target_size=sizes,
                crop_coords=torch.zeros_like(sizes),
                kv_caches=sources,
                return_dict=False,
            )[0]
            return flow.float()

        scheduler, times = self._schedule(settings.steps, tokens=prior.shape[1])
        latents = noise
        for time in times:
            flow = velocity(latents, time, prompt.text, conditional=True)
            if settings.guidance > 1:
                unguided = velocity(latents, time, "", conditional=False)
                flow = unguided + settings.guidance * (flow - unguided)
            latents = scheduler.step(flow, time, latents, return_dict=False)[0]
        return self._pixels(latents)

    def _schedule(self, steps: int, *, tokens: int) -> tuple[Any, Tensor]:
        """A scheduler of its own, and the times that the transformer is told.

        The scheduler shifts its noise levels for the size of the picture. The times stay as they are.
        """
        scheduler = type(self._pipeline.scheduler).from_config(self._pipeline.scheduler.config)
        config = scheduler.config
        times = np.linspace(config.num_train_timesteps, 1.0, steps + 1)[:-1].astype(np.int64).astype(np.float32)
        shift = calculate_shift(tokens, config.base_image_seq_len, config.base_shift, config.max_shift)
        levels = times / config.num_train_timesteps
        return scheduler, retrieve_timesteps(scheduler, steps, self._device, times, levels, mu=shift)[0]

    def _pixels(self, latents: Tensor) -> list[Image]:
        """Pictures of latents [n, C, h, w], a few at a time."""
        vae, scale = self._pipeline.vae, self._pipeline.vae_scale_factor
        mean, std = self._scale()
        some = max(1, PIXELS_PER_PASS // (latents[0, 0].numel() * scale**2))
        pictures: list[Image] = []
        for part in (latents.to(vae.dtype) * std + mean).split(some):
            pixels = vae.decode(part, return_dict=False)[0]
            pictures += self._pipeline.image_processor.postprocess(pixels, output_type="pil")
        return pictures

    def _scale(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [1, C, 1, 1] of the autoencoder's latents."""
        vae = self._pipeline.vae
        both = (vae.config.latents_mean, vae.config.latents_std)
        mean, std = (torch.tensor(x, dtype=vae.dtype, device=self._device)[None, :, None, None] for x in both)
        return mean, std


def _resampled(codes: Tensor, rows: int, columns: int) -> Tensor:
    """Codes [n, h, w] on another grid, each cell with the code at its place: [n, rows * columns]."""
    return interpolate(codes[:, None].float(), size=(rows, columns), mode="nearest").long().flatten(1)
