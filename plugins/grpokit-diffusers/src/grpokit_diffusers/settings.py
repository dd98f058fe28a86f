"""The settings of `DiffusersFlow`, of what loads its pipeline, and of its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from grpokit_hf.diffusion.settings import FlowSettings


@dataclass(frozen=True)
class DiffusersSettings(FlowSettings):
    """A pipeline, and how it is trained.

    Attributes:
        model: a hub id, a folder that a pipeline's `save_pretrained` wrote, a folder in a package, a pipeline object,
            or the name of a random one in `grpokit_diffusers.tiny`, such as "tiny-sd3" or "tiny-flux2-klein".
        family: "package.module:Class" for a pipeline that this package does not know; None for one that it knows.
        dtype: of the weights: "auto", "float32" or "bfloat16".
        quantization: "4bit" or "8bit", for the frozen transformer under an adapter, and for text encoders.
    """

    model: Any
    _: KW_ONLY
    family: str | type | None = None
    size: Sequence[int] = (512, 512)
    lora: Mapping[str, Any] | None = field(default_factory=lambda: {"r": 32, "alpha": 64})
