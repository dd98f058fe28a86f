"""The conformance kit: what every component must do, as named checks.

The names here are public; the modules of this folder are private. Each kind of component has a generator of `Check`
records, such as `policy_checks`. Run them with `parametrize_with_checks` in pytest, with `outcomes` in a program, or
with `grpokit check NAME` on the command line. `ladder` measures how easily a reward is fooled, and `LadderReport` is
its result. `example_samples` are built-in samples for a reward.
"""

from __future__ import annotations

from grpokit.testing.advantages import advantage_checks as advantage_checks
from grpokit.testing.check import Check as Check
from grpokit.testing.check import CheckError as CheckError
from grpokit.testing.check import NotChecked as NotChecked
from grpokit.testing.check import Outcome as Outcome
from grpokit.testing.check import outcomes as outcomes
from grpokit.testing.check import parametrize_with_checks as parametrize_with_checks
from grpokit.testing.commands import command_checks as command_checks
from grpokit.testing.evaluations import evaluation_checks as evaluation_checks
from grpokit.testing.modifiers import modifier_checks as modifier_checks
from grpokit.testing.objectives import objective_checks as objective_checks
from grpokit.testing.observers import observer_checks as observer_checks
from grpokit.testing.policy.checks import policy_checks as policy_checks
from grpokit.testing.presets import preset_checks as preset_checks
from grpokit.testing.reward.checks import reward_checks as reward_checks
from grpokit.testing.reward.examples import example_samples as example_samples
from grpokit.testing.robustness.grades import LadderReport as LadderReport
from grpokit.testing.robustness.ladder import ladder as ladder
from grpokit.testing.worlds import world_checks as world_checks

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
