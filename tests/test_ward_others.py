"""On each sick run of a policy that writes no tokens, the right cause comes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from ward import patients, treatment

TOKENS = ("toy-lm", "lm-arithmetic", "glm-image-tiny")
CASES = {case.name: case for case in patients.read().cases if case.base.preset not in TOKENS}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_right_cause_comes_first(case: patients.Case, tmp_path: Path) -> None:
    causes = treatment.diagnosed(treatment.train(case.run, tmp_path))
    assert causes[0]["id"] == case.cause
