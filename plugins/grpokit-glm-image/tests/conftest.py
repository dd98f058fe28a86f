"""What several files share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from transformers import GlmImageProcessor

from grpokit_glm_image import grids


@pytest.fixture
def small_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft of at most 16 tokens in place of 256, which each rollout would write: for what any draft shows."""
    shape: Callable[..., tuple[int, int, int, int]] = GlmImageProcessor._get_target_shape

    def smaller(processor: GlmImageProcessor, **size: int) -> tuple[int, int, int, int]:
        rows, columns, high, wide = shape(processor, **size)
        return rows, columns, high // 4, wide // 4

    monkeypatch.setattr(GlmImageProcessor, "_get_target_shape", smaller)
    monkeypatch.setattr(grids, "_DRAFT", 4)
