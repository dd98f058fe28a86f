"""What a reward did, told from its curve and its evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from grpokit.evaluation.paired import Change
from grpokit.run_folder.reader import RunHistory
from grpokit_diagnosis.symptom import course_of, symptom

NOISE = [0.01, -0.01, 0.02, -0.02, 0.0] * 6


def run(rewards: Sequence[float], evaluations: Sequence[tuple[int, float | None]] = ()) -> RunHistory:
    """A run with these rewards, a spread of .1 inside groups, and these evaluations."""
    metrics = [
        {"step": step, "reward": reward, "reward_std": 0.1, "rewards/r/mean": reward}
        for step, reward in enumerate(rewards, 1)
    ]
    rows = [{"step": step, "means": {"r": mean, "reward": mean}, "ci95": {}} for step, mean in evaluations]
    return RunHistory(folder=Path("runs/a"), config="", settings={}, versions="", metrics=metrics, evaluations=rows)


@pytest.mark.parametrize(("slope", "course"), [(0.0, "flat"), (0.01, "rising"), (0.001, "slow"), (-0.01, "falling")])
def test_the_course_of_a_curve(slope: float, course: str) -> None:
    assert symptom(run([slope * i + noise for i, noise in enumerate(NOISE)])).course == course


def test_a_few_steps_say_nothing() -> None:
    assert symptom(run([0.0, 1.0, 2.0])).course == "unknown"


def test_a_flat_curve_says_nothing_where_held_out_prompts_are_never_scored() -> None:
    """As with a reward that compares the samples of a group: its mean stays while the policy learns."""
    unscored = run(NOISE, [(0, None), (30, None)])
    assert symptom(unscored).course == "unscored"
    assert symptom(run(NOISE, [(0, 0.1), (30, 0.1)])).course == "flat"
    rising = [0.01 * i + noise for i, noise in enumerate(NOISE)]
    assert symptom(run(rising, [(0, None), (30, None)])).course == "rising"


def _falling(own: str) -> RunHistory:
    """A run whose reward falls, and has a metric `own`."""
    falling = run([-0.01 * i + noise for i, noise in enumerate(NOISE)], [(0, None), (30, None)])
    for row in falling.metrics:
        row[own] = 0.5
    return falling


def test_the_mean_of_a_reward_that_learns_says_nothing() -> None:
    """It scores each step by another head, so that even a fall says nothing of the policy."""
    learning = symptom(_falling("rewards/r/told_held_out"))
    assert learning.course == "learning"
    assert str(learning) == (
        "The reward learns while the run goes on, so its mean does not say what the policy has learned."
    )
    for usual in ("rewards/r/seconds", "rewards/r/b/mean", "rewards/other/told_held_out"):
        assert symptom(_falling(usual)).course == "falling"


def test_the_change_is_from_the_first_third_to_the_last() -> None:
    found = symptom(run([0.0] * 10 + [0.5] * 10 + [1.0] * 10))
    assert (found.change, found.width) == (1.0, 0.0)


def test_the_best_step_is_that_of_the_best_evaluation() -> None:
    assert symptom(run(NOISE, [(0, 0.1), (10, 0.4), (20, 0.2)])).best == 10
    watched = run(NOISE, [(0, 0.1), (10, 0.4), (20, 0.2)])
    for row in watched.evaluations:
        row["means"] = {"monitor": -row["step"], **row["means"]}  # which comes first and falls
    assert symptom(watched).best == 10
    assert symptom(run([0.0] * 20 + [1.0] * 3 + [0.0] * 7)).best == 21


@pytest.mark.parametrize(
    ("change", "width", "course"),
    [(0.25, 0.05, "rising"), (0.0, 0.05, "unseen"), (0.0, 0.4, "flat"), (-0.2, 0.1, "apart")],
)
def test_what_held_out_prompts_say_counts(change: float, width: float, course: str) -> None:
    verdict = "better" if change > width else "worse" if change < -width else "even"
    held_out = Change(
        name="r",
        before=0.0,
        after=change,
        before_width=None,
        after_width=None,
        change=change,
        width=width,
        shared=10,
        verdict=verdict,
    )
    assert course_of(0.29, 0.02, held_out, 0.1) == course
