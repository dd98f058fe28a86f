"""On each sick run of a policy that writes tokens, the right cause comes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from ward.patients import Case

from sick_runs import OF_TOKENS, assert_the_right_cause_comes_first


@pytest.mark.slow
@pytest.mark.parametrize("case", OF_TOKENS.values(), ids=OF_TOKENS)
def test_the_right_cause_comes_first(case: Case, tmp_path: Path) -> None:
    assert_the_right_cause_comes_first(case, tmp_path)
