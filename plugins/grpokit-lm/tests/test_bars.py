"""Bars of transformers show where they are of use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_models import save_tiny_model
from transformers.utils import logging

from grpokit_lm.loading import load_model


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_shows_once_for_a_model_and_on_a_terminal_only(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.enable_progress_bar()  # the script that makes tiny models hides it, and another test calls that
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    folder, seen = save_tiny_model(tmp_path), []
    capsys.readouterr()
    for _ in range(2):
        load_model(folder)
        seen.append("Loading weights" in capsys.readouterr().err)
    assert seen == [terminal, False]
    assert logging.is_progress_bar_enabled()
