"""Checks of a component by its name, for `grpokit check`: the component is built as a run builds it.

Where a preset uses the component, the checks use the preset's parameters and prompts. A policy that no preset uses
needs prompts. A reward that no preset uses scores the examples of its spec, or built-in samples.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from grpokit import registry
from grpokit.config import presets
from grpokit.config.schema import RunConfig
from grpokit.data import check_prompts
from grpokit.errors import GrpokitError, UsageError
from grpokit.evaluation.held_out import draw
from grpokit.policy import Policy
from grpokit.registry.specs import PolicySpec, PresetSpec, RewardSpec, Spec
from grpokit.rewards.submission import Submits
from grpokit.runs import build
from grpokit.testing import Check, Ladder, policy_checks, reward_checks
from grpokit.training.contract import missing_methods
from grpokit.types import Prompt

_KINDS = ("policy", "reward")


def kind_of(name: str, kind: str | None) -> str:
    """Whether `name` is a policy or a reward: "policy" or "reward".

    Raises:
        UsageError: no such name, module or attribute, or both a policy and a reward have it.
    """
    if kind not in (None, *_KINDS):
        raise UsageError(f"--kind must be policy or reward, got '{kind}'.")
    kinds = [kind] if kind else [k for k in _KINDS if registry.named(k, name)]
    if len(kinds) > 1:
        raise UsageError(f"'{name}' is a policy and a reward: add --kind policy or --kind reward.")
    if kinds:
        return kinds[0]
    if ":" not in name:
        raise registry.unknown(name, *_KINDS)
    target = registry.resolve(name)
    policy = isinstance(target, type) and (Policy in target.__mro__ or not missing_methods(target))
    return "policy" if policy else "reward"


def of_policy(name: str, params: dict[str, Any], prompts: Sequence[Prompt] | None) -> Iterable[Check]:
    """The checks of a policy.

    Without prompts, the first three of a preset that uses it are drawn for.

    Raises:
        UsageError: no prompts and no preset, or prompts that the policy cannot read.
    """
    if prompts is None:
        config = _preset_with("policy", name)
        if config is None:
            raise UsageError(
                f"No preset uses the policy '{name}', so give prompts that it can read: --prompt or --prompts."
            )
        params = config.policy.params | params
        prompts = build.prompts(config)[0][:3]
    policy = registry.create("policy", name, params)
    if isinstance(policy, Mapping):
        raise UsageError(
            f"'{name}' gives several policies ({', '.join(policy)}), but a check needs one. Check each by its own "
            "name, or by `package.module:function`."
        )
    check_prompts(policy, prompts)
    spec, module = _announced("policy", name)
    return policy_checks(
        lambda: registry.create("policy", name, params),
        prompts,
        makes=spec.makes if isinstance(spec, PolicySpec) else "",
        params=params,
        module=module,
    )


@contextmanager
def of_reward(name: str, params: dict[str, Any]) -> Iterator[tuple[Iterable[Check], Ladder]]:
    """The checks of a reward, on samples of a preset that uses it, the examples of its spec, or built-in ones.

    Yields:
        The checks, and the ladders that some of them read, for their report. A reward that scores elsewhere is closed
        at the end.
    """
    spec, module = _announced("reward", name)
    config = _preset_with("reward", name)
    samples = None
    if config is not None:
        params = next(term.params for term in config.rewards if term.use in _titles(name)) | params
        prompts = build.prompts(config)[0][:3]
        samples = draw(build.policy(config), prompts, seed=0, samples_per_prompt=3, stream="sample")
    reward = registry.create("reward", name, params)
    try:
        ladder = Ladder(reward, spec=spec if isinstance(spec, RewardSpec) else None)
        yield reward_checks(reward, samples, spec=ladder.spec, params=params, module=module, ladder=ladder), ladder
    finally:
        if isinstance(reward, Submits):
            reward.close()


def _preset_with(kind: str, name: str) -> RunConfig | None:
    """The config of the first preset that uses a component, or None."""
    for plugin, spec in registry.installed("preset"):
        if isinstance(spec, PresetSpec) and spec.fetches:
            continue
        try:
            config, _ = presets.read_config(f"{plugin.name}:{spec.name}")
        except GrpokitError:  # the check is not about this preset
            continue
        terms = [config.policy] if kind == "policy" else config.rewards
        if any(term.use in _titles(name) for term in terms):
            return config
    return None


def _titles(name: str) -> tuple[str, str]:
    """How a config may name a component: with or without its plugin."""
    return name, name.rpartition(":")[2]


def _announced(kind: str, name: str) -> tuple[Spec | None, str | None]:
    """The spec of a plugin's component, and the module behind the plugin's entry point."""
    if not registry.named(kind, name):
        return None, None
    plugin, spec = registry.find(kind, name)
    return spec, next(iter(importlib.metadata.entry_points(group="grpokit", name=plugin.name))).module
