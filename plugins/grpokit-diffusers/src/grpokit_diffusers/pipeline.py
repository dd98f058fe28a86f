"""Finds and loads a pipeline of diffusers, or says in one message why that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import DiffusionPipeline
from diffusers.utils import logging
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from torch import nn

from grpokit import UsageError
from grpokit.errors import a_type, nearest
from grpokit_diffusers.family import PipelineFamily
from grpokit_diffusers.folder import NEED, absent_parts, check_parts, read_index
from grpokit_diffusers.known import family_of
from grpokit_diffusers.settings import DiffusersSettings
from grpokit_diffusers.skeleton import skeleton_of
from grpokit_diffusers.tiny import PIPELINES, tiny_pipeline
from grpokit_hf.models import dtypes, quantized, sources
from grpokit_hf.models.bars import progress_bars
from grpokit_hf.models.sources import Files

_LIGHT = ("*.json", "*.jinja", "*/*.txt", "*.model")  # what is fetched first
_ERRORS = (OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError, ImportError, SafetensorError)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A pipeline that is there, with all that can be known before its weights are read.

    Attributes:
        kind: its family.
        load: fetches and reads the weights, and makes the family.
        skeleton: makes the family around a pipeline without weights; None where that cannot be.
    """

    kind: type[PipelineFamily]
    load: Callable[[], PipelineFamily]
    skeleton: Callable[[], PipelineFamily | None] = lambda: None


def prepare(settings: DiffusersSettings) -> Prepared:
    """Find a pipeline and its family, and the LoRA that it is to train on; no weights are read yet.

    Raises:
        UsageError: the model or a setting cannot be used; the message says what to do.
    """
    settings.check_here()
    _ = settings.trained_lora  # which is looked for here, before anything is loaded
    settings.find_teachers()
    model = settings.model
    if isinstance(model, DiffusionPipeline):
        return _in_memory(model, settings)
    if not isinstance(model, (str, Path)) or not str(model).strip():
        got = "an empty name" if isinstance(model, str) else a_type(model)
        raise UsageError(f"model must be a hub id, a folder or a pipeline of diffusers, got {got}. {NEED}")
    name = str(model)
    if settings.revision is not None and (name in PIPELINES or sources.local(name) is not None):
        raise UsageError(f"revision is for the hub's repositories, and '{model}' is not one. Remove it.")
    if name in PIPELINES:
        return _tiny(name, settings)
    if name.startswith("tiny-") and not Path(name).exists():
        raise UsageError(f"There is no model '{name}'{nearest(name, PIPELINES)}. Tiny ones: {', '.join(PIPELINES)}.")
    return _stored(name, settings)


def _in_memory(pipeline: DiffusionPipeline, settings: DiffusersSettings) -> Prepared:
    """A pipeline object, used as it is."""
    options = {"revision": settings.revision, "quantization": settings.quantization, "dtype": settings.dtype != "auto"}
    for option, value in options.items():
        if value:
            raise UsageError(f"{option} is for models that are loaded by name; a pipeline object is used as it is.")
    name, scheduler = type(pipeline).__name__, type(getattr(pipeline, "scheduler", None)).__name__
    model = str(pipeline.config.get("_name_or_path") or name)
    kind = family_of(name, scheduler, model=model, family=settings.family)
    return Prepared(kind=kind, load=lambda: kind(_placed(pipeline, settings.device)))


def _tiny(name: str, settings: DiffusersSettings) -> Prepared:
    """A random pipeline from this package."""
    pipeline, dtype = tiny_pipeline(name), _dtype(settings)
    scheduler = type(pipeline.scheduler).__name__
    kind = family_of(type(pipeline).__name__, scheduler, model=name, family=settings.family)
    return Prepared(
        kind=kind,
        load=lambda: kind(_ready(_cast(pipeline, dtype), settings)),
        skeleton=lambda: kind(tiny_pipeline(name)),
    )


def _stored(name: str, settings: DiffusersSettings) -> Prepared:
    """A pipeline of a folder or of the hub."""
    dtype, files = _dtype(settings), sources.locate(name, settings)
    folder = _fetched(files, _LIGHT) or Path(files.place)
    sources.warn_of_cache(files)
    index = read_index(folder)
    kind = family_of(index.kind, index.parts.get("scheduler", "missing"), model=name, family=settings.family)
    index = replace(index, parts={part: index.parts[part] for part in index.parts if part not in kind.unused})
    own: Any = getattr(diffusers, index.kind, DiffusionPipeline)  # of which alone all optional parts can be left out
    without = dict.fromkeys([*absent_parts(index, model=name, optional=kind.optional), *kind.unused])

    def read() -> PipelineFamily:
        there = _fetched(files, [*_LIGHT, *(f"{part}/*.safetensors" for part in index.parts)]) or folder
        check_parts(there, index)
        try:
            with progress_bars(f"load {name}"), _no_bar_of_parts(), dtypes.default_kept():
                pipeline = own.from_pretrained(there, dtype=dtype, local_files_only=True, **without)
        except torch.OutOfMemoryError:
            raise
        except _ERRORS as error:
            raise UsageError(sources.why_not(files, error, what="pipeline")) from error
        return kind(_ready(pipeline, settings))

    def skeleton() -> PipelineFamily | None:
        pipeline = skeleton_of(folder, index)
        return None if pipeline is None else kind(pipeline)

    return Prepared(kind=kind, load=read, skeleton=skeleton)


def _dtype(settings: DiffusersSettings) -> torch.dtype:
    """The type that weights are loaded in."""
    own = torch.bfloat16 if settings.place == "cuda" else torch.float32
    return dtypes.chosen(settings.dtype, own, trains_base=False, device=settings.place)


def _ready(pipeline: Any, settings: DiffusersSettings) -> Any:
    """A pipeline that was loaded, in the types of its settings and where they say."""
    if settings.trains_base and settings.dtype == "auto":
        pipeline.transformer.float()  # an optimizer's small steps are lost in bfloat16
    if settings.quantization is not None:
        for part in _large(pipeline):
            quantized.quantise(part, settings.quantization, device=settings.place)
    return _placed(pipeline, settings.place)


def _fetched(files: Files, patterns: Sequence[str]) -> Path | None:
    """The folder in the cache with these files of a hub's repository; None if the model is a folder itself."""
    if sources.local(files.name) is not None:
        return None
    options = {name: files.options[name] for name in ("revision", "local_files_only")}
    try:
        unused = ["*.fp16.*", "*.non_ema.*"]  # the same weights once more
        return Path(snapshot_download(files.place, allow_patterns=list(patterns), ignore_patterns=unused, **options))
    except (OSError, ValueError) as error:
        raise UsageError(sources.why_not(files, error)) from error


@contextmanager
def _no_bar_of_parts() -> Iterator[None]:
    """Hide the bar of diffusers that counts a pipeline's parts; those of transformers count what takes long."""
    shows = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shows:
            logging.enable_progress_bar()


def _models(pipeline: Any) -> list[nn.Module]:
    return [part for part in pipeline.components.values() if isinstance(part, nn.Module)]


def _large(pipeline: Any) -> list[nn.Module]:
    """The parts that have most of the weights: not the autoencoder, whose rounding would show in each picture."""
    return [
        part
        for name, part in pipeline.components.items()
        if isinstance(part, nn.Module) and name.startswith(("transformer", "text_encoder"))
    ]


def _cast(pipeline: Any, dtype: torch.dtype) -> Any:
    for part in _models(pipeline):
        nn.Module.to(part, dtype)  # diffusers' own `to` warns about nothing
    return pipeline


def _placed(pipeline: Any, device: str | None) -> Any:
    """The pipeline on a device, in eval mode and frozen: what trains, the policy says."""
    for part in _models(pipeline):
        part.eval().requires_grad_(False)
        if device is not None:
            nn.Module.to(part, device)
    return pipeline
