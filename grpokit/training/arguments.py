"""The types of arguments: a wrong one is named at once, not by whoever uses it first."""

from __future__ import annotations

from grpokit.errors import UsageError, shown
from grpokit.knobs import Correction
from grpokit.objectives import Objective
from grpokit.training.contract import missing_methods


def check_policy(policy: object) -> None:
    """Make sure that an argument is a policy, with the methods of the contract."""
    missing = missing_methods(policy)
    if missing or isinstance(policy, type):
        lack = f"which lacks {', '.join(missing)}" if missing else "a class; make an object of it"
        raise UsageError(f"policy is {shown(policy)}, {lack}. See grpokit.Policy.")


def check_arguments(
    *, policy: object, advantage: object, objective: object, correction: object, trackers: object
) -> None:
    """Check what `Trainer` was given besides its knobs, its rewards and its prompts."""
    check_policy(policy)
    for name, value, right, expected in (
        ("advantage", advantage, callable(advantage), "a function such as grpokit.advantages.group"),
        ("objective", objective, isinstance(objective, Objective), "an objective such as grpokit.objectives.GRPO()"),
        (
            "correction",
            correction,
            correction is None or isinstance(correction, Correction),
            "None, or one such as grpokit.Correction(how='mask')",
        ),
        ("trackers", trackers, isinstance(trackers, (list, tuple)), 'a list of names such as ["tensorboard"]'),
    ):
        if not right:
            raise UsageError(f"{name} is {shown(value)}; expected {expected}.")
