"""The conformance kit: what every policy and every reward must do, as named checks.

`policy_checks` and `reward_checks` yield `Check` records; `grpokit check NAME` and the decorator
`parametrize_with_checks` are two thin fronts to them. `ladder` grades how easily a reward is fooled. Names are imported
on first use, so that a test module that only names them does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULE_OF = {
    "Check": "core",
    "CheckError": "core",
    "NotChecked": "core",
    "Outcome": "core",
    "outcomes": "core",
    "policy_checks": "policies",
    "reward_checks": "rewards",
    "example_samples": "examples",
    "ladder": "ladders",
    "ladder_checks": "ladders",
    "Climb": "ladders",
    "LadderReport": "grades",
    "parametrize_with_checks": "decorator",
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
    from grpokit.testing.core import Check as Check
    from grpokit.testing.core import CheckError as CheckError
    from grpokit.testing.core import NotChecked as NotChecked
    from grpokit.testing.core import Outcome as Outcome
    from grpokit.testing.core import outcomes as outcomes
    from grpokit.testing.decorator import parametrize_with_checks as parametrize_with_checks
    from grpokit.testing.examples import example_samples as example_samples
    from grpokit.testing.grades import LadderReport as LadderReport
    from grpokit.testing.ladders import Climb as Climb
    from grpokit.testing.ladders import ladder as ladder
    from grpokit.testing.ladders import ladder_checks as ladder_checks
    from grpokit.testing.policies import policy_checks as policy_checks
    from grpokit.testing.rewards import reward_checks as reward_checks


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'grpokit.testing' has no attribute '{name}'")
    return getattr(importlib.import_module(f"grpokit.testing.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
