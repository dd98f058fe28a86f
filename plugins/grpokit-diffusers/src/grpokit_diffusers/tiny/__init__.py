"""Tiny random pipelines of the real classes, made without any file or network.

They draw nothing recognisable, but all of their parts work. Tests run on them, and so does `model: tiny-sd3`. Each has
a module here with the name of its family's, and in it a function `pipeline`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

PIPELINES = (
    "tiny-chroma",
    "tiny-cogview4",
    "tiny-ernie-image",
    "tiny-flux",
    "tiny-flux-kontext",
    "tiny-flux2",
    "tiny-flux2-klein",
    "tiny-krea2",
    "tiny-longcat-image",
    "tiny-longcat-image-edit",
    "tiny-lumina2",
    "tiny-qwen-image",
    "tiny-qwen-image-21",
    "tiny-qwen-image-edit",
    "tiny-qwen-image-edit-plus",
    "tiny-sana",
    "tiny-sd3",
    "tiny-z-image",
)
"""What `model` may name."""


def tiny_pipeline(name: str, *, seed: int = 0) -> Any:
    """A pipeline with random weights, on the CPU in float32; the global random state stays as it is.

    Args:
        name: one of `PIPELINES`.
        seed: of the weights.
    """
    module = name.removeprefix("tiny-").replace("-", "_")
    make = import_module(f"grpokit_diffusers.tiny.{module}").pipeline
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reset a GPU's random state, too
        return make()
