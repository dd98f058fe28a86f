"""Announces the placement `capsule` and the command `capsules` to grpokit."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import CommandSpec, PlacementSpec, hookimpl

_INSTALL = "pip install 'grpokit[capsule]'"
_EXAMPLE = """
rewards:
  - use: "my_scorer:score"
    placement: {capsule: {requires: ["image-reward==1.5"], python: "3.10", path: scorers}}
"""


@hookimpl
def grpokit_placements() -> Iterator[PlacementSpec]:
    """Yield `capsule`."""
    yield PlacementSpec(
        api=1,
        name="capsule",
        factory="grpokit_capsule.reward:place",
        summary="processes in an environment of the reward's own, with its Python and its packages",
        install=_INSTALL,
        shorthand="requires",
        example=_EXAMPLE,
    )


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield `capsules`."""
    yield CommandSpec(
        api=1,
        name="capsules",
        factory="grpokit_capsule.command:capsules",
        summary="List, build or remove environments of rewards.",
        install=_INSTALL,
    )
