"""Announces the placement `http` and the command `serve-reward` to grpokit."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import CommandSpec, PlacementSpec, hookimpl

_INSTALL = "pip install 'grpokit[http]'"


@hookimpl
def grpokit_placements() -> Iterator[PlacementSpec]:
    """Yield `http`."""
    yield PlacementSpec(
        api=1,
        name="http",
        factory="grpokit_http.reward:place",
        example="rewards:\n  - {use: aesthetic, placement: {http: 'http://gpu-2:8009'}}",
        summary="a service of grpokit serve-reward, or several that share the work",
        install=_INSTALL,
        shorthand="urls",
    )


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield `serve-reward`."""
    yield CommandSpec(
        api=1,
        name="serve-reward",
        factory="grpokit_http.command:serve_reward",
        example="grpokit serve-reward aesthetic --port 8009",
        summary="Serve a reward to runs on other machines.",
        install=_INSTALL,
    )
