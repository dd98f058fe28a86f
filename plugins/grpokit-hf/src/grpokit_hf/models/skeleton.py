"""A model without its weights: its layers, shapes and names, from its configuration alone.

What is wrong with a setting shows there in a second, whatever the size of the model.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from grpokit_hf.models.sources import Source


def skeleton_of(source: Source, kind: Any) -> PreTrainedModel | None:
    """The model on torch's device "meta", where tensors have shapes and no values.

    Args:
        source: the model.
        kind: transformers' class that would load it.

    Returns:
        None where it cannot be built; if that is a mistake, loading the weights says which. None also for a model whose
        code is its own: transformers would not ask for the revision, and take this class for the weights, too.
    """
    if source.options["trust_remote_code"] and getattr(source.config, "auto_map", None):
        return None
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model: PreTrainedModel = kind.from_config(copy.deepcopy(source.config))
        with suppress(OSError):  # not every model has one
            options = {name: source.options[name] for name in ("revision", "local_files_only")}
            model.generation_config = GenerationConfig.from_pretrained(source.place, **options)
    except Exception:  # the code of a model is anybody's, and so are its files
        return None
    return model
