"""The conformance kit: what every policy and every reward must do, as named checks.

The names in `__all__` are public; the modules of this folder are private. `policy_checks` and `reward_checks` yield
`Check` records. Run them with `parametrize_with_checks` in pytest, with `outcomes` in a program, or with
`grpokit check NAME` on the command line. `ladder` measures how easily a reward is fooled, `Ladder` is the same
measurement shared with its checks (`ladder_checks`), and `LadderReport` is its result. `example_samples` are built-in
samples for a reward. Names are imported on first use, so that importing this package does not import torch.
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
    "Ladder": "robustness.ladder",
    "LadderReport": "robustness.grades",
    "parametrize_with_checks": "pytest_front",
}
__all__ = sorted(_MODULE_OF)

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
    from grpokit.testing.robustness.ladder import Ladder as Ladder
    from grpokit.testing.robustness.ladder import ladder as ladder
    from grpokit.testing.robustness.ladder import ladder_checks as ladder_checks

__getattr__, __dir__ = lazy(__name__, _MODULE_OF)
