"""Real model classes keep the contract in 2 processes, learn the same as in one, and resume exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from models_in_processes import (
    LANGUAGE,
    MODELS,
    PICTURES,
    both_halves_resumed,
    kept_contract,
    of_both_halves,
    of_language,
    of_pictures,
    resumed,
)
from several import assert_equal, together

pytestmark = pytest.mark.several


def test_language_models_learn_the_same() -> None:
    alone = of_language()
    for answer in together(2, of_language, seconds=120):
        assert not isinstance(answer, str), answer
        for case in LANGUAGE:
            assert_equal(alone[case], answer[case], 1e-12)


def test_image_generators_learn_the_same() -> None:
    alone = of_pictures()
    for answer in together(2, of_pictures, seconds=120):
        assert not isinstance(answer, str), answer
        for name in PICTURES:
            tolerance = {"glm-image-dit": 1e-12, "glm-image-ar": 1e-6, "diffusers-flow": 3e-5}[name]  # of its float32
            assert_equal(alone[name], answer[name], tolerance)


def test_both_halves_of_glm_image_learn_in_turn(tmp_path: Path) -> None:
    alone = of_both_halves()
    assert len(alone[1]) == 4
    for answer in together(2, of_both_halves, seconds=120):
        assert_equal(alone, answer, 1e-6)
    for straight, stopped in together(2, both_halves_resumed, tmp_path, seconds=120):
        assert straight == stopped


def test_they_resume_to_the_bit(tmp_path: Path) -> None:
    for answer in together(2, resumed, tmp_path, seconds=120):
        assert not isinstance(answer, str), answer
        assert len(answer) == 4
        for straight, stopped in answer:
            assert straight == stopped


@pytest.mark.parametrize("name", MODELS)
def test_they_keep_the_contract(name: str) -> None:
    one, other = together(2, kept_contract, name, seconds=120)
    assert one == other
    assert len(one) == 21
