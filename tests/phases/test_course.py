"""Which phase learns when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from grpokit import UsageError
from grpokit.phases.course import Course


def walked(course: Course, *, finished: dict[int, Sequence[str]] | None = None) -> str:
    """The phase of each step, where from some steps on phases have nothing left to learn."""
    phases, over = "", ()
    while True:
        over = (finished or {}).get(len(phases), over)
        goes_on = course.goes_on(over)
        stretch = course.under_way(over)
        assert goes_on == (stretch is not None)
        if stretch is None:
            return phases
        phases += stretch.phase
        course.stepped()


def test_phases_follow_each_other_in_every_round() -> None:
    course = Course({"a": 2, "b": 1}, rounds=3)
    assert walked(course) == "aab" * 3
    assert (course.completed, course.total) == (9, 9)


@pytest.mark.parametrize(
    ("finished", "phases"),
    [
        ({1: ["a"]}, "abbb"),  # in the middle of a stretch
        ({2: ["b"]}, "aaaaaa"),
        ({3: ["a", "b"]}, "aab"),
        ({8: ["a"]}, "aab" * 3),  # its last stretch is over anyway
        ({0: ["a", "b"]}, ""),
    ],
    ids=str,
)
def test_a_phase_with_nothing_left_to_learn_is_skipped(finished: dict[int, Sequence[str]], phases: str) -> None:
    assert walked(Course({"a": 2, "b": 1}, rounds=3), finished=finished) == phases


def test_phases_can_be_chosen_until_all_steps_are_taken() -> None:
    choices = iter("bbaba")
    course = Course({"a": 2, "b": 1}, rounds=2, choose=lambda: next(choices))
    assert walked(course) == "bbaaba"  # the last stretch is cut
    assert next(choices, None) is None


def test_the_only_phase_left_is_not_chosen() -> None:
    course = Course({"a": 2, "b": 1}, rounds=1, choose=lambda: pytest.fail("there is no choice"))
    assert walked(course, finished={0: ["a"]}) == "bbb"


def test_a_choice_that_does_not_exist() -> None:
    course = Course({"a": 2, "b": 1}, rounds=1, choose=lambda: "c")
    with pytest.raises(UsageError, match="The phase 'c' was chosen; expected one of 'a', 'b'"):
        course.under_way([])
    assert course.state() == []


def test_a_stretch_keeps_its_length_where_the_steps_change() -> None:
    """The next ones have the new one, and the total is what a walk to the end takes."""
    before = Course({"a": 2, "b": 1}, rounds=2)
    for _ in range(4):
        before.under_way([])
        before.stepped()
    for steps, rest, total in ((3, "ab", 6), (1, "ab", 6)):
        after = Course({"a": steps, "b": 1}, rounds=2)
        after.restore(before.state())
        assert (after.total, walked(after)) == (total, rest)
    longer, shorter = Course({"a": 3, "b": 2}, rounds=3), Course({"a": 2, "b": 1}, rounds=1)
    longer.restore(before.state())
    shorter.restore(before.state())
    assert (longer.total, walked(longer)) == (12, "abbaaabb")
    assert (shorter.total, walked(shorter)) == (3, "")


@pytest.mark.parametrize("steps", range(7))
def test_a_course_goes_on_where_it_was(steps: int) -> None:
    whole, half = (Course({"a": 2, "b": 1}, rounds=2) for _ in range(2))
    for _ in range(min(steps, 6)):
        half.under_way([])
        half.stepped()
    half.under_way([])  # a stretch may have begun, and its first step failed
    again = Course({"a": 2, "b": 1}, rounds=2)
    again.restore(half.state())
    assert again.completed == steps
    assert walked(again) == walked(whole)[steps:]
