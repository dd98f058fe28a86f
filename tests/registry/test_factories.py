"""A parameter by another trainer's name leads to ours, where the component has it."""

from __future__ import annotations

from typing import Any

import pytest

from grpokit import PluginError, create


def policy(*, max_new_tokens: int = 1, lora: Any = None, top: int = 1) -> None:
    """A factory that no plugin brings."""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_completion_length", " (did you mean 'max_new_tokens'?)"),
        ("Use-PEFT", " (did you mean 'lora'?)"),
        ("lora_r", " (did you mean 'lora'?)"),
        ("max_new_token", " (did you mean 'max_new_tokens'?)"),  # misspelt
        ("model_name_or_path", ""),  # for which this one has no parameter
    ],
)
def test_a_parameter_by_another_name(name: str, hint: str) -> None:
    with pytest.raises(PluginError) as raised:
        create("policy", f"{__name__}:policy", {name: 1})
    assert f" has no parameter '{name}'{hint}. It accepts: max_new_tokens=1, " in str(raised.value)
