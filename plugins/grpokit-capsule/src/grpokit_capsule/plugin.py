"""Announces the placement and the world `capsule`, and the command `capsules`, to grpokit."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import CommandSpec, PlacementSpec, WorldSpec, hookimpl

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
def grpokit_worlds() -> Iterator[WorldSpec]:
    """Yield `capsule`, and the environments of other libraries that run in one."""
    yield WorldSpec(
        api=1,
        name="capsule",
        factory="grpokit_capsule.world:CapsuleWorld",
        example="policy:\n  use: hf-lm\n  model: Qwen/Qwen3-0.6B\n"
        '  world: {use: capsule, world: "my_world:World", requires: ["textworld==1.6"], path: worlds}\n',
        summary="a world in an environment of its own, with its Python and its packages",
        install=_INSTALL,
    )
    yield WorldSpec(
        api=1,
        name="openenv",
        factory="grpokit_capsule.world:openenv",
        example="policy:\n  use: hf-lm\n  model: Qwen/Qwen3-0.6B\n"
        '  world: {use: openenv, environment: "my_env.server:MyEnvironment", requires: [./my_env]}\n',
        summary="an environment of OpenEnv, with its tools, in a capsule",
        install=_INSTALL,
    )
    yield WorldSpec(
        api=1,
        name="verifiers",
        factory="grpokit_capsule.world:verifiers",
        example="policy:\n  use: hf-lm\n  model: Qwen/Qwen3-0.6B\n"
        "  world: {use: verifiers, environment: {taskset: {id: my_tasks}}, requires: [verifiers==0.4.0, ./my_tasks]}\n",
        summary="an environment of verifiers, without tools, in a capsule",
        install=_INSTALL,
    )


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield `capsules`."""
    yield CommandSpec(
        api=1,
        name="capsules",
        factory="grpokit_capsule.command:capsules",
        summary="List, build or remove environments of rewards and worlds.",
        install=_INSTALL,
    )
