"""What the parameters of both halves mean, for policies and plans. No model is needed to refuse them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpokit import UsageError
from grpokit_glm_image.decoder import DecodeSettings, check_eval_size, check_size
from grpokit_glm_image.grids import Target, target_of
from grpokit_hf.diffusion.settings import FlowSettings
from grpokit_hf.models.adapters import AdapterSettings
from grpokit_hf.models.references import Average
from grpokit_hf.tokens.sampler import SamplerSettings

NAMES = (
    "size",
    "edits",
    "train_tokens",
    "decode",
    "eval_decode",
    "lora",
    "reference_ema",
    "temperature",
    "eval_temperature",
    "top_k",
    "top_p",
    "eval_top_k",
    "eval_top_p",
)
"""The parameters that `Settings.read` takes."""

_FLOW = inspect.signature(FlowSettings.read).parameters
PAINTING = ("size", "eval_size", "token_sets", "temperature", "top_p", *_FLOW)
"""The parameters that `painting_settings` takes."""

_PARTS = ("draft", "large", "both")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters that were read and fit together.

    Attributes:
        size: height and width of the pictures in pixels.
        target: the grids of a picture.
        sampling: how tokens are drawn.
        decode: how pictures are made in training.
        eval_decode: how they are made in evaluation.
        adapter: what is put around the weights; None where they train themselves.
        reference: how the reference follows them; None: it stays.
    """

    size: tuple[int, int]
    target: Target
    sampling: SamplerSettings
    decode: DecodeSettings
    eval_decode: DecodeSettings
    adapter: AdapterSettings | None
    reference: Average | None

    @classmethod
    def read(
        cls,
        *,
        size: Sequence[int],
        edits: bool,
        train_tokens: str,
        decode: Mapping[str, Any] | None,
        eval_decode: Mapping[str, Any] | None,
        lora: Mapping[str, Any] | None,
        reference_ema: Mapping[str, Any] | None,
        **sampling: Any,
    ) -> Settings:
        """The settings of parameters, which are those of `GlmImageAR`; `sampling` has those that draw tokens.

        Raises:
            UsageError: one of them cannot be used.
        """
        drawing = SamplerSettings(**sampling)
        if train_tokens not in _PARTS:
            raise UsageError(f"train_tokens must be one of {', '.join(_PARTS)}, got {train_tokens!r}.")
        if edits and train_tokens == "draft":
            raise UsageError(
                "train_tokens is 'draft', and an edit has none: its picture is written at once. Leave it out."
            )
        adapter = None if lora is None else AdapterSettings.read(lora)
        both = {
            "decode": DecodeSettings.read(decode or {}, key="decode", steps=20),
            "eval_decode": DecodeSettings.read(eval_decode or {}, key="eval_decode"),
        }
        height, width = check_size(size)
        target = target_of(height, width, edits=edits)
        for key, settings in both.items():
            try:
                settings.check(target)
            except UsageError as error:
                raise UsageError(f"{key}: {error}") from error
        return cls(
            size=(height, width),
            target=target,
            sampling=drawing,
            adapter=adapter,
            reference=None if reference_ema is None else Average.read(reference_ema),
            **both,
        )


def painting_settings(
    *, size: Any, eval_size: Any, token_sets: int | None, temperature: float, top_p: float, **flow: Any
) -> FlowSettings:
    """The settings of `GlmImageDiT` for its denoising steps.

    Args:
        size: as of the policy, like all others.
        eval_size: of evaluations.
        token_sets: of a prompt.
        temperature: of tokens.
        top_p: likewise.
        flow: what `FlowSettings` reads.

    Raises:
        UsageError: one of them cannot be used with any model.
    """
    if token_sets is not None and token_sets < 1:
        raise UsageError(f"token_sets must be at least 1, or null for tokens of each group's own; got {token_sets}.")
    check_eval_size(eval_size, size)
    SamplerSettings(temperature=temperature, top_p=top_p)
    return FlowSettings.read(**flow)
