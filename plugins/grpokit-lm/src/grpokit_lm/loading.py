"""Loads a causal LM with its tokenizer, or says in one message why that cannot be.

Everything that can be known without the weights is looked at first, so that a mistake costs seconds. A checkpoint
that lacks some of the model's weights is refused: transformers would draw them at random and only log it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
from transformers.utils.peft_utils import find_adapter_config_file

from grpokit import UsageError
from grpokit.errors import a_type, one_line, plural
from grpokit_hf.models import dtypes, quantized
from grpokit_hf.models.bars import progress_bars
from grpokit_hf.models.settings import ModelSettings
from grpokit_hf.models.skeleton import skeleton_of
from grpokit_hf.models.sources import PICKLED, Files, Source, warn_of_cache, why_not
from grpokit_lm import sources
from grpokit_lm.sources import ReadSettings


@dataclass(frozen=True, kw_only=True)
class LoadSettings(ReadSettings, ModelSettings):
    """How a causal LM is found and loaded.

    Attributes:
        tokenizer: None for the model's own; needed if `model` is an object. An object may be a processor.
        dtype: of the weights: "float32", "bfloat16", "float16", or "auto": the checkpoint's own, but float32 for
            weights that are to be trained (an optimizer's small steps are lost in bfloat16), and on a CPU that computes
            the checkpoint's own only by emulation.
        quantization: "4bit" (NF4, doubly quantised) or "8bit", by bitsandbytes, for the frozen base under an adapter.
        device: where to load the weights, or to move a model object: "cpu" or "cuda"; None loads on the GPU if there is
            one, and leaves an object where it is.
    """

    tokenizer: Any = None


_DEFAULT = LoadSettings()


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model that is ready for a policy.

    Attributes:
        model: in eval mode.
        tokenizer: needs no pad token, since nothing is padded with it.
        processor: of a vision-language model, else None. `tokenizer` is its tokenizer.
        name: the hub id or folder that it came from, or the class of a given object.
        settings: how it was read by that name; None for a given object.
        quantization: keywords of `BitsAndBytesConfig` with which its weights were quantised here; empty if they were
            not.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    processor: ProcessorMixin | None = None
    name: str
    settings: LoadSettings | None = None
    quantization: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reading(self) -> LoadSettings:
        """How to read more files of its name."""
        return self.settings or _DEFAULT


def load_model(
    model: str | Path | PreTrainedModel,
    settings: LoadSettings = _DEFAULT,
    *,
    check: Callable[[Loaded], None] = lambda skeleton: None,
) -> Loaded:
    """Load a causal LM and its tokenizer.

    Args:
        model: a hub id, a folder, a folder in a package such as "grpokit_lm:models/arithmetic", a GGUF file in one of
            these, or a model of transformers.
        settings: how.
        check: called before the weights of a model with a name are read, so that what it refuses costs seconds. Its
            model has shapes and no values (torch's device "meta"), and may be changed.

    Raises:
        UsageError: the model, its tokenizer or one of the settings cannot be used; the message says what to do.
    """
    settings.check_here()
    if isinstance(model, PreTrainedModel):
        return _given(model, settings)
    if not isinstance(model, (str, Path)):
        raise UsageError(f"model must be a hub id, a folder or a model of transformers, got {a_type(model)}.")
    source = sources.find(model, settings, own_tokenizer=settings.tokenizer is None)
    sees = _check_class(source.name, source.config)
    _check_adapter(source)
    quantized.check_stored(
        source.name, source.config, quantization=settings.quantization, trains_base=settings.trains_base
    )
    own, processor = _tokenizer(source, settings, sees=sees)
    options = _options(source, settings)
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    skeleton = skeleton_of(source, kind)
    if skeleton is not None:
        _check_head(source.name, skeleton)
        _check_vocabulary(skeleton, own, source.name)
        check(Loaded(model=skeleton, tokenizer=own, processor=processor, name=source.name))
    network: Any = _weights(source, kind, options)
    quantized.steady(network)
    _check_head(source.name, network)
    _check_vocabulary(network, own, source.name)
    if settings.trains_base:
        quantized.check_trainable(source.name, network)
    quantization = settings.quantization
    return Loaded(
        model=network.eval(),
        tokenizer=own,
        processor=processor,
        name=source.name,
        settings=settings,
        quantization=quantized.bitsandbytes_settings(quantization, options["dtype"]) if quantization else {},
    )


def _options(source: Source, settings: LoadSettings) -> dict[str, Any]:
    """What transformers loads a model with."""
    device, own = settings.place, source.config.dtype
    dtype = dtypes.chosen(settings.dtype, own, trains_base=settings.trains_base, device=device)
    options: dict[str, Any] = {**source.options, "dtype": dtype, "attn_implementation": None}
    if getattr(source.config.get_text_config(), "attn_logit_softcapping", None):
        options["attn_implementation"] = "eager"  # transformers 5.17 would take one that leaves the caps out
    if settings.quantization:
        options["quantization_config"] = quantized.bitsandbytes_config(settings.quantization, dtype)
    elif "gguf_file" in options:
        options["quantization_config"] = GgufConfig(dequantize=True)  # packed weights pass no gradient on
    if device == "cuda":
        options["device_map"] = {"": "cuda"}
    return options


def find_skeleton(model: Any, settings: LoadSettings = _DEFAULT) -> tuple[Any, object]:
    """A causal LM with shapes and no values, and the type that its weights are stored in; no weights are read.

    Args:
        model: a hub id, or a folder, as of `load_model`.
        settings: as of `load_model`.

    Raises:
        UsageError: there is no such model, it is no causal LM, or its code is its own.
    """
    if not isinstance(model, (str, Path)):
        raise UsageError(f"model must be a hub id or a folder, got {a_type(model)}.")
    source = sources.find(model, settings, own_tokenizer=settings.tokenizer is None)
    sees = _check_class(source.name, source.config)
    skeleton = skeleton_of(source, AutoModelForImageTextToText if sees else AutoModelForCausalLM)
    if skeleton is None:
        raise UsageError(
            f"The model '{source.name}' cannot be built without its weights: its code is its own, or its config.json "
            "is damaged."
        )
    _check_head(source.name, skeleton)
    return skeleton, source.config.dtype


def _given(model: PreTrainedModel, settings: LoadSettings) -> Loaded:
    """A model object: it stays as it is, but for its device."""
    name = model.config._name_or_path or type(model).__name__
    idle = _changed(settings, "dtype", "quantization", "revision")
    if idle:
        raise UsageError(
            f"{idle[0]} is for models that are loaded by name; a model object is used as it is. Leave it out."
        )
    if settings.tokenizer is None:
        raise UsageError("A model object needs its tokenizer: give tokenizer=... beside model=...")
    idle = _changed(settings, "local_files_only", "trust_remote_code")
    if idle and not isinstance(settings.tokenizer, (str, Path)):
        raise UsageError(
            f"{idle[0]} is for what is loaded by name, and both model and tokenizer are objects. Leave it out."
        )
    sees = _check_class(name, model.config, model=model)
    _check_head(name, model)
    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise UsageError(
            f"The model '{name}' has an adapter in it, maybe of an earlier policy. Load the model again; to train "
            "an adapter on, name it with lora: {adapter: FOLDER}."
        )
    own, processor = _tokenizer(None, settings, sees=sees)
    _check_vocabulary(model, own, name)
    _move(model, settings.device, name)
    quantized.check_stored(name, model.config, quantization=None, trains_base=settings.trains_base)
    quantized.steady(model)
    if settings.trains_base:
        quantized.check_trainable(name, model)
    return Loaded(model=model.eval(), tokenizer=own, processor=processor, name=name)


def _changed(settings: LoadSettings, *names: str) -> list[str]:
    """Which of these settings do not have their defaults."""
    return [name for name in names if getattr(settings, name) != getattr(_DEFAULT, name)]


def _move(model: Any, device: str | None, name: str) -> None:
    """Bring a model object to a device; None leaves it where it is."""
    if device in (None, model.device.type):
        return
    try:
        model.to(device)
    except torch.OutOfMemoryError:
        raise
    except (ValueError, RuntimeError) as error:  # quantised or offloaded weights stay where they are
        raise UsageError(f"The model '{name}' cannot be moved to device '{device}': {one_line(error)}.") from error


def _check_class(name: str, config: PreTrainedConfig, *, model: PreTrainedModel | None = None) -> bool:
    """Refuse what is no causal LM; returns whether the model sees images."""
    kind = config.model_type
    writers, viewers = (
        _classes(table, kind)
        for table in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    )
    remote = getattr(config, "auto_map", None) or {}
    named = [type(model).__name__] if model is not None else list(config.architectures or [])
    if not writers and not viewers and "AutoModelForCausalLM" not in remote:
        what = named[0] if named else f"a model of type '{kind}'"
        raise UsageError(_no_writer(name, what))
    other = [each for each in named if each not in (*writers, *viewers)]
    if other and len(other) == len(named) and not remote and model is None:
        raise UsageError(_no_writer(name, other[0]))
    looks_ahead = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and getattr(config, "is_decoder", True) is False
    if config.is_encoder_decoder or looks_ahead:  # the second as BERT does, unless its configuration forbids it
        raise UsageError(_no_writer(name, named[0] if named else kind))
    return any(each in viewers for each in named) or (not writers and bool(viewers))


def _check_head(name: str, model: Any) -> None:
    """Refuse a model without an output layer, or that does not say which it is."""
    if model.get_output_embeddings() is None:
        raise UsageError(_no_writer(name, type(model).__name__))


def _check_adapter(source: Source) -> None:
    """Refuse a model with an adapter beside its weights: transformers would put the one into the other."""
    options = {name: source.options[name] for name in ("revision", "local_files_only")}
    if find_adapter_config_file(source.place, **options) is not None:
        where = "" if Path(source.place).is_dir() else ", in a copy of the repository"
        raise UsageError(
            f"The model '{source.name}' has an adapter beside its weights (adapter_config.json). Put the adapter's "
            f"files into a folder of their own{where}. To train it on, name that folder with lora: {{adapter: FOLDER}}."
        )


def _no_writer(name: str, what: str) -> str:
    return (
        f"The model '{name}' is no causal language model: it is {what}. Expected one that continues a text token by "
        "token, such as LlamaForCausalLM or Qwen2_5_VLForConditionalGeneration."
    )


def _classes(table: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    names = table.get(kind, ())
    return (names,) if isinstance(names, str) else tuple(names)


def _tokenizer(
    source: Source | None, settings: LoadSettings, *, sees: bool
) -> tuple[PreTrainedTokenizerBase, ProcessorMixin | None]:
    """The tokenizer, and the processor of a model that sees images."""
    given, processor = settings.tokenizer, None
    if source is not None and given is None:
        given = _read_tokenizer(source, sees=sees)
    elif isinstance(given, (str, Path)):
        files = sources.find_tokenizer(given, settings)
        given = _read_tokenizer(files, sees=sees)
        warn_of_cache(files)
    if isinstance(given, ProcessorMixin):
        processor, given = given, given.tokenizer
    if not isinstance(given, PreTrainedTokenizerBase):
        raise UsageError(f"tokenizer must be a name, or a tokenizer or processor of transformers, got {a_type(given)}.")
    return given, processor


def _read_tokenizer(files: Files, *, sees: bool) -> Any:
    try:
        with progress_bars(f"read {files.name}"):
            return (AutoProcessor if sees else AutoTokenizer).from_pretrained(files.place, **files.options)
    except (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError) as error:
        raise UsageError(why_not(files, error, what="processor" if sees else "tokenizer")) from error


def _weights(source: Source, kind: Any, options: dict[str, Any]) -> PreTrainedModel:
    try:
        with progress_bars(f"load {source.name}"):
            model, report = kind.from_pretrained(
                source.place,
                config=source.config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                adapter_kwargs={"local_files_only": source.options["local_files_only"]},  # or a silent hub is asked
                **options,
            )
    except torch.OutOfMemoryError:
        raise
    except (UnpicklingError, EOFError, KeyError) as error:
        if isinstance(error, KeyError) and not any(Path(source.place).glob("*.bin")):
            raise UsageError(
                f"The model '{source.name}' cannot be built: its config.json asks for {error}, which transformers does "
                "not know."
            ) from error
        raise UsageError(f"The model '{source.name}' {PICKLED}") from error
    except (OSError, ValueError, ImportError, RuntimeError, TypeError, SafetensorError) as error:
        raise UsageError(why_not(source, error)) from error
    other = sorted(report["mismatched_keys"])
    if other:
        name, theirs, ours = other[0]
        raise UsageError(
            f"The weights of the model '{source.name}' do not fit its config.json: the shapes of "
            f"{plural(len(other), 'tensor')} differ, such as that of '{name}', {list(theirs)} in the file and "
            f"{list(ours)} by config.json."
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise UsageError(
            f"The weights of the model '{source.name}' are incomplete: they lack {plural(len(missing), 'tensor')}, "
            f"such as '{missing[0]}'. What they lack would be drawn at random. Is the model a "
            f"{type(model).__name__}?"
        )
    return model  # type: ignore[no-any-return]


def _check_vocabulary(model: Any, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse a tokenizer of another model. Added tokens may lie beyond the model: Gemma 3's has one for pictures."""
    rows = model.get_input_embeddings().weight.shape[0]
    numbers = tokenizer.get_vocab()
    if max(numbers.values(), default=-1) < rows:
        return
    added = set(tokenizer.get_added_vocab())
    highest = max((number for token, number in numbers.items() if token not in added), default=-1)
    if highest >= rows:
        raise UsageError(
            f"The tokenizer has token ids up to {highest:,}, but the model '{name}' knows {rows:,} tokens: they do not "
            "belong together. Name the model's own tokenizer."
        )
