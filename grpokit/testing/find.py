"""Finds what `grpokit check NAME` is to check: which kind it is, what its plugin says, whether prompts suit it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

from grpokit import registry
from grpokit.errors import UsageError, nearest
from grpokit.policy import Policy, missing_methods
from grpokit.sampling import derive_seeds
from grpokit.types import Prompt


def kind_of(name: str, kind: str | None) -> str:
    """Whether `name` is a policy or a reward: "policy" or "reward".

    Args:
        name: a plugin's name for it, or "package.module:Name".
        kind: what the user says it is, if anything.

    Raises:
        UsageError: no such name, module or attribute, or both a policy and a reward have it.
    """
    if kind not in (None, "policy", "reward"):
        raise UsageError(f"--kind must be policy or reward, got '{kind}'.")
    if kind is not None:
        return kind
    known = {(k, n) for k in ("policy", "reward") for p, s in registry.specs(k) for n in (s.name, f"{p.name}:{s.name}")}
    found = [k for k, n in sorted(known) if n == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"'{name}' is a policy and a reward: add --kind policy or --kind reward.")
    if ":" not in name:
        names = sorted({n for _, n in known if ":" not in n})
        remedy = registry.remedy("policy", name) or registry.remedy("reward", name)
        raise UsageError(
            f"There is no policy or reward called '{name}'{'' if remedy else nearest(name, names)}. "
            f"Known: {', '.join(names) or 'none'}.{remedy}"
        )
    target = registry.resolve(name)
    policy = isinstance(target, type) and (issubclass(target, Policy) or not missing_methods(target))
    return "policy" if policy else "reward"


def announced(kind: str, name: str) -> tuple[Any, str | None]:
    """The spec of a plugin's component, and the module behind the plugin's entry point."""
    for plugin, spec in registry.specs(kind):
        if name in (spec.name, f"{plugin.name}:{spec.name}"):
            return spec, next(iter(importlib.metadata.entry_points(group="grpokit", name=plugin.name))).module
    return None, None


def read(policy: Policy, prompts: Sequence[Prompt]) -> None:
    """Let a policy read prompts.

    Raises:
        UsageError: it cannot, so that the prompts are to blame and not the policy.
    """
    try:
        seeds = derive_seeds(0, stream="sample", step=0, prompts=len(prompts), group_size=1)
        policy.rollout(prompts, 1, seeds=seeds)
    except UsageError:
        raise
    except (Exception, SystemExit):  # for the checks to say
        return
