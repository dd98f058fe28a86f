"""Which phase learns when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from grpokit.phases.course import Course


def step(course: Course, finished: Sequence[str] = ()) -> str:
    """Take a step; returns its phase, or nothing at the end."""
    stretch = course.under_way(finished)
    if stretch is None:
        return ""
    stretch.steps += 1
    return stretch.phase


def walked(course: Course, *, finished: dict[int, Sequence[str]] | None = None) -> str:
    """The phase of each step, where from some steps on phases have nothing left to learn."""
    phases, over = "", ()
    while True:
        over = (finished or {}).get(len(phases), over)
        phase = step(course, over)
        if not phase:
            return phases
        phases += phase


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


def test_a_stretch_keeps_its_length_where_the_steps_change() -> None:
    """The next ones have the new one, and the total is what a walk to the end takes."""
    before = Course({"a": 2, "b": 1}, rounds=2)
    for _ in range(4):
        step(before)
    for steps, rest, total in ((3, "ab", 6), (1, "ab", 6)):
        after = Course({"a": steps, "b": 1}, rounds=2)
        after.load_state_dict(before.state_dict())
        assert (after.total, walked(after)) == (total, rest)
    longer, shorter = Course({"a": 3, "b": 2}, rounds=3), Course({"a": 2, "b": 1}, rounds=1)
    longer.load_state_dict(before.state_dict())
    shorter.load_state_dict(before.state_dict())
    assert (longer.total, walked(longer)) == (12, "abbaaabb")
    assert (shorter.total, walked(shorter)) == (3, "")


@pytest.mark.parametrize("steps", range(7))
def test_a_course_goes_on_where_it_was(steps: int) -> None:
    half, again = (Course({"a": 2, "b": 1}, rounds=2) for _ in range(2))
    for _ in range(steps):
        step(half)
    assert walked(again) == "aabaab"
    again.load_state_dict(half.state_dict())  # after steps of its own
    assert again.completed == steps
    assert walked(again) == "aabaab"[steps:]
