"""Which changes are advised: the mildest that fit, in a sensible order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from grpokit import UsageError
from grpokit_plan import Job, Needs, Remedy
from grpokit_plan.remedies import advise, words

JOB = Job(prompts=4, group_size=8, micro_batch_size=8, rollout_rows=32)


def remedy(word: str) -> Remedy:
    return Remedy(words=(word,), price="")


def needs(*names: str) -> Needs:
    return Needs(parts=(), works=(), remedies=tuple(map(remedy, names)))


def advice(enough: Callable[[dict[str, str]], bool], *names: str, later: dict[str, str] | None = None) -> list[str]:
    """What is advised where `enough` says which changes fit; `later`: a change -> one that it makes possible."""

    def fits(changes: tuple[str, ...]) -> tuple[Needs, bool]:
        further = [other for word, other in (later or {}).items() if word in changes]
        return needs(*names, *further), enough(dict(change.split("=") for change in changes))

    return list(words(advise(JOB, needs(*names), fits)))


def micro(changes: dict[str, str]) -> int:
    return int(changes.get("trainer.micro_batch_size", 8))


@pytest.mark.parametrize("most", [4, 2, 1])
def test_a_micro_batch_is_no_smaller_than_it_must_be(most: int) -> None:
    assert advice(lambda c: micro(c) <= most, "a=1") == [f"trainer.micro_batch_size={most}"]


@pytest.mark.parametrize("most", [16, 1])
def test_fewer_rows_are_drawn_if_the_rollout_decides(most: int) -> None:
    changes = advice(lambda c: int(c.get("trainer.rollout_batch_size", 32)) <= most, "a=1")
    assert changes == [f"trainer.rollout_batch_size={most}"]


def test_a_change_that_is_not_needed_in_the_end_is_taken_back() -> None:
    assert advice(lambda c: "b" in c, "a=1", "b=1", "c=1") == ["b=1"]


def test_changes_add_up_and_stay_mild() -> None:
    assert advice(lambda c: "a" in c and "b" in c and micro(c) <= 4, "a=1", "b=1", "c=1") == [
        "trainer.micro_batch_size=4",
        "a=1",
        "b=1",
    ]


def test_nothing_helps() -> None:
    strongest = ["trainer.micro_batch_size=1", "trainer.rollout_batch_size=1", "a=1", "b=1"]
    assert advice(lambda c: False, "a=1", "b=1") == strongest


def test_a_change_that_the_config_refuses_is_passed_over() -> None:
    def enough(changes: dict[str, str]) -> bool:
        if "a" in changes:
            raise UsageError("no")
        return "b" in changes

    assert advice(enough, "a=1", "b=1") == ["b=1"]


def test_a_change_that_excludes_an_earlier_one_takes_its_place() -> None:
    def enough(changes: dict[str, str]) -> bool:
        if "reference_dtype" in changes and "lora" in changes:
            raise UsageError("reference_dtype is for full training")
        return "lora" in changes and micro(changes) <= 4

    assert advice(enough, "reference_dtype=1", "lora=1") == ["trainer.micro_batch_size=4", "lora=1"]


def test_a_change_may_make_another_possible() -> None:
    def enough(changes: dict[str, str]) -> bool:
        if "four_bits" in changes and "lora" not in changes:
            raise UsageError("four bits need lora")
        return "four_bits" in changes

    assert advice(enough, "lora=1", later={"lora=1": "four_bits=1"}) == ["lora=1", "four_bits=1"]
