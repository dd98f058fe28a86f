"""Announces the placement `ray` to grpokit. Ray itself is imported once a config names it."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import PlacementSpec, hookimpl


@hookimpl
def grpokit_placements() -> Iterator[PlacementSpec]:
    """Yield `ray`."""
    yield PlacementSpec(
        api=1,
        name="ray",
        factory="grpokit_ray.reward:place",
        example="rewards:\n  - {use: aesthetic, placement: {ray: {replicas: 4, gpus: 0.25}}}",
        summary="actors of a Ray cluster, each with its share of a GPU and, if asked, its own pip environment",
        install="pip install 'grpokit[ray]'",
    )
