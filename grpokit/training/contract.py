"""What of the policy contract an object has: its methods, and whether `logprobs` takes the parameter `ask`."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from grpokit.policy import Policy
from grpokit.types import Ask, Decisions, Rollout

METHODS = ("rollout", "logprobs", "slices", "reference", "modules", "state_dict", "load_state_dict")


def missing_methods(policy: object) -> list[str]:
    """The methods of the contract that `policy` lacks, or only inherits from `Policy`, where they do nothing."""
    return [name for name in METHODS if not _has(policy, name)]


def _has(policy: object, name: str) -> bool:
    method = getattr(policy, name, None)
    inherited = getattr(method, "__func__", method) is getattr(Policy, name)
    return callable(method) and (name == "slices" or not inherited)


def scorer(policy: Policy) -> Callable[[Rollout, slice, Ask], Decisions]:
    """`policy.logprobs` as a function of rollout, steps and ask, for a method without the parameter `ask` too."""
    if "ask" in inspect.signature(policy.logprobs).parameters:
        return lambda rollout, steps, ask: policy.logprobs(rollout, steps, ask=ask)
    return lambda rollout, steps, ask: policy.logprobs(rollout, steps)
