"""The settings of both halves, for policies, readers and plans. No model is needed to refuse them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch

from grpokit import UsageError
from grpokit.registry.synonyms import hint
from grpokit.settings import Count, NotNegative
from grpokit_glm_image.decoder import DecodeSettings, check_eval_size, check_size
from grpokit_glm_image.grids import Target, target_of
from grpokit_hf.diffusion.settings import FlowSettings, Steps
from grpokit_hf.models import dtypes
from grpokit_hf.models.settings import LoadingSettings, ModelSettings
from grpokit_hf.tokens.sampler import SamplerSettings

Offload: TypeAlias = Literal["none", "idle"]


@dataclass(frozen=True)
class PipelineSettings(LoadingSettings):
    """A GLM-Image, and how it is loaded.

    Attributes:
        model: a hub id, a folder that `GlmImagePipeline.save_pretrained` wrote, a folder in a package such as
            "grpokit_glm_image:models/glyph", "tiny" for a random 1 MB model, or a pipeline object.
        size: height and width of the pictures in pixels, multiples of 32.
        edits: each prompt brings pictures to edit, which both halves see. Without, the vision tower is not loaded.
        dtype: of the weights: "auto", "float32" or "bfloat16".
        quantization: "4bit" or "8bit", for the blocks of both halves, where an adapter trains.
        offload: "idle" moves the half that is not at work to the CPU, except trainable weights; "none" keeps both
            on the device.
    """

    model: Any = "zai-org/GLM-Image"
    _: KW_ONLY
    size: Sequence[int] = (1024, 1024)
    edits: bool = False
    offload: Offload = "none"

    def check_together(self) -> None:
        """Refuse a size that has no tokens, and a type in which no picture can be made.

        Raises:
            UsageError: with what to change.
        """
        _ = self.resolution
        if dtypes.dtype_of(self.dtype) == torch.float16:
            raise UsageError("dtype 'float16' makes black pictures: the autoencoder overflows. Use bfloat16.")

    @cached_property
    def resolution(self) -> tuple[int, int]:
        """Height and width of the pictures in pixels."""
        return check_size(self.size)

    @cached_property
    def target(self) -> Target:
        """The grids of a picture."""
        return target_of(*self.resolution, edits=self.edits)


@dataclass(frozen=True, kw_only=True)
class WritingSettings(PipelineSettings, ModelSettings):
    """The half of GLM-Image that writes visual tokens, and how it is trained.

    Attributes:
        temperature: of the training samples; log-probs are those of the tempered distribution.
        eval_temperature: of the evaluation samples; None for `temperature`, 0 for the most likely token.
        top_k: draw from the k most likely codes only; 0 for all. Log-probs are those of the truncated distribution.
        top_p: draw from the most likely codes that together have this probability; 1 for all.
        eval_top_k: of the evaluation samples; None for `top_k`.
        eval_top_p: likewise; None for `top_p`.
        train_tokens: which tokens are decisions that train: those of the "draft", of the "large" grid, or "both". With
            "large", the training samples of a prompt share a draft, so that their rewards differ by what trains.
        decode: how pictures are made in training, such as {"steps": 10, "guidance": 1.0}.
        eval_decode: how they are made in evaluation; keys that it lacks are the pipeline's own.
        lora: settings of an adapter, such as {"r": 32, "alpha": 64}, or {"adapter": "folder"} to continue one; None
            trains the weights of the language model and its head themselves.
        merge_adapter: draw with copies of the weights that have the adapter added, which is quicker. On a GPU they take
            15 GiB for the released model.
    """

    temperature: float = 1.0
    eval_temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    eval_top_k: int | None = None
    eval_top_p: float | None = None
    train_tokens: Literal["draft", "large", "both"] = "both"
    decode: Mapping[str, Any] | None = None
    eval_decode: Mapping[str, Any] | None = None
    merge_adapter: bool = True

    def check_together(self) -> None:
        """Refuse settings that no token can be drawn with, and pictures that do not fit the tokens.

        Raises:
            UsageError: with what to change.
        """
        _ = self.sampling
        if self.edits and self.train_tokens == "draft":
            raise UsageError(
                "train_tokens is 'draft', and an edit has none: its picture is written at once. Leave it out."
            )
        for key, decoding in (("decode", self.decoding), ("eval_decode", self.eval_decoding)):
            try:
                decoding.check(self.target)
            except UsageError as error:
                raise UsageError(f"{key}: {error}") from error

    @cached_property
    def sampling(self) -> SamplerSettings:
        """How tokens are drawn."""
        return SamplerSettings.of(vars(self))

    @cached_property
    def decoding(self) -> DecodeSettings:
        """How pictures are made in training."""
        return DecodeSettings.read(self.decode or {}, key="decode", steps=20)

    @cached_property
    def eval_decoding(self) -> DecodeSettings:
        """How they are made in evaluation."""
        return DecodeSettings.read(self.eval_decode or {}, key="eval_decode")


@dataclass(frozen=True, kw_only=True)
class PaintingSettings(PipelineSettings, FlowSettings):
    """The half of GLM-Image that paints, and how it is trained.

    Attributes:
        model: a hub id, a folder that `GlmImagePipeline.save_pretrained` wrote, a folder in a package, "tiny" for a
            random 1 MB model, a pipeline object, or a `GlmImageAR`, whose model this then shares.
        guidance: of training samples, the same in drawing and in scoring; 1 leaves the second pass out.
        eval_guidance: in evaluation; None for `guidance`.
        eval_size: of the pictures in evaluation, in the shape of `size`; their tokens are those of a picture of `size`.
            None for `size`.
        token_sets: how many sets of visual tokens a prompt has in training. They are written once and kept; a group's
            seed picks one. None: each group has tokens of its own, as in evaluation.
        temperature: of the visual tokens, as the released model is used.
        top_p: likewise.
        offload: "idle" keeps the autoregressive half in the CPU's memory, and the diffusion half while tokens are
            written, except trainable weights; "none" keeps both on the device.
    """

    size: Sequence[int] = (512, 512)
    guidance: NotNegative = 1.0
    eval_steps: Steps = 50
    eval_guidance: NotNegative | None = 1.5
    token_sets: Count | None = 1
    temperature: float = 0.9
    top_p: float = 0.75

    def check_together(self) -> None:
        """Refuse settings that no token can be drawn with, and an evaluation size that would distort tokens.

        Raises:
            UsageError: with what to change.
        """
        check_eval_size(self.eval_size, self.size)
        _ = self.sampling

    @cached_property
    def sampling(self) -> SamplerSettings:
        """How tokens are drawn."""
        return SamplerSettings.of(vars(self))


@dataclass(frozen=True, kw_only=True)
class HalvesSettings(PipelineSettings):
    """Both halves of one GLM-Image, and how each is trained.

    Attributes:
        ar: further parameters of `GlmImageAR`, such as {"lora": {"r": 16}}.
        dit: further parameters of `GlmImageDiT`, likewise.
        quantization: "4bit" or "8bit", for the blocks of both halves, each with its own `lora`.
        offload: "idle" keeps the frozen weights of one half in the CPU's memory while the other one is at work; "none"
            keeps both halves on the device.
    """

    size: Sequence[int] = (512, 512)
    ar: Mapping[str, Any] | None = None
    dit: Mapping[str, Any] | None = None

    def check_together(self) -> None:
        """Refuse parameters that a half does not have, or that belong to both halves.

        Raises:
            UsageError: naming the first one.
        """
        for half, kind in HALVES.items():
            _check_own(half, getattr(self, half), kind)
        for half, kind in HALVES.items():
            kind(**self.parameters(half))

    def parameters(self, half: str) -> dict[str, Any]:
        """Those of "ar" or "dit", with what both share."""
        shared = {field.name: getattr(self, field.name) for field in fields(PipelineSettings)}
        return shared | dict(getattr(self, half) or {})


HALVES: Mapping[str, type[PipelineSettings]] = {"ar": WritingSettings, "dit": PaintingSettings}
"""A half -> its settings."""


def _check_own(half: str, own: Any, kind: type[PipelineSettings]) -> None:
    """Refuse what a half does not take by itself.

    Raises:
        UsageError: as it says.
    """
    shared = [field.name for field in fields(PipelineSettings)]
    known = [field.name for field in fields(kind) if field.name not in shared]
    for name in own or ():
        if name in shared:
            raise UsageError(f"{half}: {name} is for both halves. Set it as policy.{name}.")
        if name not in known:
            raise UsageError(
                f"{half}: there is no parameter '{name}'{hint(name, known)}. There are {', '.join(known)}."
            )
