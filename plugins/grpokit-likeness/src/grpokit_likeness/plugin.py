"""Announces the rewards `reference-likeness` and `reference-nearness` to grpokit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpokit import Panel, RewardSpec, hookimpl

_INSTALL = "pip install 'grpokit[likeness]'"
_EXAMPLE = """
rewards:
  - {use: reference-likeness, references: my-pictures}
  - {use: reference-nearness, references: my-pictures, weight: 0}
"""


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `reference-likeness` and `reference-nearness`."""
    yield RewardSpec(
        api=1,
        name="reference-likeness",
        factory="grpokit_likeness.reward:ReferenceLikeness",
        summary="how well a picture passes for one of your own, by a head that learns to tell them during the run",
        accepts={"image"},
        install=_INSTALL,
        expected_failures={"numbers": "its head learns from what a run draws for training"},
        example=_EXAMPLE,
    )
    yield RewardSpec(
        api=1,
        name="reference-nearness",
        factory="grpokit_likeness.reward:ReferenceNearness",
        summary="minus the distance to the nearest of your own pictures that are held out (-1: as theirs, 0: a copy)",
        accepts={"image"},
        range=(None, 0.0),
        install=_INSTALL,
        example=_EXAMPLE,
    )


@hookimpl
def grpokit_panels(run: Any) -> Sequence[Panel]:
    """How well the heads of a run told references from pictures."""
    from grpokit_likeness.panel import panels

    return panels(run)
