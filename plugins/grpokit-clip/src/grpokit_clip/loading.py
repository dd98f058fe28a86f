"""A CLIP model from a file or a folder, as open_clip loads it, with what that does silently made an error or set right.

Only weights are read, never pickled code. Positions of another picture size are refused (open_clip stretches them),
weights that are missing too (it would start at random), and the activation is the one that the weights were trained
with (it would only warn).
"""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import open_clip
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from grpokit import UsageError
from grpokit_clip.weights import delete

Dtype = Literal["float32", "bfloat16", "float16"]

_PRECISION = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_BUILDING = (
    *(OSError, RuntimeError, EOFError, ValueError, KeyError, UnpicklingError, zipfile.BadZipFile, SafetensorError),
    *(TypeError, AttributeError, IndexError, AssertionError, StopIteration, ImportError),
)


def load(
    place: Path, *, model: str, recipe: Mapping[str, Any], device: torch.device, dtype: Dtype
) -> tuple[Any, Any, int]:
    """Return a CLIP model, frozen and in evaluation mode, its tokenizer, and the width of its embeddings.

    Args:
        place: a file with weights of `model`, or a folder in open_clip's local form.
        model: open_clip's name of the architecture; a folder brings its own.
        recipe: open_clip's record of the published weights; empty where nothing is known of them.
        device: where it is to compute.
        dtype: of the large weights; normalisation layers stay in float32.

    Raises:
        UsageError: the weights are missing, torn, or not those of the model.
    """
    folder = place.is_dir()
    if folder:
        _check_folder(place)
    shapes = {} if folder else _shapes(place)
    name = f"local-dir:{place}" if folder else model
    try:
        with _quiet(), torch.random.fork_rng(devices=[]):  # its random start must not move the global state
            clip: Any = open_clip.create_model(
                name,
                None if folder else str(place),
                precision=_PRECISION[dtype],
                device=device,
                force_quick_gelu=bool(recipe.get("quick_gelu")),
                force_preprocess_cfg=dict(recipe),
                pretrained_text=False,
                require_pretrained=True,
                weights_only=True,
            )
            tokenizer: Any = open_clip.get_tokenizer(name)
            width = int(open_clip.get_model_config(name)["embed_dim"])
    except _BUILDING as error:
        named = "the model of its open_clip_config.json" if folder else f"the CLIP model '{model}'"
        raise UsageError(
            f"'{place}' does not hold weights that open_clip can load as {named}: {_brief(error)}. {_remedy(folder)}"
        ) from error
    _check_positions(clip, shapes, place, model)
    return clip.eval().requires_grad_(False), tokenizer, width


@contextmanager
def _quiet() -> Iterator[None]:
    """Errors are told by us, and a record without any handler would make logging install one for good."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


def _shapes(place: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a file, without unpickling anything else."""
    try:
        if place.suffix == ".safetensors":
            with safe_open(place, framework="pt") as file:
                return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        archive = zipfile.is_zipfile(place)
        if archive:
            with zipfile.ZipFile(place) as names:
                if any(name.endswith("/constants.pkl") for name in names.namelist()):
                    raise UsageError(
                        f"The file '{place}' is a TorchScript archive, the form in which OpenAI published CLIP; it "
                        f"holds code beside weights and is not loaded. {_remedy(False)}"
                    )
        state = torch.load(place, map_location="cpu", weights_only=True, mmap=archive)
    except UsageError:
        raise
    except Exception as error:  # bytes of another kind make torch's reader raise a dozen kinds
        raise UsageError(  # without torch's own text, whose advice is to load files unsafely
            f"The file '{place}' cannot be read as weights of torch or safetensors ({type(error).__name__}): it is "
            f"torn, or another kind of file. {delete(place)}{_remedy(False)}"
        ) from error
    if isinstance(state, dict) and "state_dict" in state:
        state = state["state_dict"]
    if not isinstance(state, dict) or not any(isinstance(x, Tensor) for x in state.values()):
        raise UsageError(
            f"The file '{place}' holds no weights of CLIP: expected a state dict, got {type(state).__name__}. "
            f"{_remedy(False)}"
        )
    return {str(name).removeprefix("module."): tuple(x.shape) for name, x in state.items() if isinstance(x, Tensor)}


def _check_positions(model: Any, shapes: Mapping[str, tuple[int, ...]], place: Path, name: str) -> None:
    """Refuse what open_clip would stretch without a word: positions of another picture size or text length."""
    own = {key: tuple(x.shape) for key, x in model.state_dict().items() if key.endswith("positional_embedding")}
    for key, shape in own.items():
        if key in shapes and shapes[key] != shape:
            raise UsageError(
                f"The file '{place}' does not hold weights of the CLIP model '{name}': '{key}' has the shape "
                f"{shapes[key]} there, expected {shape}: another picture size, or another length of texts. Name the "
                "model that the file was saved from."
            )


def _check_folder(place: Path) -> None:
    config = place / "open_clip_config.json"
    if not config.is_file():
        raise UsageError(
            f"The folder '{place}' (the parameter weights_path) has no file open_clip_config.json. {_remedy(True)}"
        )
    if not any(file.suffix in (".safetensors", ".bin", ".pth") for file in place.iterdir()):
        raise UsageError(
            f"The folder '{place}' (the parameter weights_path) has no weights, such as open_clip_model.safetensors or "
            f"open_clip_pytorch_model.bin. {_remedy(True)}"
        )


def _remedy(folder: bool) -> str:
    if folder:
        return (
            "Give a folder in open_clip's local form: open_clip_config.json with model_cfg and preprocess_cfg, and the "
            "weights beside it, as a repository of open_clip on the Hugging Face hub has them."
        )
    return (
        "Give the file open_clip_model.safetensors or open_clip_pytorch_model.bin of the model's repository on the "
        "Hugging Face hub as weights_path, or leave that out."
    )


def _brief(error: BaseException) -> str:
    if isinstance(error, UnpicklingError):
        return "the file cannot be read with weights_only, so that it is torn or holds more than weights"
    text = " ".join(str(error).split())
    return (text if len(text) <= 300 else f"{text[:300]}...").rstrip(". ") or type(error).__name__
