"""Announces the command `plan` to grpokit."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import CommandSpec, hookimpl


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield `plan`."""
    yield CommandSpec(
        api=1,
        name="plan",
        factory="grpokit_plan.command:plan",
        summary="Estimate memory and time of a training step on a GPU.",
        install="pip install 'grpokit[plan]'",
        config=True,
    )
