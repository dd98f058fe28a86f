"""A pipeline without its weights: what is wrong with a setting shows there in seconds, whatever the model's size."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from grpokit_diffusers.folder import Index


def skeleton_of(folder: Path, index: Index) -> Any:
    """A pipeline whose transformer, autoencoder and text encoders have shapes and no values.

    Args:
        folder: with the configurations of the parts; weights need not be there.
        index: of it.

    Returns:
        None where it cannot be built; if that is a mistake, loading the weights says which.
    """
    try:
        kind = getattr(diffusers, index.kind)
        scheduler = getattr(diffusers, index.parts["scheduler"]).from_pretrained(folder / "scheduler")
        known = inspect.signature(kind.__init__).parameters
        parts = dict.fromkeys(p.name for p in known.values() if p.name != "self" and p.default is p.empty)
        parts["scheduler"] = scheduler
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            for name in ("transformer", "vae"):
                model = getattr(diffusers, index.parts[name])
                parts[name] = model.from_config(model.load_config(folder / name))
            for name, kind_of_part in index.parts.items():
                if name.startswith("text_encoder"):
                    encoder = getattr(transformers, kind_of_part)
                    parts[name] = encoder(encoder.config_class.from_pretrained(folder / name))
                elif name.startswith(("tokenizer", "processor", "text_processor")) and (folder / name).is_dir():
                    parts[name] = getattr(transformers, kind_of_part).from_pretrained(folder / name)
        return kind(**parts, **{name: value for name, value in index.settings.items() if name in known})
    except Exception:  # the code of a model is anybody's, and so are its files
        return None
