"""Whose scores may be compared: rewards that score on the same scale, in several runs or before and after a change.

A scale is a reward's `use` with its parameters, and the code behind it: the version of its plugin, or the digest of its
own module. A parameter may name another component, such as the reward of crops or a policy's world.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from grpokit import registry
from grpokit.config.parts import RewardConfig
from grpokit.config.schema import differences, texts
from grpokit.run_folder.reader import RunHistory

_SCORING = ("policy", "reward", "world", "dataset")  # kinds of components that move a score


def version_keys(component: Mapping[str, Any]) -> set[str]:
    """The keys of `versions.json`, with dots, for the code of a component and of all that its parameters name."""
    keys = set()
    for name in {*texts(component)}:
        module, *_ = name.split(":")
        keys.add(f"code.{module}")
        for kind in _SCORING:
            keys |= {f"plugins.{plugin.package}" for plugin, _ in registry.named(kind, name)}
    return keys


def on_another_scale(first: RunHistory, other: RunHistory) -> list[str]:
    """The rewards of one name whose scores in two runs cannot be compared."""
    before = packages_of(first.versions)
    after = packages_of(other.versions)
    changed = {key for key, *_ in version_changes(before, after)}
    names = []
    for name in sorted(first.rewards.keys() & other.rewards.keys()):
        one, two = first.rewards[name], other.rewards[name]
        other_environment = any(key.startswith(f"rewards.{name}.") for key in changed)
        if _factory(one) != _factory(two) or other_environment or not changed.isdisjoint(version_keys(one)):
            names.append(name)
    return names


def version_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What differs between two headers: (dotted key, before, now); a reward counts that both tell of."""
    first, second = dict(before), dict(now)
    rewards, others = (header.pop("rewards", {}) for header in (first, second))
    changes = [*differences(first, second)]
    for name in rewards.keys() & others.keys():
        changes += differences(rewards[name], others[name], f"rewards.{name}")
    return changes


def same_mix(first: RunHistory, other: RunHistory) -> bool:
    """Whether the weighted sums are of the same rewards, on one scale."""
    trained = {name for name, weight in first.weights.items() if weight}
    return first.weights == other.weights and trained.isdisjoint(on_another_scale(first, other))


def _factory(reward: Mapping[str, Any]) -> dict[str, Any]:
    """What a reward is built from: not its weight, nor where it runs."""
    others = RewardConfig.model_fields.keys() - {"use"}
    return {key: value for key, value in reward.items() if key not in others}


def packages_of(versions: str) -> dict[str, Any]:
    """What a run's file of versions holds; nothing if it cannot be read."""
    try:
        packages = json.loads(versions)
    except (ValueError, RecursionError):
        return {}
    return packages if isinstance(packages, dict) else {}
