"""The settings of `CausalLMPolicy`, which its plan reads, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from grpokit import UsageError
from grpokit.errors import nearest
from grpokit.reference import Twin
from grpokit_hf.models.dtypes import DTYPES, dtype_of
from grpokit_hf.models.references import Reference
from grpokit_hf.tokens.sampler import SamplerSettings
from grpokit_lm.engines import EngineSettings, read_engine
from grpokit_lm.loading import LoadSettings
from grpokit_lm.prompts import PromptSettings
from grpokit_lm.stopping import StopSettings
from grpokit_lm.worlds.world import WorldSettings


@dataclass(frozen=True)
class CausalLMSettings(PromptSettings, SamplerSettings, StopSettings, WorldSettings, LoadSettings):
    """What a language model is, how it writes, and how it is trained.

    Attributes:
        model: a hub id, a folder, a folder in a package such as "grpokit_lm:models/arithmetic", a GGUF file in one of
            these, or a model of transformers.
        chat_template: another template than the tokenizer's own, as text or as the path of a file.
        lora: settings of an adapter, such as {"r": 16, "alpha": 32}, or {"adapter": "folder"} to continue one; None
            trains the weights themselves.
        train_vision: whether full training reaches a vision tower too, and not the language model alone. What pictures
            do not pass through stays as it is.
        reference_dtype: of the frozen copy that full training needs for a KL; None for the model's own.
        reference_offload: keep that copy in the CPU's memory between two passes.
        reference_ema: let the reference follow the policy, such as {"decay": 0.99, "every": 1}; None: it stays. With
            `lora` it is an adapter of its own on the same base.
        engine: what writes the completions in place of this process: a server, such as {"url": "http://gpu-2:8000"}, or
            vLLM on the same GPU, {"offline": True}; with `lora` only.
        fast: read prompts once per group and pack completions without padding, where the model allows it.
    """

    model: str | Path | PreTrainedModel
    _: KW_ONLY
    chat_template: str | Path | None = None
    train_vision: bool = False
    reference_dtype: str | None = None
    reference_offload: bool = False
    engine: Mapping[str, Any] | None = None
    fast: bool = True

    def check_together(self) -> None:
        """Refuse settings that exclude each other.

        Raises:
            UsageError: with what to change.
        """
        if self.lora is not None and self.train_vision:
            raise UsageError("train_vision is for full training. With lora, name the tower's layers as targets.")
        if self.world is not None and self.engine is not None:
            raise UsageError("An engine writes one turn, but a world needs several. Leave out engine or world.")
        _ = self.twin_dtype
        if self.engine_settings is None:
            return
        if self.lora is None:
            raise UsageError("engine needs lora: a running engine takes new adapters, but no new weights.")
        if not self.top_k and (self.top_p < 1 or self.min_p):
            raise UsageError(
                "engine names the likeliest tokens, from which training learns what top_p and min_p have left. It must "
                "know how many: add top_k, such as 50, or leave both out; eval_top_p and eval_min_p may stay."
            )

    def check_here(self) -> None:
        """See `ModelSettings`; an engine, too, may need what is not here."""
        super().check_here()
        if self.engine_settings is not None:
            self.engine_settings.check_here()

    @cached_property
    def engine_settings(self) -> EngineSettings | None:
        """Those of the engine; None without one."""
        return None if self.engine is None else read_engine(self.engine)

    @property
    def longest(self) -> int | None:
        """The most tokens of a prompt with its completion; None if only the model bounds them."""
        return None if self.max_prompt_tokens is None else self.max_prompt_tokens + self.max_new_tokens

    @cached_property
    def twin_dtype(self) -> torch.dtype | None:
        """The type of a reference that is a copy; None for the model's.

        Raises:
            UsageError: there is no such type, or one of the settings excludes another.
        """
        name = self.reference_dtype
        if not self.trains_base and (name is not None or self.reference_offload):
            raise UsageError(
                "reference_dtype and reference_offload are for full training: with lora the reference needs no second "
                "copy of the base's weights. Leave them out."
            )
        if name is None:
            return None
        if self.reference is not None:
            raise UsageError(
                "reference_dtype and reference_ema exclude each other: an average in a smaller dtype would lose its "
                "small steps."
            )
        dtype = dtype_of(name)
        if dtype is None:
            known = f"{', '.join(DTYPES)}, got {name!r}{nearest(name, DTYPES)}"
            raise UsageError(f"reference_dtype must be one of {known}.")
        return dtype

    def reference_of(self, model: nn.Module) -> Reference:
        """See `LearningSettings`; a copy may be smaller, and wait on the CPU."""
        if not self.copies_reference:
            return super().reference_of(model)
        return Twin(model, dtype=self.twin_dtype, offload=self.reference_offload, average=self.reference)
