"""Low-rank adapters by peft: LoRA, DoRA, and QLoRA, which is either on a quantised base.

Only the adapter trains, in float32, whatever the base's type. The base stays as it is to the bit and is the reference
while the adapter is off, so the reference needs no second copy of the weights.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import peft
import torch
from annotated_types import Ge, Gt, Le
from peft import LoraConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from grpokit.errors import UsageError, brief, nearest, one_line
from grpokit.registry.settings import read_settings
from grpokit.settings import Settings

ALL_LINEAR = "all-linear"
"""The targets of an adapter on every linear layer but the output layer and the routers of mixtures."""
_ROUTER = re.compile(r"(^|\.)(router\w*|gate)(\.|$)")  # in some mixtures a linear layer, which may return a tuple


@dataclass(frozen=True, kw_only=True)
class AdapterSettings(Settings):
    """The keys of `lora`.

    Attributes:
        r: the rank of each update.
        alpha: its scale is alpha / r, or alpha / sqrt(r) with rslora.
        targets: names of linear layers, such as "q_proj", or "all-linear": all that `linear_layers` has but those of
            a vision tower.
        dropout: must be 0: with dropout the log-probs of sampling and of training would differ.
        dora: split each weight into magnitude and direction, and adapt both (DoRA, Liu et al. 2024).
        rslora: the scale of rank-stabilised LoRA (Kalajdzievski 2023).
        seed: of the adapter's initial weights; the adapter itself begins as zero.
        adapter: continue training this one, a folder that peft wrote or a hub id. It has its own of the other keys.
        revision: a branch, tag or commit of the adapter's repository on the hub.
    """

    r: Annotated[int, Ge(1), Le(4096)] = 16
    alpha: Annotated[float, Gt(0)] = 32
    targets: str | Sequence[str] = ALL_LINEAR
    dropout: Annotated[float, Ge(0), Le(1)] = 0.0
    dora: bool = False
    rslora: bool = False
    seed: int = 0
    adapter: str | Path | None = None
    revision: str | None = None

    def check_together(self) -> None:
        """Refuse targets that are no names, and a dropout.

        Raises:
            UsageError: with what to change.
        """
        names = [self.targets] if isinstance(self.targets, str) else self.targets
        if not names:
            raise UsageError(f"lora: targets must be names such as [q_proj, v_proj], or '{ALL_LINEAR}', got {names!r}.")
        if ALL_LINEAR in names and len(names) > 1:
            raise UsageError(
                f"lora: targets: '{ALL_LINEAR}' stands alone, got {names!r}. Leave out the one or the others."
            )
        if self.dropout > 0:
            raise UsageError(
                f"lora: dropout must be 0, got {self.dropout}. With dropout, the log-probs of a sample would differ "
                "between sampling and training, and importance ratios would not be 1 before the first update."
            )

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> AdapterSettings:
        """The settings of a mapping, such as {"r": 16, "alpha": 32}.

        Raises:
            UsageError: a key is unknown, a value is out of bounds, or there are others beside `adapter`.
        """
        settings = read_settings(cls, given, key="lora", example="{r: 16, alpha: 32}")
        others = [name for name in given if name not in ("adapter", "revision")]
        if settings.adapter is not None and others:
            raise UsageError(
                f"lora: adapter: '{settings.adapter}' has its own {', '.join(others)}. Leave {', '.join(others)} out; "
                f"on the command line, in place of a config's settings: 'policy.lora={{adapter: {settings.adapter}}}'."
            )
        if settings.adapter is None and settings.revision is not None:
            raise UsageError("lora: revision is that of an adapter, and none is named. The model's is policy.revision.")
        return settings


def add_adapter(model: PreTrainedModel, settings: AdapterSettings) -> PeftModel:
    """Put an adapter around a model; the base's parameters then need no gradient.

    Raises:
        UsageError: `targets` match no layer, or one that peft cannot adapt.
    """
    layers = linear_layers(model)
    targets = [settings.targets] if isinstance(settings.targets, str) else list(settings.targets)
    excluded = None
    if targets == [ALL_LINEAR]:
        decoder = _decoder(model)
        targets = sorted({_kind(name) for name in layers if name.startswith(decoder)})
        outside = sorted({_branch(name) for name in layers if not name.startswith(decoder)})
        excluded = "|".join(rf"{re.escape(branch)}(\..*)?" for branch in outside) or None
    head = _name_of(model.get_output_embeddings(), model)
    for target in targets:
        if not any(_ends(name, target) for name in layers):
            kinds = sorted(set(map(_kind, layers)))
            why = (
                f"{brief(target)} is the output layer of {type(model).__name__}, which is not adapted"
                if _ends(head, target)
                else f"no linear layer of {type(model).__name__} that can be adapted is called {brief(target)}"
                f"{nearest(target, [ALL_LINEAR, *kinds])}"
            )
            raise UsageError(f"lora: targets: {why}. It has: {', '.join(kinds)}; or say '{ALL_LINEAR}'.")
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft divides by r, so any number will do
        target_modules=targets,  # spelt out: peft's own "all-linear" adapts the router of a mixture of experts as well
        exclude_modules=excluded,
        use_dora=settings.dora,
        use_rslora=settings.rslora,
        task_type="CAUSAL_LM",
    )
    try:
        return around(model, config, seed=settings.seed)
    except ValueError as error:
        raise UsageError(f"lora: targets: peft cannot adapt {type(model).__name__}: {one_line(error)}.") from error


def around(model: Any, config: LoraConfig, *, seed: int = 0) -> PeftModel:
    """A model with an adapter, in eval mode; the random state stays as it is."""
    places = {p.device for p in model.parameters()}
    devices = sorted(place.index or 0 for place in places if place.type == "cuda")
    generators = [torch.default_generator]
    generators += [torch.cuda.default_generators[device] for device in devices]  # and no other GPU's
    with torch.random.fork_rng(devices=devices), quiet():
        for generator in generators:
            generator.manual_seed(seed)
        adapted = peft.get_peft_model(model, config)
    return adapted.eval()


def inner(model: Any) -> Any:
    """The model of transformers inside an adapter, whose layers the adapter has replaced; another model as it is."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings of peft about which a user of ours can do nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fan_in_fan_out.*")  # peft sets it right and says so
        warnings.filterwarnings("ignore", message=".*checkpointing.* is deprecated")  # what peft asks transformers
        warnings.filterwarnings("ignore", message=".*no modules were excluded")  # of a part that is not loaded here
        yield


def linear_layers(model: Any) -> list[str]:
    """The names of the linear layers that can be adapted, plain or quantised: not the head, nor a mixture's router.

    The experts of a mixture are no linear layers in transformers; what they share is made of some.
    """
    head = model.get_output_embeddings()
    kinds: dict[str, str] = {}
    for name, module in model.named_modules():
        if _is_linear(module) and module is not head and not _ROUTER.search(name):
            kinds[name] = name.rpartition(".")[2]
    adapted = {kind: _is_adapted(kind, model.config) for kind in set(kinds.values())}
    return [name for name, kind in kinds.items() if adapted[kind]]


def _is_adapted(name: str, config: PreTrainedConfig) -> bool:
    """Whether peft adapts a linear layer of that name, in a model with that configuration.

    It refuses `out_proj` in Mamba and its like. In DeepSeek-V3 and its like it takes `gate_proj`, `up_proj` and
    `down_proj` for the weights of experts, which had these names once, and would adapt those in their place.
    """
    with torch.device("meta"):
        substitute: Any = nn.Module()
        substitute.config = config
        substitute.add_module(name, nn.Linear(1, 1))
        try:
            peft.inject_adapter_in_model(LoraConfig(target_modules=[name]), substitute)
        except ValueError:
            return False
    return isinstance(substitute.get_submodule(name), BaseTunerLayer)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, Conv1D))  # layers of bitsandbytes are derived from nn.Linear


def _decoder(model: Any) -> str:
    """What the names in the language model begin with, and none in a vision tower or in what leads from there."""
    prefix = _name_of(model.get_decoder(), model)
    return f"{prefix}." if prefix else ""


def _name_of(part: nn.Module, model: nn.Module) -> str:
    name: str = next(name for name, module in model.named_modules() if module is part)
    return name


def _ends(name: str, target: str) -> bool:
    """Whether peft takes a name of targets for this layer."""
    return name == target or name.endswith(f".{target}")


def _kind(name: str) -> str:
    """The layer's own name: "model.layers.0.self_attn.q_proj" -> "q_proj", "model.maps.0" -> "maps.0"."""
    return re.sub(r".*\.(?!\d)", "", name)


def _branch(name: str) -> str:
    """The part of a model that a layer is in: "model.visual.blocks.0.attn.qkv" -> "model.visual"."""
    return ".".join(name.split(".")[:2])


def stays_adapter(model: nn.Module, *, merge: bool) -> TypeGuard[PeftModel]:
    """Whether an export is the adapter alone: a model without one, and one whose adapter is merged, are written whole.

    Raises:
        UsageError: there is no adapter to merge.
    """
    adapted = isinstance(model, PeftModel)
    if merge and not adapted:
        raise UsageError("There is no adapter to merge: this run trained the model's own weights. Leave out --merge.")
    return adapted and not merge
