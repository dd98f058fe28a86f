"""Prompts for tiny pipelines, with the source pictures that each of them looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from grpokit import Prompt
from grpokit_diffusers.tiny import PIPELINES

SOURCES: Mapping[str, int] = {
    "tiny-flux-kontext": 1,
    "tiny-flux2": 6,
    "tiny-flux2-klein": 4,
    "tiny-longcat-image-edit": 1,
    "tiny-qwen-image-21": 10,
    "tiny-qwen-image-edit": 1,
    "tiny-qwen-image-edit-plus": 3,
}
"""The pipelines that edit -> how many pictures a prompt may bring."""

_SHORT = ("tiny-qwen-image-edit-plus", "tiny-z-image")


def case(model: str, *others: Any) -> Any:
    """What `parametrize` takes: `make test` has two of the pipelines, `make test-slow` the others."""
    return pytest.param(model, *others, marks=() if model in _SHORT else pytest.mark.slow)


EVERY = [case(model) for model in PIPELINES]


def noise(width: int, height: int) -> Image.Image:
    """A picture of noise, always the same of a size."""
    return Image.fromarray(np.random.default_rng(width).integers(256, size=(height, width, 3), dtype=np.uint8))


def prompts_of(model: str, texts: Sequence[str] = ("cat", 'a red "CAT" sign')) -> list[Prompt]:
    """The first prompt brings two pictures where the pipeline reads several, the others bring one."""
    count = min(2, SOURCES.get(model, 0))
    pictures = [noise(70 + 15 * i, 66) for i in range(len(texts) + 1)]
    return [Prompt(text=text, images=pictures[i : max(i + 1, count)] if count else ()) for i, text in enumerate(texts)]
