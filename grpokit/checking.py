"""Checks of a component by its name: `grpokit check` builds it as a run would, with prompts or samples to try it on.

Where a preset uses the component, its parameters and its prompts are taken; a policy that no preset uses needs
prompts, a reward meets the examples of its spec or built-in ones, and what it accepts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from grpokit import build, presets, registry
from grpokit.config import RunConfig
from grpokit.errors import GrpokitError, UsageError
from grpokit.evaluation import draw
from grpokit.testing import Check, Climb, find, policy_checks, reward_checks
from grpokit.types import Prompt


def of_policy(name: str, params: dict[str, Any], prompts: Sequence[Prompt] | None, *, slow: bool) -> Iterable[Check]:
    """The checks of a policy.

    Args:
        name: as in a config.
        params: for its factory; they go before those of the preset.
        prompts: what to draw for; by default the first three of a preset that uses it.
        slow: also check that it learns a toy reward.

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
    find.read(registry.create("policy", name, params), prompts)
    module = find.announced("policy", name)[1]
    return policy_checks(
        lambda: registry.create("policy", name, params), prompts, params=params, module=module, learn=slow
    )


def of_reward(name: str, params: dict[str, Any]) -> tuple[Iterable[Check], Climb]:
    """The checks of a reward, on samples of a preset that uses it, the examples of its spec, or built-in ones.

    Args:
        name: as in a config.
        params: for its factory; they go before those of the preset.

    Returns:
        The checks, and the ladder that some of them climb, for its report.
    """
    spec, module = find.announced("reward", name)
    config = _preset_with("reward", name)
    samples = None
    if config is not None:
        used = next(reward for reward in config.rewards if reward.use in (name, name.rpartition(":")[2]))
        params = used.params | params
        samples = draw(
            build.policy(config), build.prompts(config)[0][:3], seed=0, samples_per_prompt=3, stream="sample"
        )
    reward = registry.create("reward", name, params)
    climb = Climb(reward, spec=spec)
    return reward_checks(reward, samples, spec=spec, params=params, module=module, ladder=climb), climb


def _preset_with(kind: str, name: str) -> RunConfig | None:
    """The config of the first preset that uses a component, or None."""
    for plugin, spec in registry.specs("preset"):
        try:
            config, _ = presets.read_config(f"{plugin.name}:{spec.name}")
        except GrpokitError:  # a broken preset is not what is checked
            continue
        used = [config.policy.use] if kind == "policy" else [reward.use for reward in config.rewards]
        if name.rpartition(":")[2] in used or name in used:
            return config
    return None
