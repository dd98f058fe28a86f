"""Announces the commands `check` and `new` to grpokit."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import CommandSpec, hookimpl

_INSTALL = "pip install 'grpokit[check]'"


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield `check` and `new`."""
    yield CommandSpec(
        api=1,
        name="check",
        factory="grpokit_check.check_command:check",
        example="grpokit check length",
        summary="Check a component against its contract.",
        install=_INSTALL,
    )
    yield CommandSpec(
        api=1,
        name="new",
        factory="grpokit_check.new_command:new",
        example="grpokit new reward shine",
        summary="Write the package of a new component.",
        install=_INSTALL,
    )
