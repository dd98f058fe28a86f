"""What the plugin announces, and what its package brings."""

from __future__ import annotations

import importlib.metadata

from grpokit import registry
from grpokit_imscore.plugin import grpokit_rewards


def test_the_reward_runs_in_a_capsule() -> None:
    (spec,) = grpokit_rewards()
    kind, options = registry.placement_of("imscore", {"capsule": {"gpu": 1}})
    assert kind.endswith("capsule")
    assert options == {**spec.placement["capsule"], "gpu": 1}


def test_the_package_brings_nothing_heavy() -> None:
    requirements = importlib.metadata.requires("grpokit-imscore") or []
    assert {requirement.partition("~")[0] for requirement in requirements} == {"grpokit", "grpokit-capsule"}
