"""Whether what a trainer was given has what their contracts say; a wrong argument is named at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from grpokit.errors import UsageError, brief
from grpokit.objectives import Objective
from grpokit.policy import Policy
from grpokit.types import Ask, Decisions, Rollout

METHODS = ("rollout", "logprobs", "slices", "reference", "modules", "state_dict", "load_state_dict")
"""What a policy must have; see `grpokit.Policy`."""


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


def check_policy(policy: object) -> None:
    """Make sure that an argument is a policy, with the methods of the contract."""
    missing = missing_methods(policy)
    if missing or isinstance(policy, type):
        lack = f"which lacks {', '.join(missing)}" if missing else "a class; make an object of it"
        raise UsageError(f"policy is {brief(policy)}, {lack}. See grpokit.Policy.")


def check_arguments(*, policy: object, advantage: object, objective: object) -> None:
    """Check what `Trainer` was given besides its settings, its rewards and its prompts."""
    check_policy(policy)
    if not callable(advantage):
        raise UsageError(f"advantage is {brief(advantage)}; expected a function such as grpokit.advantages.group.")
    if not isinstance(objective, Objective):
        raise UsageError(f"objective is {brief(objective)}; expected an objective such as grpokit.objectives.GRPO().")
