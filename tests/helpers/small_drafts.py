"""A GLM-Image that writes little: the fixture `small_draft`."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def small_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft of at most 16 tokens in place of 256, which each rollout would write: for what any draft shows."""
    from transformers import GlmImageProcessor

    from grpokit_glm_image import grids

    shape = GlmImageProcessor._get_target_shape

    def smaller(processor: Any, **size: int) -> tuple[int, int, int, int]:
        rows, columns, high, wide = shape(processor, **size)
        return rows, columns, high // 4, wide // 4

    monkeypatch.setattr(GlmImageProcessor, "_get_target_shape", smaller)
    monkeypatch.setattr(grids, "_DRAFT", 4)
