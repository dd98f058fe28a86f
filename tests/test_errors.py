"""Where an error is said to come from."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from torch import nn, zeros

from grpokit.errors import raised_at


def test_an_error_inside_of_torch_is_told_at_the_line_that_called_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(4, 3)(zeros(2))
    assert raised_at(caught.value).startswith("(test_errors.py, line ")


def test_a_folder_called_torch_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "torch" / "my_reward.py"
    file.parent.mkdir()
    file.write_text("def score():\n    raise ValueError('no')\n")
    spec = importlib.util.spec_from_file_location("my_reward", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="no") as caught:
        module.score()
    assert raised_at(caught.value) == "(my_reward.py, line 2, in score)"
