"""An adapter that someone has trained, as the start of a run: found, put around its base, and read.

What can be known without the base's weights is looked at first, as `sources` does for a model.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from huggingface_hub import snapshot_download
from peft import LoraConfig, PeftConfig, PeftModel, load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from grpokit.errors import UsageError, one_line, plural
from grpokit_hf.models import sources
from grpokit_hf.models.adapters import around, linear_layers
from grpokit_hf.models.bars import progress_bars
from grpokit_hf.models.sources import SourceSettings
from grpokit_hf.models.weights import tensors_of

_TRAINED = re.compile(r"base_model\.model\.(.+)\.lora_(?:A|B|magnitude_vector)\.default\.weight")
_KEEP_THE_BASE = ("True", "False", "gaussian", "eva", "orthogonal")  # values of init_lora_weights
_DIFFUSION = "pytorch_lora_weights.safetensors"  # as diffusers names it
_NEED = "Give a folder that peft's save_pretrained or `grpokit export` wrote, or a hub id like 'org/name'."


@dataclass(frozen=True, kw_only=True)
class TrainedAdapter:
    """An adapter by peft that is there.

    Attributes:
        name: as the user named it.
        folder: where its files lie.
        config: as it was trained.
    """

    name: str
    folder: Path
    config: LoraConfig


def find_adapter(adapter: str | Path, source: SourceSettings) -> TrainedAdapter:
    """Find an adapter and read its configuration.

    Args:
        adapter: a folder, or a hub id.
        source: which files of a hub's repository.

    Raises:
        UsageError: there is no such adapter, or it is neither LoRA nor DoRA.
    """
    name = str(adapter)
    own, what = sources.local(name), f"lora: adapter: '{name}'"
    if own is not None and not own.is_dir():
        raise UsageError(f"{what} {'is a file' if own.exists() else 'does not exist'}. {_NEED}")
    if own is not None and source.revision is not None:
        raise UsageError(f"lora: revision is for the hub's repositories, and '{name}' is a folder. Leave it out.")
    folder = own or _fetched(name, source)
    if not (folder / "adapter_config.json").is_file() and (folder / _DIFFUSION).is_file():
        raise UsageError(
            f"{what} is an adapter of a diffusion transformer ('{_DIFFUSION}'), and this policy trains another model. "
            "Give an adapter of that one."
        )
    if not (folder / "adapter_config.json").is_file():
        whole = (folder / "config.json").is_file()
        raise UsageError(f"{what} {'holds a whole model' if whole else 'has no adapter_config.json'}. {_NEED}")
    if not any((folder / f"adapter_model.{kind}").is_file() for kind in ("safetensors", "bin")):
        raise UsageError(f"{what} has no weights: expected adapter_model.safetensors. {_NEED}")
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{what} cannot be read: its adapter_config.json is damaged ({one_line(error)}).") from error
    if not isinstance(config, LoraConfig):
        raise UsageError(f"{what} is an adapter of type {config.peft_type}. Only LoRA and DoRA can be trained.")
    return TrainedAdapter(name=name, folder=folder, config=config)


def _fetched(name: str, source: SourceSettings) -> Path:
    """The folder of the cache that holds a hub's adapter."""
    files = sources.locate(name, source)
    options = {option: files.options[option] for option in ("revision", "local_files_only")}
    try:
        with progress_bars(f"fetch {name}"):
            return Path(snapshot_download(name, allow_patterns=["adapter_*"], **options))
    except (OSError, ValueError) as error:
        raise UsageError(f"lora: adapter: {sources.why_not(files, error, what='adapter')}") from error


def adapter_weights(trained: TrainedAdapter) -> dict[str, Tensor]:
    """Those of an adapter's file.

    Raises:
        UsageError: they cannot be read.
    """
    what = f"lora: adapter: '{trained.name}'"
    try:
        return load_peft_weights(str(trained.folder), device="cpu")
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{what}: its weights cannot be read ({one_line(error)}).") from error
    except (UnpicklingError, EOFError, KeyError, RuntimeError) as error:  # a RuntimeError: a torn archive of torch
        raise UsageError(f"{what} {sources.PICKLED}") from error


def continue_adapter(model: PreTrainedModel, trained: TrainedAdapter) -> PeftModel:
    """Put a trained adapter around its base, in float32, so that it trains on.

    Raises:
        UsageError: it does not fit the model, or changes more than linear layers.
    """
    what, theirs, ours = f"lora: adapter: '{trained.name}'", trained.config.base_model_name_or_path, model.name_or_path
    config = copy.deepcopy(trained.config)
    config.inference_mode, config.lora_dropout, config.task_type = False, 0.0, "CAUSAL_LM"
    config.base_model_name_or_path = ours or None
    if str(config.init_lora_weights) not in _KEEP_THE_BASE:
        raise UsageError(
            f"{what} was trained around changed base weights (init_lora_weights: {config.init_lora_weights!r}). Let "
            "peft convert it first: save_pretrained(..., path_initial_model_for_weight_conversion=...)."
        )
    config.init_lora_weights = True  # the weights come from the file
    able = set(linear_layers(model))
    try:
        adapted = around(model, config)
        weights = adapter_weights(trained)
        foreign = [name for name in weights if ".lora_" not in name]  # peft would put such into the base
        own = {name: tensor.shape for name, tensor in tensors_of(adapted).items()}
        common = [name for name in weights if name in own]
        other = [name for name in common if weights[name].shape != own[name]]
        if other:
            name, count = other[0], plural(len(other), "tensor")
            raise UsageError(
                f"{what} does not fit the model{_on(theirs)}: {count} of another shape, such as '{name}', which is "
                f"{list(weights[name].shape)} in its file, and {list(own[name])} for this model."
            )
        if not foreign:
            result: Any = set_peft_model_state_dict(adapted, weights)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{what} does not fit the model{_on(theirs)}: {one_line(error)}.") from error
    trains = [name for name, p in adapted.named_parameters() if p.requires_grad]
    foreign += [name for name in trains if not _is_of(name, able)]
    if foreign:
        raise UsageError(
            f"{what} changes '{foreign[0].removeprefix('base_model.model.')}'. Only adapters of linear layers can "
            "be trained: no output layer, no embeddings, no experts or router, no biases, no modules_to_save."
        )
    strange = sorted(name for name in _variants(adapted) if not name.startswith("Dora"))
    if strange:
        raise UsageError(
            f"{what} is a variant of LoRA, {strange[0].removesuffix('LinearVariant')}. Only LoRA and DoRA can be "
            "trained."
        )
    wrong = sorted({*trains} & {*result.missing_keys}) + sorted(result.unexpected_keys)
    if wrong:
        raise UsageError(
            f"{what} does not fit the model{_on(theirs)}: {plural(len(wrong), 'tensor')} of one without a counterpart "
            f"in the other, such as '{wrong[0]}'."
        )
    if theirs and ours and Path(theirs).name != Path(ours).name:
        warnings.warn(
            f"The adapter '{trained.name}' was trained on '{theirs}', and the model here is '{ours}'. Its shapes fit.",
            stacklevel=3,
        )
    return adapted


def _variants(adapted: PeftModel) -> set[str]:
    """The names of peft's variants of LoRA that an adapter has."""
    names: set[str] = set()
    for module in adapted.modules():
        own: Mapping[str, object] = getattr(module, "lora_variant", {})
        names |= {type(variant).__name__ for variant in own.values()}
    return names


def _is_of(name: str, layers: Container[str]) -> bool:
    """Whether a weight of an adapter is that of one of these layers."""
    match = _TRAINED.fullmatch(name)
    return match is not None and match[1] in layers


def check_adapter(skeleton: PreTrainedModel, trained: TrainedAdapter) -> None:
    """Refuse a trained adapter that does not fit a model, before the model's weights are read.

    Args:
        skeleton: the model on the device "meta"; it is changed.
        trained: the adapter.

    Raises:
        UsageError: as `continue_adapter`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that values go nowhere; other warnings come again with the weights
        continue_adapter(skeleton, trained)


def _on(base: str | None) -> str:
    return f" (it was trained on '{base}')" if base else ""
