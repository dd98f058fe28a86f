"""Announces the rewards `box-iou` and `box-format` to grpokit.

A light module: it imports only grpokit, and the rewards themselves need nothing else either. They are imported when a
run asks for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import RewardSpec, hookimpl

_INSTALL = "pip install 'grpokit[grounding]'"


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `box-iou` and `box-format`."""
    yield RewardSpec(
        name="box-iou",
        factory="grpokit_grounding.reward:BoxIoU",
        summary="overlap of the answer's box and the target box (1: the same box, 0: apart, or no box)",
        accepts={"text"},
        range=(0.0, 1.0),
        install=_INSTALL,
    )
    yield RewardSpec(
        name="box-format",
        factory="grpokit_grounding.reward:BoxFormat",
        summary="1 where the text is thoughts and then one box, each in its tags, and nothing else",
        accepts={"text"},
        range=(0.0, 1.0),
        install=_INSTALL,
    )
