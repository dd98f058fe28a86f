"""diffusers-flow: a flow-matching pipeline of diffusers as a policy, with one decision per noisy denoising step.

How steps become decisions is `FlowPolicy`'s, what a pipeline is like its family's (see `families/`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusers
import peft
from peft import PeftModel

from grpokit import Prompt
from grpokit.settings import keywords_of
from grpokit_diffusers.pipeline import prepare
from grpokit_diffusers.settings import DiffusersSettings
from grpokit_hf.diffusion.flow_policy import FlowPolicy
from grpokit_hf.diffusion.saving import save_lora
from grpokit_hf.models.adapters import stays_adapter
from grpokit_hf.models.quantized import check_whole, remark
from grpokit_hf.models.weights import save_whole


class DiffusersFlow(FlowPolicy):
    """The transformer of a pipeline. Its arguments are those of `DiffusersSettings`.

    Attributes:
        pipeline (DiffusionPipeline): the stock pipeline, whose transformer trains.

    Raises:
        UsageError: the model or a setting cannot be used.
    """

    @keywords_of(DiffusersSettings)
    def __init__(self, settings: DiffusersSettings) -> None:
        model, family = settings.model, prepare(settings).load()
        self.pipeline = family.pipeline
        self._name = str(model) if isinstance(model, (str, Path)) else type(self.pipeline).__name__
        super().__init__(family, settings)

    def export(self, folder: Path, *, merge: bool = False) -> Mapping[str, str]:
        """Write a folder that plain diffusers loads, and return facts for its model card.

        Args:
            folder: exists already, and is empty.
            merge: add the adapter to the base, and write a whole pipeline.

        Raises:
            UsageError: there is no adapter to merge, or no base in full precision.
        """
        with self.averaged() as model:
            check_whole(model, merge=merge)
            alone = stays_adapter(model, merge=merge)
            if alone:
                save_lora(model, Path(folder))
            else:
                own = copy.deepcopy(model).to("cpu")
                transformer = own.merge_and_unload(safe_merge=True) if isinstance(own, PeftModel) else own
                known = inspect.signature(type(self.pipeline).__init__).parameters
                settings = {name: value for name, value in self.pipeline.config.items() if name in known}
                parts = settings | self.pipeline.components | {"transformer": transformer}
                save_whole(type(self.pipeline)(**parts), Path(folder))
        kind, source, then = type(self.pipeline).__name__, "FOLDER", ""
        if alone:
            source, then = "BASE_MODEL", '\npipe.load_lora_weights("FOLDER")'
            if not hasattr(self.pipeline, "load_lora_weights"):
                then = '\npipe.transformer.load_lora_adapter("FOLDER", use_safetensors=True)'
        return {
            "base_model": self._name,
            "library_name": "diffusers",
            "versions": f"diffusers {diffusers.__version__}, peft {peft.__version__}",
            "usage": f"{remark(model)}import torch\nfrom diffusers import {kind}\n\n"
            f'pipe = {kind}.from_pretrained("{source}", torch_dtype=torch.bfloat16){then}\n',
        }


class _Silent:
    """Stands for a reader where no skeleton can be built: the policy itself then looks at prompts."""

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse nothing."""


def reader(parameters: Mapping[str, Any]) -> FlowPolicy | _Silent:
    """What reads prompts, from all parameters of `DiffusersFlow`, without the model's weights.

    It is a policy on a skeleton, so what its settings lack shows here.

    Raises:
        UsageError: as of `DiffusersFlow`, where that is known without weights.
    """
    settings = DiffusersSettings(**parameters)
    family = prepare(settings).skeleton()
    return _Silent() if family is None else FlowPolicy(family, settings)
