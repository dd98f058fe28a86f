"""What the families of this package share: schedules, texts that are encoded once, and the autoencoder.

A family does what the pipeline's own `__call__` does, in parts that a policy can call. Someone else's pipeline needs a
class like those in `families/`, and a config that names it.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from PIL.Image import Image
from torch import Tensor

from grpokit import Prompt, UsageError
from grpokit.data import refuse_pictures
from grpokit.errors import shown
from grpokit_hf.diffusion.family import Family, Schedule, Size
from grpokit_hf.diffusion.latents import painted
from grpokit_hf.diffusion.trained_lora import LoraFile
from grpokit_hf.tokens.reserved import OwnTokens

PIXELS_PER_PASS = 2**18  # of the autoencoder: more at a time take more memory, and little less time
Text = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the transformer is told beside latents and time.

    Attributes:
        text: what `encoded` makes of the prompt.
        negative: the same of the text that guidance leads away from; empty where there is none.
        size: height and width of the picture in pixels.
        source: what is seen of a picture to edit.
    """

    text: Text
    negative: Text
    size: Size
    source: Any = None


class PipelineFamily(Family):
    """A family around a pipeline of diffusers.

    Args:
        pipeline: with all of its parts.

    Attributes:
        pipeline: as it was given.
        guidance: of training samples, if a config names none.
        eval_guidance: of evaluation, likewise: the pipeline's own.
        negative: the text that guidance leads away from; None where guidance is a number that the transformer reads.
        sources: how many pictures a prompt may bring.
        optional: parts that a pipeline of this family can do without.
        text_tokens: of every text that the transformer reads; None where these are as many as the text has.
        max_shift: what diffusers takes for a scheduler's `max_shift` that its configuration does not name.
    """

    guidance: ClassVar[float] = 1.0
    eval_guidance: ClassVar[float]
    negative: ClassVar[str | None] = ""
    sources: ClassVar[int] = 0
    optional: ClassVar[Sequence[str]] = ()
    text_tokens: ClassVar[int | None] = None
    max_shift: ClassVar[float] = 1.15

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.transformer = pipeline.transformer
        self.multiple = 2 * pipeline.vae_scale_factor  # a token of the transformer is 2 x 2 numbers of each channel
        self._texts = lru_cache(maxsize=1024)(self._read)

    @property
    def device(self) -> torch.device:
        """Where the transformer is."""
        device: torch.device = self.transformer.device
        return device

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts with tokens of the pipeline's own, or with pictures that it does not look at."""
        name = type(self.pipeline).__name__
        if not self.sources:
            refuse_pictures(prompts, name, otherwise="For edits take a pipeline for edits, such as FLUX.1 Kontext.")
        for prompt in prompts:
            for own in self._own:
                own.refuse(prompt.text)
            if len(prompt.images) > self.sources > 0:
                raise UsageError(
                    f"{name} reads one picture with a prompt; {shown(prompt.text)} brings {len(prompt.images)}. Leave "
                    "the others out."
                )

    @cached_property
    def _own(self) -> list[OwnTokens]:
        """The tokens that end or pad texts, of each of the tokenizers."""
        parts = (part for name, part in self.pipeline.components.items() if name.startswith("tokenizer"))
        return [OwnTokens(tokenizer, tokenizer.all_special_ids) for tokenizer in parts if tokenizer is not None]

    def schedule(self, steps: int, size: Size) -> Schedule:
        """See `Family`: evenly from 1 to 1 / steps, shifted as the scheduler's configuration says."""
        return self.scheduled(steps, size, sigmas=np.linspace(1.0, 1 / steps, steps))

    def scheduled(self, steps: int, size: Size, *, sigmas: Any = None) -> Schedule:
        """The scheduler's steps.

        Args:
            steps: how many.
            size: height and width of the picture in pixels, by which some schedules are shifted.
            sigmas: [steps] to shift; None for the scheduler's own.
        """
        scheduler = type(self.pipeline.scheduler).from_config(self.pipeline.scheduler.config)
        config = scheduler.config
        mu = calculate_shift(
            self.tokens(size),
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", self.max_shift),
        )
        given = {"num_inference_steps": steps} if sigmas is None else {"sigmas": sigmas}
        scheduler.set_timesteps(**given, **({"mu": mu} if config.use_dynamic_shifting else {}))
        return Schedule(sigmas=scheduler.sigmas.double(), times=scheduler.timesteps.float())

    def tokens(self, size: Size) -> int:
        """How many tokens the transformer has for a picture."""
        return size[0] // self.multiple * (size[1] // self.multiple)

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """See `Family`: channels, height and width."""
        scale = self.pipeline.vae_scale_factor
        return self.transformer.config.in_channels, size[0] // scale, size[1] // scale

    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Told:
        """See `Family`."""
        text = self._there(self._texts(prompt.text))
        negative = () if self.negative is None else self._there(self._texts(self.negative))
        return Told(text=text, negative=negative, size=size)

    @abstractmethod
    def encoded(self, text: str) -> Text:
        """What the transformer reads of a text, by the pipeline's own encoders: tensors of one row."""

    def pictures(self, latents: Tensor, size: Size) -> list[Image]:
        """See `Family`; a few at a time."""
        latents, processor = latents.to(self.pipeline.vae.dtype), self.pipeline.image_processor
        return painted(latents, lambda part: self.decoded(part, size), processor, size=size, most=PIXELS_PER_PASS)

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W] of latents [n, ...]."""
        config = self.pipeline.vae.config
        pixels: Tensor = self.pipeline.vae.decode(
            latents / config.scaling_factor + (config.shift_factor or 0.0), return_dict=False
        )[0]
        return pixels

    def lora_of(self, file: Path) -> LoraFile:
        """See `Family`; in all names that the pipeline's own `load_lora_weights` reads."""
        read = getattr(self.pipeline, "lora_state_dict", None)
        if read is None:
            return super().lora_of(file)
        options: dict[str, Any] = {"weight_name": file.name, "use_safetensors": True, "local_files_only": True}
        if "return_alphas" in inspect.signature(read).parameters:
            tensors, alphas, metadata = read(str(file.parent), return_alphas=True, return_lora_metadata=True, **options)
        else:
            tensors, metadata = read(str(file.parent), return_lora_metadata=True, **options)
            alphas = {}
        return LoraFile(tensors=tensors | (alphas or {}), metadata=metadata or {})

    def as_loaded(self) -> torch.autocast:
        """Inside, no mixed precision: texts are kept for later, and autoencoders lose what they need."""
        return torch.autocast(self.device.type, enabled=False)

    def _read(self, text: str) -> Text:
        with torch.no_grad(), self.as_loaded():
            return tuple(part.cpu() for part in self.encoded(text))

    def _there(self, text: Text) -> Text:
        return tuple(part.to(self.device, non_blocking=True) for part in text)


class PackedFamily(PipelineFamily):
    """A family whose latents are rows of tokens [n, N, 4 C], each with 2 x 2 numbers of every channel."""

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """See `Family`: tokens, and the numbers of one."""
        return self.tokens(size), self.transformer.config.in_channels

    def grid(self, size: Size) -> tuple[int, int]:
        """Rows and columns of tokens."""
        return size[0] // self.multiple, size[1] // self.multiple

    def packed(self, latents: Tensor) -> Tensor:
        """The autoencoder's latents [n, C, h, w] as tokens [n, N, 4 C]."""
        cells = latents.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))  # [n, C, h / 2, 2, w / 2, 2]
        return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def unpacked(self, latents: Tensor, size: Size) -> Tensor:
        """Tokens [n, N, 4 C] as the autoencoder reads them: [n, C, h, w]."""
        height, width = self.grid(size)
        cells = latents.view(len(latents), height, width, -1, 2, 2)
        return cells.permute(0, 3, 1, 4, 2, 5).reshape(len(latents), -1, 2 * height, 2 * width)


def rows(part: Tensor, count: int) -> Tensor:
    """One row [1, ...] as often as there are latents: [count, ...]; a view would be rounded in another way."""
    return part.repeat(count, *[1] * (part.ndim - 1))
