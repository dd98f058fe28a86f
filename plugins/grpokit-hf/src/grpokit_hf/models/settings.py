"""The settings that policies of Hugging Face models share, each declared once.

A policy's own settings inherit what they share, and its constructor takes them as keywords:

    @dataclass(frozen=True)
    class MySettings(ModelSettings):
        '''The settings of `MyPolicy`.

        Attributes:
            model: a hub id.
            rows: the most rows in a pass.
            dtype: of the weights: "auto" or "float32".
        '''

        model: str
        _: KW_ONLY
        rows: Count = 8


    class MyPolicy(Policy):
        @keywords_of(MySettings)
        def __init__(self, settings: MySettings) -> None:
            ...

`MyPolicy("org/name", rows=4)` then makes the settings and checks them: each field by its type and bounds, and all by
the `check_together` of every class. `MySettings(**parameters)` does the same in a `plan` or a `reader`. What finds and
loads a model gets the object, and `FewerSettings.of(vars(settings))` is a part of it. A field that means something else
here has a line of its own under `Attributes`; a default changes by declaring the field again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grpokit.errors import UsageError, require
from grpokit.reference import Average, Teachers, Twin
from grpokit.registry.settings import read_settings
from grpokit.settings import Settings
from grpokit_hf.models import dtypes
from grpokit_hf.models.adapters import AdapterSettings, add_adapter, around
from grpokit_hf.models.quantized import Quantization
from grpokit_hf.models.references import Base, Reference
from grpokit_hf.models.sources import SourceSettings
from grpokit_hf.models.teachers import bare_copy, check_teachers, named
from grpokit_hf.models.trained_adapter import TrainedAdapter, adapter_weights, find_adapter


@dataclass(frozen=True, kw_only=True)
class LearningSettings(Settings):
    """What part of a model trains, and the reference that it is held to.

    Attributes:
        lora: settings of an adapter, such as {"r": 32, "alpha": 64}; None trains the weights themselves.
        reference_ema: let the reference follow the policy, such as {"decay": 0, "every": 50}; None: it stays.
        teachers: trained adapters as the reference, such as {"ocr": "runs/ocr/exported", "style": "name/adapter"}: a
            folder or a hub id each, for flow policies also a file. A prompt's `meta.teacher` names one; the others take
            them in turn.
    """

    lora: Mapping[str, Any] | None = None
    reference_ema: Mapping[str, Any] | None = None
    teachers: Mapping[str, Any] | None = None

    def check_together(self) -> None:
        """Refuse what `lora` or `reference_ema` does not have, and teachers of weights that are not an adapter's.

        Raises:
            UsageError: with what to change.
        """
        _ = self.adapter, self.reference
        if self.teachers is not None:
            check_teachers(self.teachers, trains_base=self.trains_base, moves=self.reference is not None)

    @cached_property
    def adapter(self) -> AdapterSettings | None:
        """What is put around the weights; None where they train themselves."""
        return None if self.lora is None else AdapterSettings.read(self.lora)

    @cached_property
    def reference(self) -> Average | None:
        """How the reference follows; None: it stays."""
        if self.reference_ema is None:
            return None
        return read_settings(Average, self.reference_ema, key="reference_ema", example="{decay: 0.99, every: 1}")

    @property
    def trains_base(self) -> bool:
        """Whether the weights themselves train."""
        return self.lora is None

    @property
    def copies_reference(self) -> bool:
        """Whether the reference is a copy of what trains, and not what is under a new adapter, or a teacher."""
        if self.teachers is not None:
            return False
        return self.adapter is None or self.adapter.adapter is not None or self.reference is not None

    def reference_of(self, model: Any) -> Reference:
        """What a model is held to, with the adapter around it where there is one."""
        return Twin(model, average=self.reference) if self.copies_reference else Base(model)

    def teachers_of(self, base: Any, put: Callable[[Any, str], nn.Module]) -> Teachers | None:
        """The teachers; None without.

        Args:
            base: the frozen model, before it gets an adapter.
            put: puts a trained adapter, as `teachers` names it, around a model.

        Raises:
            UsageError: an adapter is not there, or does not fit; names the teacher.
        """
        if self.teachers is None:
            return None
        models = {}
        for name, adapter in self.teachers.items():
            with named(name):
                teacher = put(bare_copy(base), adapter)
            models[name] = teacher.eval().requires_grad_(False)
        return Teachers(models)


@dataclass(frozen=True, kw_only=True)
class LoadingSettings(SourceSettings):
    """How a model is found and loaded.

    Attributes:
        dtype: of the weights: "auto", "float32", "bfloat16" or "float16".
        quantization: "4bit" or "8bit", for frozen weights under an adapter.
        device: where to load the weights: "cpu" or "cuda"; None loads on the GPU if there is one.
    """

    dtype: str = "auto"
    quantization: Quantization | None = None
    device: str | None = None

    def check_together(self) -> None:
        """Refuse a type or device that does not exist.

        Raises:
            UsageError: with those that do.
        """
        dtypes.check_names(dtype=self.dtype, device=self.device)

    @property
    def place(self) -> str:
        """Where the weights are loaded."""
        return self.device or ("cuda" if torch.cuda.is_available() else "cpu")

    def check_here(self) -> None:
        """Refuse what this machine lacks; a plan is for another one.

        Raises:
            UsageError: there is no GPU, or no bitsandbytes.
        """
        dtypes.check_device(self.device)
        if self.quantization is not None:
            require("bitsandbytes", least="0.49", what=f"quantization '{self.quantization}'")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(LearningSettings, LoadingSettings):
    """How a model is found, loaded and trained.

    Attributes:
        gradient_checkpointing: keep less for the backward pass and compute it again.
    """

    gradient_checkpointing: bool = False

    def check_together(self) -> None:
        """Refuse quantised weights that were to train.

        Raises:
            UsageError: with what to change.
        """
        if self.quantization is not None and self.trains_base:
            raise UsageError(
                f"quantization '{self.quantization}' is for frozen weights: quantised weights cannot be trained. Add "
                "an adapter with lora: {r: 16}, or leave quantization out."
            )

    def find_adapter(self) -> TrainedAdapter | None:
        """The adapter that `lora` names, to train it on; None where it names none.

        Raises:
            UsageError: there is no such adapter, or it is neither LoRA nor DoRA.
        """
        adapter = self.adapter
        if adapter is None or adapter.adapter is None:
            return None
        return self.adapter_at(adapter.adapter, revision=adapter.revision)

    def find_teachers(self) -> None:
        """Look for the adapters of all teachers, before any weights of the base are read.

        Raises:
            UsageError: one is not there; names the teacher.
        """
        for name, adapter in (self.teachers or {}).items():
            with named(name):
                self._find_teacher(adapter)

    def _find_teacher(self, adapter: str | Path) -> None:
        self.adapter_at(adapter)

    def adapter_at(self, adapter: str | Path, *, revision: str | None = None) -> TrainedAdapter:
        """A trained adapter: a folder, or a hub id.

        Raises:
            UsageError: there is no such adapter, or it is neither LoRA nor DoRA.
        """
        return find_adapter(adapter, SourceSettings(revision=revision, local_files_only=self.local_files_only))

    def adapter_size(self, adapter: str | Path) -> int:
        """How many weights a trained adapter has.

        Raises:
            UsageError: it is not there, or cannot be read.
        """
        return sum(tensor.numel() for tensor in adapter_weights(self.adapter_at(adapter)).values())

    def reference_size(self, trained: int) -> int:
        """How many weights the reference has of its own, for a plan.

        Args:
            trained: how many train.
        """
        if self.teachers is not None:
            return sum(map(self.adapter_size, self.teachers.values()))
        return trained if self.copies_reference else 0

    def adapting(self, model: Any) -> Callable[[], object] | None:
        """What puts an adapter of the right shapes around a model, for a plan; None where the weights train themselves.

        Raises:
            UsageError: as `find_adapter`.
        """
        trained = self.find_adapter()
        if trained is not None:
            return partial(around, model, trained.config)
        return None if self.adapter is None else partial(add_adapter, model, self.adapter)
