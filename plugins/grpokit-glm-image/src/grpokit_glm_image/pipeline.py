"""Finds and loads a GLM-Image pipeline, or says in one message why that cannot be.

Its two halves are loaded apart, since they may have different types of weights and places. For text to image the vision
tower and its codebook are never built, which is 2.2 GiB of the released model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel
from huggingface_hub import snapshot_download
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers import (
    ByT5Tokenizer,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    GlmImageProcessor,
    T5EncoderModel,
)

from grpokit import UsageError
from grpokit.errors import a_type, plural
from grpokit_glm_image.pipeline_folder import (
    LOADING_ERRORS,
    WRITER,
    check_configs,
    check_context,
    check_fit,
    check_scheduler,
    check_weights,
    lack_of,
)
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.settings import PipelineSettings
from grpokit_glm_image.tiny import tiny_pipeline
from grpokit_glm_image.turns import Turns
from grpokit_hf.models import dtypes, quantized, sources
from grpokit_hf.models.bars import progress_bars
from grpokit_hf.models.settings import LoadingSettings
from grpokit_hf.models.sources import Files, SourceSettings

_LIGHT = ("*.json", "*.jinja", "*.txt", "*.model")  # what is fetched first
_HEAVY = ("*/*.safetensors",)
_KINDS = {"transformer": GlmImageTransformer2DModel, "vae": AutoencoderKL, "text_encoder": T5EncoderModel}
_MODELS = tuple(_KINDS)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A GLM-Image that is ready for a policy.

    Attributes:
        ar: the autoregressive half, in eval mode. For text to image its vision tower and codebook are None.
        processor: makes tokens of prompts.
        pipeline: the stock pipeline of all other parts: `vision_language_encoder` is None.
        name: the hub id or folder that it came from, or the class of a given object.
        source: which files of it are read.
        turns: which half is on the device.
    """

    ar: GlmImageForConditionalGeneration
    processor: GlmImageProcessor
    pipeline: GlmImagePipeline
    name: str
    source: SourceSettings
    turns: Turns


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A GLM-Image that is there, with all that can be known before its weights are read.

    Attributes:
        config: of the autoregressive half.
        processor: makes tokens of prompts.
        edits: whether the autoregressive half has its vision tower.
        load: fetches and reads the weights. A UsageError says what is wrong with them.
    """

    config: GlmImageConfig
    processor: GlmImageProcessor
    edits: bool
    load: Callable[[], Loaded]

    def encoder(self, size: tuple[int, int], *, edits: bool) -> PromptEncoder:
        """What reads prompts, with or without pictures to edit, for pictures of height and width in pixels."""
        context: int = self.config.get_text_config().max_position_embeddings
        return PromptEncoder(self.processor, self.config, size=size, edits=edits, context=context)

    def skeleton(self) -> GlmImageForConditionalGeneration:
        """The autoregressive half with shapes and no values: a new one on the device "meta"."""
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            writer: GlmImageForConditionalGeneration = _kind(edits=self.edits)(self.config)
        writer.__class__ = GlmImageForConditionalGeneration
        return writer


def load(model: str | Path | GlmImagePipeline, **settings: Any) -> Loaded:
    """Load a GLM-Image, none of whose weights is to train, by what `PipelineSettings` takes."""
    return prepare(PipelineSettings(model, **settings)).load()


def prepare(settings: PipelineSettings, *, writer_trains: bool = False) -> Prepared:
    """Find a GLM-Image pipeline and read its configurations, tokenizers and processor, but no weights yet.

    Args:
        settings: of the pipeline.
        writer_trains: whether the autoregressive half's own weights will be trained; the type "auto" then is float32,
            since an optimizer's small steps are lost in bfloat16.

    Raises:
        UsageError: the model or one of the settings cannot be used; the message says what to do.
    """
    settings.check_here()
    model = settings.model
    if isinstance(model, GlmImagePipeline):
        return _given(model, settings)
    if not isinstance(model, (str, Path)):
        raise UsageError(f"model must be a hub id, a folder or a GlmImagePipeline, got {a_type(model)}.")
    if not str(model).strip():
        raise UsageError("model is empty: expected a hub id like 'zai-org/GLM-Image', or a pipeline's folder.")
    name = str(model)
    if settings.revision is not None and (name == "tiny" or sources.local(name) is not None):
        raise UsageError(f"revision is for the hub's repositories, and '{model}' is not one. Remove it.")
    writes_in, paints_in = types(settings.dtype, trains_base=writer_trains, device=settings.place)
    prepared = _tiny if name == "tiny" else _stored
    return prepared(name, settings, writes_in=writes_in, paints_in=paints_in)


def _stored(name: str, settings: PipelineSettings, *, writes_in: torch.dtype, paints_in: torch.dtype) -> Prepared:
    """A pipeline of a folder or of the hub."""
    files, folder = find(name, settings)
    config, configs = check_configs(folder)
    check_fit(name, config, configs)
    check_context(settings.resolution, config, edits=settings.edits)
    small, quantization = _small_parts(folder, files), settings.quantization

    def read() -> Loaded:
        place = _fetched(files, _HEAVY) or folder
        check_weights(place)
        kind, device = _kind(edits=settings.edits), settings.place
        with progress_bars(f"load {name}"), dtypes.default_kept():
            at_once = None if device == "cpu" or quantization else {"": device}  # quantised ones come layer by layer
            writer = _read(kind, place / WRITER, files, writes_in, device_map=at_once)
            if quantization:  # before the other half is read
                quantized.quantise(writer, quantization, device=device)
            writer.__class__ = GlmImageForConditionalGeneration  # by which files and adapters name their model
            models = {part: _read(kind, place / part, files, paints_in) for part, kind in _KINDS.items()}
        pipeline = GlmImagePipeline(**{**small, **models, WRITER: None})
        return _assembled(writer, pipeline, settings, name=name, device=torch.device(device))

    return Prepared(config=config, processor=small["processor"], edits=settings.edits, load=read)


def whole_writer(loaded: Loaded) -> GlmImageForConditionalGeneration:
    """The autoregressive half of a model, as it was before training and with its vision tower, on the CPU."""
    whole: GlmImageForConditionalGeneration
    if loaded.name == "tiny":
        whole = tiny_pipeline().vision_language_encoder.to(loaded.ar.dtype)
        return whole
    files, folder = find(loaded.name, loaded.source)
    place = (_fetched(files, _HEAVY) or folder) / WRITER
    whole = _read(GlmImageForConditionalGeneration, place, files, loaded.ar.dtype)
    return whole


def types(dtype: str, *, trains_base: bool, device: str) -> tuple[torch.dtype, torch.dtype]:
    """The types of the autoregressive half's weights and of the decoder's.

    Args:
        dtype: as of `load`.
        trains_base: as of `load`.
        device: "cpu" or "cuda".
    """
    own = torch.bfloat16 if device == "cuda" else torch.float32
    writes_in = dtypes.chosen(dtype, own, trains_base=trains_base, device=device)
    return writes_in, own if dtype == "auto" else writes_in


def _small_parts(folder: Path, files: Files) -> dict[str, Any]:
    """The parts of a pipeline that have no weights."""
    kinds: dict[str, Any] = {
        "tokenizer": ByT5Tokenizer,
        "processor": GlmImageProcessor,
        "scheduler": FlowMatchEulerDiscreteScheduler,
    }
    parts: dict[str, Any] = {}
    for part, kind in kinds.items():
        try:
            parts[part] = kind.from_pretrained(folder / part)
        except LOADING_ERRORS as error:
            raise UsageError(sources.why_not(files, error, what=f"part '{part}' of the model")) from error
    if parts["processor"].chat_template is None:
        raise UsageError(f"'{folder / 'processor'}' has no chat template, chat_template.jinja. {sources.AGAIN}")
    return parts


class _WithoutVision(GlmImageForConditionalGeneration):
    """The autoregressive half as text to image needs it; its weights are read without those of the vision tower."""

    _keys_to_ignore_on_load_unexpected = [r"^model\.(visual|vqmodel)\."]  # noqa: RUF012

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # on the device "meta", where it takes no memory
        _drop_vision(self)


def _kind(*, edits: bool) -> Any:
    return GlmImageForConditionalGeneration if edits else _WithoutVision


def _drop_vision(writer: GlmImageForConditionalGeneration) -> None:
    writer.model.visual = None
    writer.model.vqmodel = None


def _tiny(name: str, settings: PipelineSettings, *, writes_in: torch.dtype, paints_in: torch.dtype) -> Prepared:
    """The random 1 MB model."""
    pipeline = tiny_pipeline()
    writer = pipeline.vision_language_encoder
    check_context(settings.resolution, writer.config, edits=settings.edits)
    if not settings.edits:
        _drop_vision(writer)
    for part in _MODELS:
        nn.Module.to(getattr(pipeline, part), paints_in)  # diffusers' own `to` warns about nothing
    device = torch.device(settings.place)
    return _in_memory(writer.to(writes_in), _decoder_of(pipeline), settings, name=name, device=device)


def _given(pipeline: GlmImagePipeline, settings: PipelineSettings) -> Prepared:
    """A pipeline object, whose halves stay as they are."""
    for field in fields(LoadingSettings):
        if field.name != "device" and getattr(settings, field.name) != field.default:
            raise UsageError(f"{field.name} is for models that are loaded by name; a pipeline object is used as it is.")
    name, writer = _checked(pipeline), pipeline.vision_language_encoder
    if settings.edits and writer.model.visual is None:
        raise UsageError(f"The pipeline '{name}' has no vision tower, which edits need. Load it with all of its parts.")
    check_context(settings.resolution, writer.config, edits=settings.edits)
    device = writer.device if settings.device is None else torch.device(settings.device)
    quantized.steady(writer)
    return _in_memory(writer, _decoder_of(pipeline), settings, name=name, device=device)


def _checked(pipeline: GlmImagePipeline) -> str:
    """The name of a pipeline object that is whole, without adapters, and in types that make pictures.

    Raises:
        UsageError: it is not.
    """
    name = str(pipeline.config.get("_name_or_path") or type(pipeline).__name__)
    lacking = [part for part, value in pipeline.components.items() if value is None]
    if lacking:
        raise UsageError(f"The pipeline '{name}' lacks its '{lacking[0]}'. Load it with all of its parts.")
    writer = pipeline.vision_language_encoder
    if any(isinstance(module, BaseTunerLayer) for module in writer.modules()):
        raise UsageError(
            f"The model '{name}' has an adapter in it, maybe of an earlier policy. Load the model again; to train an "
            "adapter on, name it with lora: {adapter: FOLDER}."
        )
    check_scheduler(name, type(pipeline.scheduler).__name__)
    types = {part: getattr(pipeline, part).dtype for part in _MODELS}
    if types["vae"] == torch.float16:
        raise UsageError(
            f"The autoencoder of the pipeline '{name}' is in float16, in which it overflows to black pictures. Load it "
            "with torch_dtype=torch.bfloat16."
        )
    if len(set(types.values())) > 1:
        have = ", ".join(f"{part} {str(dtype).removeprefix('torch.')}" for part, dtype in types.items())
        raise UsageError(f"The decoder of the pipeline '{name}' must be in one dtype, and it has {have}.")
    configs = {part: getattr(pipeline, part).config for part in _MODELS}
    check_fit(name, writer.config, {**configs, "text_encoder": configs["text_encoder"].to_dict()})
    return name


def _decoder_of(pipeline: GlmImagePipeline) -> GlmImagePipeline:
    """The same parts without the autoregressive half."""
    return GlmImagePipeline(**{**pipeline.components, WRITER: None})


def _in_memory(
    writer: GlmImageForConditionalGeneration,
    pipeline: GlmImagePipeline,
    settings: PipelineSettings,
    *,
    name: str,
    device: torch.device,
) -> Prepared:
    """Halves whose weights are there already."""

    def load() -> Loaded:
        return _assembled(writer, pipeline, settings, name=name, device=device)

    return Prepared(
        config=writer.config, processor=pipeline.processor, edits=writer.model.visual is not None, load=load
    )


def _assembled(
    writer: GlmImageForConditionalGeneration,
    pipeline: GlmImagePipeline,
    settings: PipelineSettings,
    *,
    name: str,
    device: torch.device,
) -> Loaded:
    quantization = settings.quantization
    parts = [getattr(pipeline, part).eval() for part in _MODELS]
    for half in (writer, pipeline.transformer):
        if quantization and not quantized.is_quantised(half):
            quantized.quantise(half, quantization, device=device)
    nn.Module.to(writer, device)
    for part in parts:
        part.requires_grad_(False)
        if settings.offload == "none":
            part.to(device)
    pipeline.set_progress_bar_config(disable=True)
    writer.name_or_path = name  # which an adapter's configuration gives as its base
    return Loaded(
        ar=writer.eval(),
        processor=pipeline.processor,
        pipeline=pipeline,
        name=name,
        source=SourceSettings.of(vars(settings)),
        turns=Turns([writer], parts, device=device, offload=settings.offload),
    )


def find(name: str, source: SourceSettings) -> tuple[Files, Path]:
    """The folder of a model, with all files that are no weights.

    Args:
        name: a hub id, or a folder.
        source: which files of it.

    Raises:
        UsageError: it is not there, or cannot be fetched.
    """
    files = sources.locate(name, source)
    folder = _fetched(files, _LIGHT) or Path(files.place)
    sources.warn_of_cache(files)
    if sources.local(name) is None and files.options["local_files_only"]:
        sources.check_cache(files, marker="model_index.json", lack=lack_of)
    return files, folder


def _fetched(files: Files, patterns: Sequence[str]) -> Path | None:
    """The folder in the cache with the files of a hub's repository; None if the model is a folder itself."""
    if sources.local(files.name) is not None:
        return None
    options = {name: files.options[name] for name in ("revision", "local_files_only")}
    try:
        folder = snapshot_download(files.place, allow_patterns=list(patterns), **options)
    except (OSError, ValueError) as error:
        raise UsageError(sources.why_not(files, error)) from error
    return Path(folder)


def _read(kind: Any, folder: Path, files: Files, dtype: torch.dtype, **options: Any) -> Any:
    """A part with its weights."""
    try:
        part, report = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
    except torch.OutOfMemoryError:
        raise
    except LOADING_ERRORS as error:
        raise UsageError(sources.why_not(files, error, what=f"part '{folder.name}' of the model")) from error
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise UsageError(
            f"The weights in '{folder}' are incomplete: they lack {plural(len(lacking), 'tensor')}, such as "
            f"'{lacking[0]}', which would be drawn at random. {sources.AGAIN}"
        )
    return part
