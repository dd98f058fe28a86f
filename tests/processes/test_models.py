"""`hf-lm` learns the same with 2 processes as with one."""

from __future__ import annotations

import pytest

from models_in_processes import LANGUAGE, all_cases
from several import assert_equal, together

pytestmark = pytest.mark.several


def test_language_models_learn_the_same() -> None:
    alone = all_cases()
    for answer in together(2, all_cases, seconds=120):
        assert not isinstance(answer, str), answer
        for case in LANGUAGE:
            assert_equal(alone[case], answer[case], 1e-12)
