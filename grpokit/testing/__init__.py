"""The conformance kit: what every policy and every reward must do, as named checks.

`policy_checks` and `reward_checks` yield `Check` records; `grpokit check NAME` and the decorator
`parametrize_with_checks` are two thin fronts to them. `ladder` grades how easily a reward is fooled. Names are imported
on first use, so that a test module that only names them does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpokit._lazy import lazy

_MODULE_OF = {
    "Check": "check",
    "CheckError": "check",
    "NotChecked": "check",
    "Outcome": "check",
    "outcomes": "check",
    "policy_checks": "policy.checks",
    "reward_checks": "reward.checks",
    "example_samples": "reward.examples",
    "ladder": "robustness.ladder",
    "ladder_checks": "robustness.ladder",
    "Climb": "robustness.ladder",
    "LadderReport": "robustness.grades",
    "parametrize_with_checks": "pytest_front",
}
__all__ = [
    "Check",
    "CheckError",
    "Climb",
    "LadderReport",
    "NotChecked",
    "Outcome",
    "example_samples",
    "ladder",
    "ladder_checks",
    "outcomes",
    "parametrize_with_checks",
    "policy_checks",
    "reward_checks",
]

if TYPE_CHECKING:
    from grpokit.testing.check import Check as Check
    from grpokit.testing.check import CheckError as CheckError
    from grpokit.testing.check import NotChecked as NotChecked
    from grpokit.testing.check import Outcome as Outcome
    from grpokit.testing.check import outcomes as outcomes
    from grpokit.testing.policy.checks import policy_checks as policy_checks
    from grpokit.testing.pytest_front import parametrize_with_checks as parametrize_with_checks
    from grpokit.testing.reward.checks import reward_checks as reward_checks
    from grpokit.testing.reward.examples import example_samples as example_samples
    from grpokit.testing.robustness.grades import LadderReport as LadderReport
    from grpokit.testing.robustness.ladder import Climb as Climb
    from grpokit.testing.robustness.ladder import ladder as ladder
    from grpokit.testing.robustness.ladder import ladder_checks as ladder_checks

__getattr__, __dir__ = lazy(__name__, _MODULE_OF)
