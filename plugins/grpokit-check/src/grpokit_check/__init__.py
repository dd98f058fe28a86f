"""The conformance kit: what every component must do, as named checks.

The names here and those of `scaffold.write`, which writes the packages of `grpokit new`, are public; the other modules
are private. Each kind of component has a generator of `Check` records, such as `policy_checks`. Run them with
`parametrize_with_checks` in pytest, with `outcomes` in a program, or with `grpokit check NAME` on the command line.
`ladder` measures how easily a reward is fooled, and `LadderReport` is its result. `example_samples` are built-in
samples for a reward.

Names are imported on first use: they import torch, and listing plugins must stay fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpokit_check.advantages import advantage_checks as advantage_checks
    from grpokit_check.check import Check as Check
    from grpokit_check.check import CheckError as CheckError
    from grpokit_check.check import NotChecked as NotChecked
    from grpokit_check.check import Outcome as Outcome
    from grpokit_check.check import outcomes as outcomes
    from grpokit_check.check import parametrize_with_checks as parametrize_with_checks
    from grpokit_check.commands import command_checks as command_checks
    from grpokit_check.evaluations import evaluation_checks as evaluation_checks
    from grpokit_check.modifiers import modifier_checks as modifier_checks
    from grpokit_check.objectives import objective_checks as objective_checks
    from grpokit_check.observers import observer_checks as observer_checks
    from grpokit_check.policy.checks import policy_checks as policy_checks
    from grpokit_check.presets import preset_checks as preset_checks
    from grpokit_check.reward.checks import reward_checks as reward_checks
    from grpokit_check.reward.examples import example_samples as example_samples
    from grpokit_check.robustness.grades import LadderReport as LadderReport
    from grpokit_check.robustness.ladder import ladder as ladder
    from grpokit_check.worlds import world_checks as world_checks

__all__ = [
    "Check",
    "CheckError",
    "LadderReport",
    "NotChecked",
    "Outcome",
    "advantage_checks",
    "command_checks",
    "evaluation_checks",
    "example_samples",
    "ladder",
    "modifier_checks",
    "objective_checks",
    "observer_checks",
    "outcomes",
    "parametrize_with_checks",
    "policy_checks",
    "preset_checks",
    "reward_checks",
    "world_checks",
]

_HOME = {
    "advantages": ["advantage_checks"],
    "check": ["Check", "CheckError", "NotChecked", "Outcome", "outcomes", "parametrize_with_checks"],
    "commands": ["command_checks"],
    "evaluations": ["evaluation_checks"],
    "modifiers": ["modifier_checks"],
    "objectives": ["objective_checks"],
    "observers": ["observer_checks"],
    "policy.checks": ["policy_checks"],
    "presets": ["preset_checks"],
    "reward.checks": ["reward_checks"],
    "reward.examples": ["example_samples"],
    "robustness.grades": ["LadderReport"],
    "robustness.ladder": ["ladder"],
    "worlds": ["world_checks"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'grpokit_check' has no attribute '{name}'")
    return getattr(import_module(f"grpokit_check.{_MODULE_OF[name]}"), name)
