"""What a folder of a GLM-Image pipeline must hold. It is looked at before weights are read: a mistake costs seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import GlmImageConfig, PreTrainedConfig

from grpokit import UsageError
from grpokit.errors import one_line
from grpokit_glm_image.grids import PIXELS
from grpokit_hf.models import sources

WRITER = "vision_language_encoder"
_PIPELINE = "GlmImagePipeline"
_SCHEDULER = "FlowMatchEulerDiscreteScheduler"
_CONFIGS = {  # part -> its configuration
    WRITER: "config.json",
    "transformer": "config.json",
    "vae": "config.json",
    "text_encoder": "config.json",
    "scheduler": "scheduler_config.json",
}
_FILES = {**_CONFIGS, "processor": "*.json", "tokenizer": "*.json"}
_WITH_WEIGHTS = (WRITER, "transformer", "vae", "text_encoder")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")  # never pickled: a .bin file may hold code
_NEED = f"Give a folder that {_PIPELINE}.save_pretrained wrote, or a hub id like 'zai-org/GLM-Image'."
LOADING_ERRORS = (  # what libraries raise on files with wrong contents
    OSError,
    ValueError,
    RuntimeError,
    TypeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    StrictDataclassError,
    SafetensorError,
)
_DRAFT = 256  # tokens, more or less, whatever the size of the picture


def check_configs(folder: Path) -> tuple[GlmImageConfig, dict[str, Mapping[str, Any]]]:
    """The configuration of the autoregressive half, and those of all parts as they are in their files.

    Raises:
        UsageError: the folder is no GLM-Image pipeline, or a part is not there.
    """
    what = f"The model folder '{folder}'"
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is a file. {_NEED}" if folder.exists() else f"{what} does not exist. {_NEED}")
    if not (folder / "model_index.json").is_file():
        raise UsageError(f"{what} {_instead(folder)}")
    index = _read(folder / "model_index.json")
    kind = index.get("_class_name")
    if kind != _PIPELINE:
        raise UsageError(f"{what} holds a {kind}, not a {_PIPELINE}. {_NEED}")
    for part, file in _FILES.items():
        if not sources.has(folder / part, (file,)):
            raise UsageError(f"{what} is incomplete: it has no '{part}/{file}'. {sources.AGAIN}")
    configs = {part: _read(folder / part / file) for part, file in _CONFIGS.items()}
    kind = configs[WRITER].get("model_type")
    if kind != GlmImageConfig.model_type:
        raise UsageError(
            f"{what} has a model of type '{kind}' in '{WRITER}'. Expected '{GlmImageConfig.model_type}', which writes "
            "visual tokens."
        )
    check_scheduler(str(folder), str(configs["scheduler"].get("_class_name")))
    try:
        return GlmImageConfig.from_pretrained(folder / WRITER), configs
    except LOADING_ERRORS as error:
        raise UsageError(f"'{folder / WRITER / 'config.json'}' cannot be used: {one_line(error)}.") from error


def check_scheduler(name: str, kind: str) -> None:
    """Refuse a scheduler of another kind than the released model's.

    Args:
        name: of the pipeline.
        kind: the name of its scheduler's class.

    Raises:
        UsageError: as it says.
    """
    if kind != _SCHEDULER:
        raise UsageError(
            f"The scheduler of the model '{name}' is {kind}. Expected {_SCHEDULER}: the decoder follows straight paths "
            "from noise to data, in Euler's steps."
        )


def lack_of(folder: Path) -> str:
    """What a folder in the cache lacks, such as "without the weights of 'vae'"; empty if all is there."""
    for part, file in _FILES.items():
        if not sources.has(folder / part, (file,)):
            return f"without '{part}/{file}'"
    for part in _WITH_WEIGHTS:
        if not sources.has(folder / part, _WEIGHTS):
            return f"without the weights of '{part}'"
        if sources.lack_of(folder / part):
            return sources.lack_of(folder / part)
    return ""


def check_weights(folder: Path) -> None:
    """Refuse a folder in which weights are not there, torn or incomplete; they are not read.

    Raises:
        UsageError: with the part.
    """
    for part in _WITH_WEIGHTS:
        if not sources.has(folder / part, _WEIGHTS):
            raise UsageError(
                f"The model folder '{folder}' has no weights in '{part}': expected .safetensors. {sources.AGAIN}"
            )
        sources.check_weights(folder / part)


def check_fit(name: str, writer: GlmImageConfig, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse parts that do not belong together.

    Args:
        name: of the pipeline.
        writer: configuration of the autoregressive half.
        parts: those of the transformer, the autoencoder and the text encoder.

    Raises:
        UsageError: two of them disagree about a number.
    """
    transformer, vae, text_encoder = (parts[part] for part in ("transformer", "vae", "text_encoder"))
    codebook = writer.vq_config
    assert isinstance(codebook, PreTrainedConfig)  # also where a mapping was given
    codes = ("visual codes", f"{WRITER}: vq_config.num_embeddings", codebook.num_embeddings)
    facts = (
        (codes, (f"{WRITER}: image_start_token_id", writer.image_start_token_id)),
        (codes, _fact(transformer, "transformer", "prior_vq_quantizer_codebook_size")),
        (("channels", *_fact(vae, "vae", "latent_channels")), _fact(transformer, "transformer", "in_channels")),
        (
            ("numbers for a glyph", *_fact(text_encoder, "text_encoder", "d_model")),
            _fact(transformer, "transformer", "text_embed_dim"),
        ),
    )
    for (what, where, value), (other, theirs) in facts:
        if value != theirs:
            raise UsageError(
                f"The parts of the model '{name}' do not belong together. The number of {what} is {value} by {where}, "
                f"and {theirs} by {other}. Use parts of one pipeline."
            )
    blocks, patch = vae.get("block_out_channels"), transformer.get("patch_size")
    if not (isinstance(blocks, Sequence) and isinstance(patch, int) and 2 ** len(blocks) * patch == PIXELS):
        raise UsageError(
            f"The parts of the model '{name}' do not belong together. A visual token is {PIXELS} x {PIXELS} pixels, "
            "and the transformer's must have half that side: 2 ** (blocks of the autoencoder - 1) * patch_size. "
            f"Got vae: block_out_channels {blocks} and transformer: patch_size {patch}."
        )


def check_context(size: tuple[int, int], writer: GlmImageConfig, *, edits: bool) -> None:
    """Refuse a size of pictures that leaves no place for a prompt.

    Args:
        size: height and width in pixels.
        writer: configuration of the autoregressive half.
        edits: whether pictures have no draft.

    Raises:
        UsageError: there are too many tokens.
    """
    context = writer.get_text_config().max_position_embeddings
    tokens = size[0] // PIXELS * (size[1] // PIXELS) + (0 if edits else _DRAFT)
    if tokens >= context:
        raise UsageError(
            f"size is {size[0]} x {size[1]}: such a picture has {tokens:,} visual tokens, and the model reads "
            f"{context:,} at most, those of the prompt included. Choose a smaller size."
        )


def _fact(config: Mapping[str, Any], part: str, key: str) -> tuple[str, Any]:
    return f"{part}: {key}", config.get(key)


def _instead(folder: Path) -> str:
    """What a folder without a pipeline's index holds, and what to do."""
    if (folder / "adapter_config.json").is_file():
        return (
            "holds an adapter, not a pipeline. Name the pipeline that it was trained on; to train the adapter on, add "
            f"lora: {{adapter: {folder}}}."
        )
    if not (folder / "config.json").is_file():
        return f"has no model_index.json. {_NEED}"
    kind = _read(folder / "config.json").get("model_type")
    if kind == GlmImageConfig.model_type:
        return (
            "holds the autoregressive half alone, and pictures need the decoder, too. Name the folder of the pipeline, "
            f"in which this one is called '{WRITER}'."
        )
    return f"holds a single model of type '{kind}', not a pipeline. {_NEED} Language models have the policy hf-lm."


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"'{file}' is damaged ({one_line(error)}). {sources.AGAIN}") from error
    if not isinstance(content, dict):
        raise UsageError(f"'{file}' is damaged: expected keys and values. {sources.AGAIN}")
    return content
