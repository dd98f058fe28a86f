"""On each sick run of a policy that writes no tokens, the right cause comes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from ward.patients import Case

from sick_runs import OTHERS, assert_the_right_cause_comes_first


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_the_right_cause_comes_first(case: Case, tmp_path: Path) -> None:
    assert_the_right_cause_comes_first(case, tmp_path)
