"""The ward's sick runs in two halves, each for a test file of its own: files run side by side."""

from __future__ import annotations

from pathlib import Path

from ward import patients, treatment

_TOKENS = ("toy-lm", "lm-arithmetic", "glm-image-tiny")
_ALL = patients.read().cases
OF_TOKENS = {case.name: case for case in _ALL if case.base.preset in _TOKENS}
OTHERS = {case.name: case for case in _ALL if case.name not in OF_TOKENS}


def assert_the_right_cause_comes_first(case: patients.Case, folder: Path) -> None:
    causes = treatment.diagnosed(treatment.train(case.run, folder))
    assert causes[0]["id"] == case.cause
