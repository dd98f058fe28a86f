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

from grpokit import Prompt, flow
from grpokit_diffusers.family import PipelineFamily
from grpokit_diffusers.pipeline import prepare
from grpokit_hf.diffusion.flow_policy import FlowPolicy
from grpokit_hf.diffusion.saving import save_lora
from grpokit_hf.diffusion.settings import FlowSettings
from grpokit_hf.diffusion.trained_lora import find_lora
from grpokit_hf.models.adapters import stays_adapter
from grpokit_hf.models.quantized import Quantization, check_whole, remark
from grpokit_hf.models.weights import save_whole

_LORA: Mapping[str, Any] = {"r": 32, "alpha": 64}


def _found(lora: Mapping[str, Any] | None, *, local_files_only: bool) -> Mapping[str, Any] | None:
    """The settings of an adapter, with the file of one that was trained before in place of its name."""
    if lora is None or lora.get("adapter") is None:
        return lora
    return {"adapter": find_lora(lora["adapter"], revision=lora.get("revision"), local_files_only=local_files_only)}


class DiffusersFlow(FlowPolicy):
    """The transformer of a pipeline.

    Args:
        model: a hub id, a folder that a pipeline's `save_pretrained` wrote, a folder in a package, a pipeline object,
            or the name of a random one in `grpokit_diffusers.tiny`, such as "tiny-sd3" or "tiny-flux2-klein".
        family: "package.module:Class" for a pipeline that this package does not know; None for one that it knows.
        size: height and width of the pictures in pixels.
        steps: of denoising in training samples.
        guidance: of training samples, as the pipeline counts it, the same in drawing and in scoring; None: the
            family's, which leaves a second pass out where guidance needs one.
        sampler: "flow-sde", "dance-sde" or "cps".
        noise: the sampler's noise level (see `grpokit.flow`); None for its default.
        window: which steps are decisions, such as {"width": 2}; None: all that have noise.
        step_weight: how much the policy loss of each step counts: "none", "guard", "tempflow" or "flash".
        matching: decisions that are noised copies of a finished sample, such as {"times": 4, "weight": "t"}; then
            samples are drawn by the ODE. None: denoising steps are the decisions.
        shared_noise: a group's training samples begin with the same noise, and differ by the steps' noise alone; with
            `matching` each begins with its own.
        eval_steps: of the ODE in evaluation.
        eval_guidance: in evaluation; None: the pipeline's own default.
        eval_size: of the pictures in evaluation; None for `size`.
        lora: settings of an adapter, or {"adapter": ...} to train on one from a .safetensors file, a folder or the hub;
            None trains the transformer's own weights.
        ema: an average of the trained weights, such as {"decay": 0.9, "every": 8}, which evaluations draw with.
        reference_ema: let the reference follow the policy, such as {"decay": 0, "every": 50}; None: it stays.
        gradient_checkpointing: keep less for the backward pass and compute it again.
        rows: the most pictures in one pass of the transformer while drawing; None for a whole group.
        compiled: compile the transformer's blocks with `torch.compile`, which takes a minute or two at the first pass.
        dtype: of the weights: "auto", "float32" or "bfloat16".
        quantization: "4bit" or "8bit", for the frozen transformer under an adapter, and for text encoders.
        device: where to load the weights: "cpu" or "cuda"; None loads on the GPU if there is one.
        revision: a branch, tag or commit of the hub's repository.
        local_files_only: use the cache and ask no hub.

    Attributes:
        pipeline: the stock pipeline, whose transformer trains.

    Raises:
        UsageError: the model or a setting cannot be used.
    """

    def __init__(
        self,
        model: Any,
        *,
        family: str | type | None = None,
        size: Sequence[int] = (512, 512),
        steps: int = 10,
        guidance: float | None = None,
        sampler: flow.Sampler = "flow-sde",
        noise: float | None = None,
        window: Mapping[str, Any] | None = None,
        matching: Mapping[str, Any] | None = None,
        step_weight: flow.StepWeight = "none",
        shared_noise: bool = True,
        eval_steps: int = 40,
        eval_guidance: float | None = None,
        eval_size: Sequence[int] | None = None,
        lora: Mapping[str, Any] | None = _LORA,
        ema: Mapping[str, Any] | None = None,
        reference_ema: Mapping[str, Any] | None = None,
        gradient_checkpointing: bool = False,
        rows: int | None = None,
        compiled: bool = False,
        dtype: str = "auto",
        quantization: Quantization | None = None,
        device: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        settings: dict[str, Any] = {
            "steps": steps,
            "guidance": guidance,
            "sampler": sampler,
            "noise": noise,
            "window": window,
            "matching": matching,
            "step_weight": step_weight,
            "eval_steps": eval_steps,
            "eval_guidance": eval_guidance,
            "lora": lora,
            "ema": ema,
            "reference_ema": reference_ema,
            "rows": rows,
        }
        FlowSettings.read(**settings)  # before weights are read
        settings["lora"] = _found(lora, local_files_only=local_files_only)
        loaded = prepare(
            model,
            family=family,
            dtype=dtype,
            quantization=quantization,
            trains_base=lora is None,
            device=device,
            revision=revision,
            local_files_only=local_files_only,
        ).load()
        self.pipeline = loaded.pipeline
        self._name = str(model) if isinstance(model, (str, Path)) else type(self.pipeline).__name__
        if gradient_checkpointing:
            self.pipeline.transformer.enable_gradient_checkpointing()
        for name in ("guidance", "eval_guidance"):
            settings[name] = getattr(loaded, name) if settings[name] is None else settings[name]
        super().__init__(
            loaded,
            size=size,
            shared_noise=shared_noise,
            eval_size=eval_size,
            compiled=compiled,
            **settings,
        )

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


def bare(parameters: Mapping[str, Any]) -> PipelineFamily | None:
    """The family around a pipeline without weights, from all parameters of `DiffusersFlow`; None where it cannot be.

    Raises:
        UsageError: as of `DiffusersFlow`, where that is known without a model.
    """
    FlowSettings.of(parameters)
    names = ("model", "family", "dtype", "quantization", "device", "revision", "local_files_only")
    given = {name: parameters[name] for name in names}
    return prepare(**given, trains_base=parameters["lora"] is None).skeleton()


def around(family: PipelineFamily, parameters: Mapping[str, Any]) -> FlowPolicy:
    """The policy on such a family, whose transformer gets the adapter.

    Raises:
        UsageError: as of `DiffusersFlow`, where that is known without weights.
    """
    own = {**parameters, "lora": _found(parameters["lora"], local_files_only=parameters["local_files_only"])}
    for name in ("guidance", "eval_guidance"):
        own[name] = getattr(family, name) if own[name] is None else own[name]
    own["family"] = family
    return FlowPolicy(**{name: own[name] for name in inspect.signature(FlowPolicy).parameters})


def reader(parameters: Mapping[str, Any]) -> FlowPolicy | _Silent:
    """What reads prompts, from all parameters of `DiffusersFlow`, without the model's weights.

    It is a policy on a skeleton, so what its settings lack shows here.

    Raises:
        UsageError: as of `DiffusersFlow`, where that is known without weights.
    """
    family = bare(parameters)
    return _Silent() if family is None else around(family, parameters)
