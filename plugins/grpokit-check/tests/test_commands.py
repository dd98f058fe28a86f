"""The checks of commands: a right one passes, and each mistake is caught by its check."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import typer

from grpokit import CommandSpec, registry
from grpokit_check import command_checks, outcomes

SPEC = CommandSpec(api=1, name="greet", factory="x:greet", summary="Greet someone.")


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if o.failed}


def greet(name: str, times: Annotated[int, typer.Option(help="How often.")] = 1) -> None:
    """Greet someone."""


def odd(name: int | str) -> None:
    """Typer reads no unions."""


def prints_at_once(loud: Annotated[bool, typer.Option("--help")] = False) -> None:
    """Takes the place of --help."""


@pytest.mark.parametrize("name", [spec.name for _, spec in registry.installed("command")])
def test_commands_of_our_plugins(name: str) -> None:
    _, spec = registry.find("command", name)
    assert isinstance(spec, CommandSpec)
    assert not failed(command_checks(registry.resolve(spec.factory), spec=spec))


@pytest.mark.parametrize(
    ("function", "fields", "caught"),
    [
        (greet, {}, set()),
        (odd, {}, {"signature"}),
        (prints_at_once, {}, {"signature"}),
        (greet, {"name": "train"}, {"own-name"}),
        (greet, {"summary": " "}, {"summary"}),
    ],
)
def test_what_is_wrong_is_caught(function: Callable[..., Any], fields: dict[str, str], caught: set[str]) -> None:
    spec = CommandSpec(**{**vars(SPEC), **fields})
    found = failed(command_checks(function, spec=spec))
    assert set(found) == caught, found
    assert all(re.match(r"Expected .*; got ", m) for m in found.values()), found
