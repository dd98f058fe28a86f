"""Announces the commands `diagnose` and `try` to grpokit."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import CommandSpec, hookimpl


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield the commands."""
    yield CommandSpec(
        api=1,
        name="diagnose",
        factory="grpokit_diagnosis.diagnose_command:diagnose",
        summary="Say why a run's reward does not move, and what to change.",
        install="pip install 'grpokit[diagnosis]'",
    )
    yield CommandSpec(
        api=1,
        name="try",
        factory="grpokit_diagnosis.try_command:try_reward",
        summary="Score a few pictures or texts with a reward, and show where the scores come from.",
        install="pip install 'grpokit[diagnosis]'",
    )
