"""What the families of this package share: schedules, texts that are encoded once, and the autoencoder.

A family does what the pipeline's own `__call__` does, in parts that a policy can call. Someone else's pipeline needs a
class like those in `families/`, and a config that names it.
"""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers import ModelMixin
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from PIL.Image import Image
from torch import Tensor

from grpokit import Prompt, UsageError
from grpokit.data import refuse_pictures
from grpokit.errors import brief, plural
from grpokit_hf.diffusion.family import Family, Schedule, Size
from grpokit_hf.diffusion.kept import Kept
from grpokit_hf.diffusion.latents import painted
from grpokit_hf.diffusion.trained_lora import LoraFile
from grpokit_hf.tokens.reserved import OwnTokens, most_tokens

PIXELS_PER_PASS = 2**18  # of the autoencoder: more at a time take more memory, and little less time
KEPT = 2**32  # bytes of what is made of texts and pictures, in the CPU's memory: 1,024 texts of FLUX.1
Text = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the transformer is told beside latents and time.

    Attributes:
        text: what `encoded` makes of the prompt.
        negative: the same of the text that guidance leads away from; empty where there is none.
        size: height and width of the picture in pixels.
        sources: tokens [1, rows, columns, 4 C] of each picture that the prompt brings.
        guidance: for a transformer that reads it as a number.
    """

    text: Text
    negative: Text
    size: Size
    sources: Sequence[Tensor] = ()
    guidance: float = 1.0


class PipelineFamily(Family):
    """A family around a pipeline of diffusers.

    Args:
        pipeline: with all of its parts.

    Attributes:
        pipeline (DiffusionPipeline): the stock pipeline.
        guidance: of training samples, if a config names none. Where more than it takes a second pass, it says how the
            pipeline counts, too: 1 if guidance is the weight of the text, 0 if it is what is added to a weight of 1.
        eval_guidance: of evaluation, likewise: the pipeline's own.
        negative: the text that a second pass is told, and guidance leads away from; None where guidance is a number
            that the transformer reads.
        sources: how many pictures a prompt may bring.
        needs_source: whether it must bring one.
        schedulers: the classes of schedulers whose levels of noise the family knows.
        optional: parts that a pipeline of this family can do without.
        unused: parts that are not needed here, and not loaded.
        patch: a token of the transformer is `patch` x `patch` numbers of each of the latents' channels.
        tokenizer: the part of the pipeline that counts the tokens of a text.
        text_tokens: of every text that the transformer reads; None where these are as many as the text has.
        longest_text: the most tokens that the pipeline reads of a text, as `text_length` counts them; it cuts off the
            rest. None where it reads every text whole.
        max_shift: what diffusers takes for a scheduler's `max_shift` that its configuration does not name.
    """

    transformer: ModelMixin
    guidance: ClassVar[float] = 1.0
    eval_guidance: ClassVar[float]
    negative: str | None = ""
    sources: ClassVar[int] = 0
    needs_source: ClassVar[bool] = False
    schedulers: ClassVar[Sequence[str]] = ("FlowMatchEulerDiscreteScheduler",)
    optional: ClassVar[Sequence[str]] = ()
    unused: ClassVar[Sequence[str]] = ()
    patch: ClassVar[int] = 2
    tokenizer: str = "tokenizer"
    text_tokens: ClassVar[int | None] = None
    longest_text: int | None = None
    max_shift: ClassVar[float] = 1.15

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.transformer = pipeline.transformer
        self.multiple = self.patch * pipeline.vae_scale_factor
        self._kept = Kept(KEPT)

    @property
    def device(self) -> torch.device:
        """Where the transformer is."""
        return self.transformer.device

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts with tokens of the pipeline's own, or too many, and those whose pictures it cannot use."""
        name = type(self.pipeline).__name__
        if not self.sources:
            refuse_pictures(prompts, name, otherwise="For edits take a pipeline for edits, such as FLUX.2 [klein].")
        for prompt in prompts:
            for own in self._own:
                own.refuse(prompt.text)
            self._check_length(prompt.text)
            if len(prompt.images) > self.sources > 0:
                raise UsageError(
                    f"{name} reads at most {plural(self.sources, 'picture')} with a prompt; {brief(prompt.text)} "
                    f"brings {len(prompt.images)}. Leave the others out."
                )
            if self.needs_source and not prompt.images:
                raise UsageError(
                    f"{name} edits a picture, and {brief(prompt.text)} brings none. Name the column of the source "
                    "pictures, as in data.columns.image=source, or their folder as data.images."
                )

    @cached_property
    def _own(self) -> list[OwnTokens]:
        """The tokens that end or pad texts, of each of the tokenizers."""
        own = ("tokenizer", "processor")
        parts = (part for name, part in self.pipeline.components.items() if name.startswith(own))
        tokenizers = [getattr(part, "tokenizer", part) for part in parts if part is not None]  # of a processor
        return [OwnTokens(tokenizer, tokenizer.all_special_ids) for tokenizer in tokenizers]

    def _check_length(self, text: str) -> None:
        limit = self.longest_text
        if not self._own or limit is None or most_tokens(text) + self._around <= limit:
            return
        tokens = self.text_length(text)
        if tokens > limit:
            raise UsageError(
                f"The prompt {brief(text, most=60)} has {plural(tokens, 'token')} with what the pipeline puts around "
                f"it, and {type(self.pipeline).__name__} reads at most {limit:,}. Shorten it or leave the prompt out."
            )

    @cached_property
    def _around(self) -> int:
        """The tokens around a text."""
        return self.text_length("x")

    def text_length(self, text: str) -> int:
        """The tokens of a text, with those that the pipeline puts around it."""
        return len(getattr(self.pipeline, self.tokenizer)(self.whole_text(text), verbose=False).input_ids)

    def whole_text(self, text: str) -> str:
        """A text with what the pipeline puts around it."""
        return text

    def schedule(self, steps: int, size: Size) -> Schedule:
        """See `Family`: evenly from 1 to 1 / steps, shifted as the scheduler's configuration says."""
        return self.scheduled(steps, size, sigmas=np.linspace(1.0, 1 / steps, steps))

    def scheduled(self, steps: int, size: Size, *, sigmas: Any = None, times: Any = None) -> Schedule:
        """The scheduler's steps.

        Args:
            steps: how many.
            size: height and width of the picture in pixels, by which some schedules are shifted.
            sigmas: [steps] to shift; None for the scheduler's own.
            times: [steps] that the transformer is told; None for 1000 times the shifted sigmas.
        """
        scheduler = type(self.pipeline.scheduler).from_config(self.pipeline.scheduler.config)
        shift = {"mu": self.shift(steps, size)} if scheduler.config.use_dynamic_shifting else {}
        given = {"num_inference_steps": steps} if sigmas is None else {"sigmas": sigmas}
        scheduler.set_timesteps(**given, timesteps=times, **shift)
        return Schedule(sigmas=scheduler.sigmas.double(), times=scheduler.timesteps.float())

    def shift(self, steps: int, size: Size) -> float:
        """How far a schedule is shifted towards noise, where the scheduler's configuration says that it is."""
        config = self.pipeline.scheduler.config
        shift: float = calculate_shift(
            self.tokens(size),
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", self.max_shift),
        )
        return shift

    def tokens(self, size: Size) -> int:
        """How many tokens the transformer has for a picture."""
        return math.prod(self.grid(size))

    def grid(self, size: Size) -> tuple[int, int]:
        """Rows and columns of these tokens."""
        side = self.patch * self.pipeline.vae_scale_factor
        return size[0] // side, size[1] // side

    def picture_tokens(self, size: Size) -> int:
        """How many tokens of the text a source picture becomes; `grpokit plan` counts one picture."""
        return 0

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """See `Family`: channels, height and width."""
        scale = self.pipeline.vae_scale_factor
        return self.transformer.config.in_channels, size[0] // scale, size[1] // scale

    def condition(self, prompt: Prompt, size: Size, shared: Mapping[str, Tensor]) -> Told:
        """See `Family`."""
        text = self.read(prompt.text, prompt, size)
        negative = () if self.negative is None else self.read_negative(self.negative, prompt, size)
        return Told(text=text, negative=negative, size=size)

    def read(self, text: str, prompt: Prompt, size: Size) -> Text:
        """What `encoded` makes of a prompt's text."""
        return self.kept(self.encoded, text)

    def read_negative(self, text: str, prompt: Prompt, size: Size) -> Text:
        """The same of the text that guidance leads away from; some pipelines put less around it."""
        return self.read(text, prompt, size)

    def kept(self, make: Callable[..., Text], *given: Any) -> Text:
        """What `make` gives of texts, sizes and pictures, on the device; it is made once, and kept as long as it fits.

        Args:
            make: a method of the family.
            given: its arguments.
        """
        return tuple(part.to(self.device, non_blocking=True) for part in self._kept(self._made, make.__name__, *given))

    def _made(self, method: str, *given: Any) -> Text:
        """What a method of the family gives, in the CPU's memory."""
        with torch.no_grad(), self.as_loaded():
            return tuple(part.cpu() for part in getattr(self, method)(*given))

    @abstractmethod
    def encoded(self, text: str) -> Text:
        """What the transformer reads of a text, by the pipeline's own encoders: tensors of one row [1, ...]."""

    def velocity(self, latents: Tensor, time: Tensor, condition: Told, *, guidance: float) -> Tensor:
        """See `Family`: of one pass, or where guidance asks for it of two."""
        told = replace(condition, guidance=guidance)
        texts = [condition.text]
        if condition.negative and guidance > self.guidance:
            texts.append(condition.negative)
        times = time.to(latents.device, non_blocking=True).expand(len(latents))
        passes = self.passes(self.inputs(latents, told), times, told, texts)
        velocities = [v[:, : latents.shape[1]].float() for v in passes]
        if len(velocities) == 1:
            return velocities[0]
        v, away = velocities
        return self.guided(v, away, guidance)

    def inputs(self, latents: Tensor, told: Told) -> Tensor:
        """Latents [n, ...] as the transformer reads them."""
        return latents.to(self.transformer.dtype)

    def passes(self, latents: Tensor, times: Tensor, told: Told, texts: Sequence[Text]) -> Sequence[Tensor]:
        """What `predicted` gives for one text or two, by one call after the other."""
        velocities = []
        for text in texts:
            own = tuple(rows(part, len(latents)) for part in text)
            velocities.append(self.predicted(latents, times, replace(told, text=own)))
        return velocities

    def predicted(self, latents: Tensor, times: Tensor, told: Told) -> Tensor:
        """What the transformer predicts for one text, as noise minus data: [n, ...], of any type.

        Args:
            latents: [n, ...], as the transformer reads them.
            times: [n] fp32, the scheduler's: 1000 at noise, and 0 at data.
            told: with a `text` of n rows.
        """
        raise NotImplementedError

    def output(self, **inputs: Any) -> Tensor:
        """The transformer's output for inputs in its own names."""
        output: Tensor = self.transformer(**inputs, return_dict=False)[0]
        return output

    def guided(self, v: Tensor, away: Tensor, guidance: float) -> Tensor:
        """Velocities [n, ...] of two passes in one.

        Args:
            v: with the text.
            away: with the text `negative`, from which guidance leads away.
            guidance: as the pipeline counts it.
        """
        start = v if self.guidance == 0 else away
        return start + guidance * (v - away)

    def pictures(self, latents: Tensor, size: Size) -> Sequence[Image | None]:
        """See `Family`; a few at a time."""
        latents = latents.to(self.pipeline.vae.dtype)
        return painted(latents, lambda part: self.decoded(part, size), self.pipeline, size=size, most=PIXELS_PER_PASS)

    def decoded(self, latents: Tensor, size: Size) -> Tensor:
        """Pixels [n, 3, H, W] of latents [n, ...]."""
        config = self.pipeline.vae.config
        pixels: Tensor = self.pipeline.vae.decode(
            latents / config.scaling_factor + (config.get("shift_factor") or 0.0), return_dict=False
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


def rows(part: Tensor, count: int) -> Tensor:
    """One row [1, ...] as often as there are latents: [count, ...]; a view would be rounded in another way."""
    return part.repeat(count, *[1] * (part.ndim - 1))


def as_long(v: Tensor, other: Tensor) -> Tensor:
    """Velocities [..., D] with the length of others in their last dimension."""
    shortening: Tensor = other.norm(dim=-1, keepdim=True) / v.norm(dim=-1, keepdim=True)
    return v * shortening


def chat(tokenizer: Any, text: str, **options: Any) -> str:
    """What a tokenizer's template makes of a text that a user says, and of the beginning of an answer."""
    messages = [{"role": "user", "content": text}]
    whole: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    return whole
