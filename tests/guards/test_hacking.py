"""Monitor rewards: measured beside the trained ones, never trained on, and the alarm when they fall."""

from __future__ import annotations

import json
import math
import multiprocessing
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from command_line import Call, config, embedded, rows
from grpokit import RewardTerm, Trainer, UsageError
from grpokit.evaluation.paired import Change
from grpokit.guards.hacking import LEAST, LIMIT, MOST, RewardHacking, too_seldom, trend
from grpokit.report.verdict import hacking_alarm
from grpokit.rewards.scoring import Scores
from grpokit.training.metrics import correlation, reward_metrics
from steps import a_step
from tiny_policies import TinyTokens, digit_sum
from tiny_rewards import shortness


def scores(trained: float, monitor: float, *, weight: float = 1.0, asked: bool = True) -> Scores:
    column = [monitor, monitor] if asked else [math.nan, math.nan]
    return Scores(
        matrix=torch.tensor([[trained, trained], column], dtype=torch.float64).T,
        weights=torch.tensor([weight, 0.0], dtype=torch.float64),
        groups=torch.zeros(2, dtype=torch.int64),
        names=["trained", "monitor"],
        seconds=[0.0, 0.0],
        lost=torch.zeros(2, 2, dtype=torch.bool),
        asked=[True, asked],
    )


def made(terms: list[RewardTerm], **options: Any) -> Trainer:
    return Trainer(TinyTokens(), terms, ["1", "2", "3"], device="cpu", learning_rate=0.05, steps=6, **options)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.updates.parameters])


@pytest.mark.parametrize("advantage", ["group", "gdpo", "rloo"])
def test_a_monitor_changes_nothing_but_what_is_measured(advantage: str) -> None:
    from grpokit import advantages

    function = getattr(advantages, advantage)
    alone = made([RewardTerm(name="sum", reward=digit_sum)], advantage=function)
    watched = made(
        [RewardTerm(name="sum", reward=digit_sum), RewardTerm(name="short", reward=shortness, weight=0, every=2)],
        advantage=function,
    )
    for a, b in zip(alone, watched, strict=True):
        assert a.metrics["reward"] == b.metrics["reward"]
        assert a.metrics["frac_reward_zero_std"] == b.metrics["frac_reward_zero_std"]
    assert torch.equal(weights(alone), weights(watched))


def test_it_is_measured_in_the_first_of_so_many_steps() -> None:
    calls: list[int] = []

    def short(samples: Any) -> list[float]:
        calls.append(len(samples))
        return shortness(samples)

    trainer = made(
        [RewardTerm(name="sum", reward=digit_sum), RewardTerm(name="short", reward=short, weight=0, every=3)]
    )
    measured = ["rewards/short/mean" in report.metrics for report in trainer]
    assert measured == [True, False, False, True, False, False]
    assert calls == [32, 32]


def test_a_row_that_only_a_monitor_scored_is_unscored() -> None:
    found = scores(math.nan, 2.0)
    assert found.totals.isnan().all()
    assert found.trained.names == ["trained"]
    measured = reward_metrics(found, torch.zeros(2))
    assert measured["unscored_rows"] == 2.0
    assert measured["rewards/monitor/mean"] == 2.0
    assert "rewards/monitor/mean" not in reward_metrics(scores(1.0, 2.0, asked=False), torch.zeros(2))


def test_monitors_alone_are_refused() -> None:
    with pytest.raises(UsageError, match="Every reward has the weight 0, so all are monitors"):
        made([RewardTerm(name="sum", reward=digit_sum, weight=0)])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], 9 / math.sqrt(5 * 4 * 15 / 18)),  # S = 10, minus 1
        ([5.0, 4.0, 3.0, 2.0, 1.0], -9 / math.sqrt(5 * 4 * 15 / 18)),
        ([1.0, 1.0, 2.0, 2.0], 3 / math.sqrt((4 * 3 * 13 - 2 * 2 * 1 * 9) / 18)),  # S = 4, two pairs of ties
        ([1.0, 3.0, 2.0, 4.0, 0.0], 0.0),  # S = 0
        ([1.0, math.nan, 2.0, 3.0], 2 / math.sqrt(3 * 2 * 11 / 18)),
        ([], 0.0),
    ],
)
def test_trend_by_hand(values: list[float], expected: float) -> None:
    assert trend(values) == pytest.approx(expected, abs=1e-12)


def test_the_alarm_comes_once_and_says_the_figures() -> None:
    watch, said = RewardHacking(), []
    for i in range(20):
        said += [(i + 1, line) for line in watch.scored(a_step(i + 1, scores(i / 10, 5 - i / 4)))]
    assert [step for step, _ in said] == [LEAST]
    assert said[0][1].startswith(
        "Reward hacking? From step 1 to 9 the trained reward 'trained' went from 0.1 to 0.7, while the monitor "
        "'monitor' went from 4.75 to 3.25 (means of the first and the last third)."
    )
    for i in range(MOST):  # it recovers, and falls again later
        assert watch.scored(a_step(21 + i, scores(2.0 + i / 10, float(i)))) == []
    assert any(watch.scored(a_step(60 + i, scores(5 + i / 10, 40.0 - i))) for i in range(MOST))


@pytest.mark.parametrize(
    ("rising", "falling", "weight"), [(0, 1, 1), (1, 0, 1), (1, -1, 1), (-1, 1, 1), (1, 1, -1)], ids=str
)
def test_no_alarm_without_both(rising: int, falling: int, weight: float) -> None:
    watch = RewardHacking()
    for i in range(40):
        assert watch.scored(a_step(i + 1, scores(rising * i / 10, -falling * i / 10, weight=weight))) == []


def test_a_statistic_may_fall() -> None:
    """It describes and does not judge."""
    watch = RewardHacking()
    for i in range(20):
        fallen = replace(scores(i / 10, -i / 10), statistics=["monitor"])
        assert watch.scored(a_step(i + 1, fallen)) == []
    terms = [RewardTerm(name="r", reward=digit_sum), RewardTerm(name="m", reward=digit_sum, weight=0, every=5)]
    assert too_seldom(terms, 20)
    assert too_seldom([terms[0], replace(terms[1], statistic=True)], 20) == []


def test_a_reward_with_a_negative_weight_rises_by_falling() -> None:
    watch = RewardHacking()
    assert any(watch.scored(a_step(i + 1, scores(-i / 10, -i / 10, weight=-2.0))) for i in range(20))


def test_steps_without_the_monitor_do_not_count() -> None:
    watch = RewardHacking()
    found = [watch.scored(a_step(i + 1, scores(i / 10, -i / 10, asked=i % 4 == 0))) for i in range(4 * LEAST)]
    assert [i for i, lines in enumerate(found) if lines] == [4 * (LEAST - 1)]


@pytest.mark.slow
def test_noise_alone_seldom_rings() -> None:
    alarms = 0
    for run in range(60):
        draw, watch = random.Random(run), RewardHacking()
        alarms += any(watch.scored(a_step(i + 1, scores(float(i), draw.gauss(0, 1)))) for i in range(120))
    assert alarms <= 2  # some 0.5 of 60 are to be expected


def test_a_slow_fall_in_noise_is_found() -> None:
    draw, watch = random.Random(0), RewardHacking()
    assert any(watch.scored(a_step(i + 1, scores(float(i), draw.gauss(0, 1) - i / 10))) for i in range(60))
    assert LIMIT == 3.5


def test_a_resumed_watch_goes_on() -> None:
    whole, first = RewardHacking(), RewardHacking()
    steps = [scores(i / 10 if i % 7 else math.nan, -i / 10) for i in range(12)]
    expected = [whole.scored(a_step(i, s)) for i, s in enumerate(steps)]
    found = [first.scored(a_step(i, s)) for i, s in enumerate(steps[:6])]
    second = RewardHacking()
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert found + [second.scored(a_step(i + 6, s)) for i, s in enumerate(steps[6:])] == expected
    assert any(expected)


def test_columns_of_other_rewards_are_not_continued() -> None:
    """A resume with --force may train on others."""
    watch = RewardHacking()
    for i in range(20):
        watch.scored(a_step(i + 1, scores(i / 10, float(i))))
    watch.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    two = scores(1.0, 30.0)
    two = replace(
        two,
        matrix=torch.cat([two.matrix, two.matrix[:, :1]], 1),
        weights=torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64),
        names=["trained", "monitor", "late"],
    )
    assert watch.scored(a_step(21, two)) == []
    assert watch.state_dict()["rows"] == {"monitor": [[21, 30.0, 1.0, 1.0]]}


def change(name: str, gap: float, *, monitor: bool = False, width: float = 0.1) -> Change:
    verdict: Any = "even" if abs(gap) <= width else "better" if gap > 0 else "worse"
    return Change(
        name=name, before=0.0, after=gap, before_width=None, after_width=None, change=gap, width=width, shared=20,
        verdict=verdict, monitor=monitor,
    )  # fmt: skip


def test_alarm_on_held_out_prompts() -> None:
    rose, fell = change("ssim", 0.4), change("aesthetic", -0.3, monitor=True)
    assert hacking_alarm([change("reward", 0.4), rose, fell]) == (
        "Reward hacking? On held-out prompts the trained reward 'ssim' changed by +0.4 ± 0.1, while the monitor "
        "'aesthetic' changed by -0.3 ± 0.1. Look at the samples: the policy may raise "
        "the score in a way that nobody wants."
    )
    assert hacking_alarm([rose, change("aesthetic", -0.05, monitor=True)]) == ""
    assert "'even'" not in hacking_alarm([rose, fell, change("even", -0.05, monitor=True)])
    assert hacking_alarm([change("ssim", 0.05), fell]) == ""
    assert hacking_alarm([rose, change("other", -0.3)]) == ""  # both are trained on


def test_a_run_that_hacks_its_reward(call: Call, drawn: None, tmp_path: Path) -> None:
    """The reward grows with the text; the monitor, which nobody trains on, wants short ones."""
    config(
        tmp_path,
        rewards=[{"use": "tiny_policies:digit_sum"}, {"use": "tiny_rewards:shortness", "weight": 0, "every": 2}],
        trainer__steps=80,
        trainer__kl_coef=0.0,
        trainer__learning_rate=0.004,
        eval__every=0,
    )
    done = call("train", "c.yaml")
    assert done.code == 0, done.err
    metrics = rows(tmp_path / "out" / "metrics.jsonl")
    assert [row["step"] for row in metrics if "rewards/shortness/mean" in row] == list(range(1, 81, 2))
    told = [row for row in rows(tmp_path / "out" / "warnings.jsonl") if "Reward hacking?" in row["message"]]
    assert told, done.out
    assert "while the monitor 'shortness' went from -" in told[0]["message"]
    assert f"warning, step {told[0]['step']}: Reward hacking?" in done.out
    assert "warning: Reward hacking? On held-out prompts the trained reward 'digit_sum' changed by +" in done.out
    (shown,) = embedded(tmp_path / "out" / "report.html")["runs"]
    assert shown["alarm"].startswith("Reward hacking? On held-out prompts the trained reward 'digit_sum' changed by +")
    assert shown["verdict"].startswith("The reward digit_sum rose: ")
    assert {score["name"]: score["monitor"] for score in shown["scores"]} == {"digit_sum": False, "shortness": True}


def test_correlation_is_inside_groups() -> None:
    """By numpy on what is left after each group's mean; a trend from group to group counts for nothing."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(24) // 6
    x = torch.randn(24, generator=generator, dtype=torch.float64)
    y = 0.5 * x + torch.randn(24, generator=generator, dtype=torch.float64)
    y[[3, 7]], x[[8]] = math.nan, math.nan
    both = ~(x.isnan() | y.isnan())
    parts = [(x[both & (groups == g)], y[both & (groups == g)]) for g in range(4)]
    expected = numpy.corrcoef(*(torch.cat([part - part.mean() for part in side]) for side in zip(*parts, strict=True)))
    assert correlation(x, y, groups) == pytest.approx(expected[0, 1], abs=1e-12)
    assert correlation(x + 100 * groups, y - 30 * groups, groups) == pytest.approx(expected[0, 1], abs=1e-10)
    assert correlation(x, -2 * x + groups, groups) == pytest.approx(-1)
    assert math.isnan(correlation(x, groups * 0.1, groups))  # constant in each group, but for rounding
    assert math.isnan(correlation(x, torch.full((24,), math.nan, dtype=torch.float64), groups))


def test_correlations_of_what_was_asked() -> None:
    found = replace(
        scores(1.0, 2.0),
        matrix=torch.tensor([[1.0, 3.0, 5.0], [2.0, 2.0, 5.0]], dtype=torch.float64),
        weights=torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64),
        names=["a", "m", "c"],
        seconds=[0.0] * 3,
        lost=torch.zeros(2, 3, dtype=torch.bool),
        asked=[True] * 3,
    )
    measured = reward_metrics(found, torch.zeros(2))
    assert {key: value for key, value in measured.items() if key.startswith("correlation/")} == {
        "correlation/a/m": pytest.approx(-1.0)
    }
    seldom = reward_metrics(replace(found, asked=[True, False, True]), torch.zeros(2))
    assert not any(key.startswith("correlation/") for key in seldom)


@pytest.mark.parametrize(
    ("every", "steps", "most"),
    [(5, 40, 4), (5, 41, None), (4, 40, None), (9, 9, 1), (1, 8, None)],  # eight steps are too few in any case
)
def test_a_monitor_that_is_measured_too_seldom_is_told(every: int, steps: int, most: int | None) -> None:
    terms = [RewardTerm(name="r", reward=shortness), RewardTerm(name="m", reward=shortness, weight=0, every=every)]
    counts = [sum(terms[1].due(step) for step in range(1, steps + 1)), None]
    if most is not None:
        counts[1] = sum(replace(terms[1], every=most).due(step) for step in range(1, steps + 1))
        assert counts[0] < LEAST <= counts[1]
    times = "1 time" if counts[0] == 1 else f"{counts[0]} times"
    assert too_seldom(terms, steps) == [
        f"the monitor 'm' is measured {times} in {steps} steps, and the alarm for reward hacking needs {LEAST}: "
        f"set its `every` to at most {most}"
    ] * (most is not None)


def test_a_forced_resume_with_another_reward_goes_on(call: Call, tmp_path: Path) -> None:
    first = {"use": "tiny_policies:digit_sum"}
    monitor = {"use": "tiny_rewards:shortness", "weight": 0}
    config(tmp_path, rewards=[first, monitor], trainer__steps=2)
    assert call("train", "c.yaml").code == 0
    config(tmp_path, rewards=[first, {"use": "length", "maximum": 3}, monitor], trainer__steps=4)
    done = call("train", "c.yaml", "--resume", "--force")
    assert done.code == 0, done.err
    assert [row["step"] for row in rows(tmp_path / "out" / "metrics.jsonl")] == [1, 2, 3, 4]


def test_what_a_reward_accepts_is_held_against_the_policy(call: Call, tmp_path: Path) -> None:
    config(tmp_path, policy={"use": "toy-lm"}, rewards=[{"use": "length"}, {"use": "ssim"}])
    done = call("train", "c.yaml")
    assert done.code == 2
    assert done.err.count("c.yaml, line") == 1
    assert "rewards.1: The reward 'ssim' scores pictures, but the policy 'toy-lm' makes texts." in done.err
    assert "Installed rewards for texts: " in done.err
    assert "exact-match" in done.err.split("for texts: ")[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ({"every": 2}, "every: 2 needs weight: 0 (a monitor)"),
        ({"reward_timeout": 3}, "reward_timeout needs a process that can be ended: set workers to 1 or more"),
        (
            {"wieght": 0.5},
            "Keys of every reward: weight, every, on_error, skip_limit, use, name, workers, reward_timeout",
        ),
        ({"wieght": 0.5}, "(did you mean 'weight'?)"),
        ({"weight": 0}, "rewards: every reward has weight 0, so all are monitors, and objective 'grpo' learns"),
        ({"weight": 0, "every": 0}, "rewards.0.every"),
        ({"workers": -1}, "rewards.0.workers"),
    ],
    ids=str,
)
def test_keys_that_do_not_go_together(call: Call, tmp_path: Path, reward: Any, words: str) -> None:
    config(tmp_path, rewards=[{"use": "length", "maximum": 3, **reward}])
    done = call("train", "c.yaml")
    assert done.code == 2
    assert words in done.err, done.err
    assert "c.yaml" in done.err


@pytest.mark.slow
def test_a_run_with_worker_processes_is_the_run_without(call: Call, tmp_path: Path) -> None:
    found = {}
    for workers in (0, 1, 2):
        rewards = [{"use": "pool_rewards:slow", "seconds": 0.001, "workers": workers}, {"use": "length", "maximum": 3}]
        config(tmp_path, rewards=rewards, run__dir=f"run{workers}", trainer__steps=3)
        done = call("train", "c.yaml")
        assert done.code == 0, done.err
        found[workers] = [row["loss"] for row in rows(tmp_path / f"run{workers}" / "metrics.jsonl")]
    assert found[0] == found[1] == found[2]


def test_no_command_leaves_worker_processes_behind(call: Call, tmp_path: Path) -> None:
    reward = {"use": "pool_rewards:unlucky", "order": "0", "workers": 1}
    config(tmp_path, rewards=[reward], trainer__steps=2, eval={"fraction": 0.5})
    for words in (["train", "c.yaml"], ["evaluate", "out"], ["replay", "out", "--step", "2"]):
        done = call(*words)
        assert done.code == 0, done.err
        assert multiprocessing.active_children() == [], words


@pytest.mark.slow
@pytest.mark.parametrize("order", ["kill", "hang", "raise"])
def test_a_worker_that_fails_in_a_run(call: Call, tmp_path: Path, order: str) -> None:
    reward = {"use": "pool_rewards:unlucky", "order": order, "workers": 2, "reward_timeout": 2}
    config(tmp_path, rewards=[reward, {"use": "length", "maximum": 3}], trainer__steps=3, eval={})
    stopped = call("train", "c.yaml")
    assert stopped.code == 1
    assert "Reward 'unlucky' " in stopped.err
    assert "(prompt '3')" in stopped.err
    assert "with --resume" in stopped.err
    reward["on_error"] = "skip"
    config(tmp_path, rewards=[reward, {"use": "length", "maximum": 3}], trainer__steps=3, eval={})
    skipped = call("train", "c.yaml", "--overwrite")
    assert skipped.code == 0, skipped.err
    metrics = rows(tmp_path / "out" / "metrics.jsonl")
    assert sum(row["rewards/unlucky/failed"] for row in metrics) > 0
    assert all(row["rewards/unlucky/failed"] in (0, 4) for row in metrics)  # the groups of one prompt
    assert all(row["rewards/length/unscored"] == 0 for row in metrics)
