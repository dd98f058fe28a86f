"""A model that fails while its path is chosen is named with what it did, and never ends in a traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import tiny_model
from torch import nn

from grpokit import UsageError
from grpokit_lm.paths import path_for
from grpokit_lm.plain_path import PlainPath

ERRORS = [AssertionError("one at a time"), ImportError("no flash_attn"), OSError("no kernel"), KeyError("layout")]


def failing(error: Exception, when: Callable[[dict[str, Any]], bool], *, decoder: bool = False) -> Any:
    """A model that raises whenever it is called in such a way."""
    model: Any = tiny_model("llama")
    module: nn.Module = model.model if decoder else model

    def check(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if when(named):
            raise error

    module.register_forward_pre_hook(check, with_kwargs=True)
    return model


def batched(named: dict[str, Any]) -> bool:
    return len(named["input_ids"]) > 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_a_model_raises_is_one_message(error: Exception) -> None:
    with pytest.raises(UsageError, match=rf"^LlamaForCausalLM cannot be run on a short text: {type(error).__name__}: "):
        path_for(failing(error, lambda named: True))
    words = "cannot be trained: scored in a batch, or written token by token, it does not give the log-probs of its own"
    with pytest.raises(UsageError, match=rf"{words} forward pass \(in scoring, {type(error).__name__}: .*\)\. Use"):
        path_for(failing(error, batched), fast=False)
    path, note = path_for(failing(error, lambda named: bool(named["use_cache"])), fast=False)
    assert isinstance(path, PlainPath)
    assert not path.cached
    assert f"cannot write with padding and a cache (in writing, {type(error).__name__}: " in note
    path, note = path_for(failing(error, lambda named: "packed" in named, decoder=True))
    assert isinstance(path, PlainPath)
    assert path.cached
    assert f"does not work with packed attention (in scoring, {type(error).__name__}: " in note


def test_a_lack_of_memory_is_no_problem_of_a_path() -> None:
    for when in (lambda named: True, batched):
        with pytest.raises(torch.OutOfMemoryError):
            path_for(failing(torch.OutOfMemoryError("full"), when), fast=False)
