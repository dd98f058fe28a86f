"""Announces the reward `human-vote` and the command `vote` to grpokit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpokit import CommandSpec, Panel, RewardSpec, hookimpl

_INSTALL = "pip install 'grpokit[vote]'"
_EXAMPLE = """
rewards:
  - {use: human-vote, question: "Which sign is easier to read?", how: pairs}
"""


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `human-vote`."""
    yield RewardSpec(
        api=1,
        name="human-vote",
        factory="grpokit_vote.reward:HumanVote",
        summary="people vote on each group in a browser; a model of their taste may answer for them",
        install=_INSTALL,
        per_sample=False,
        expected_failures={
            "numbers": "people see only what a run draws for training",
            "missing-dependency": "it asks through files; only the page needs starlette and uvicorn",
        },
        example=_EXAMPLE,
    )


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield `vote`."""
    yield CommandSpec(
        api=1,
        name="vote",
        factory="grpokit_vote.command:vote",
        summary="Vote on what a run draws, in a browser.",
        install=_INSTALL,
        example="grpokit vote runs/my-run",
    )


@hookimpl
def grpokit_panels(run: Any) -> Sequence[Panel]:
    """What the votes of a run say."""
    if not (run.folder / "votes" / "scored.jsonl").exists():
        return []
    from grpokit_vote.panel import panels

    return panels(run)
