"""Groups without spread are drawn again from further prompts: counted, bounded, and a pure function of the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpokit import RewardError, RewardTerm, Sample, StepReport, Trainer, evaluate
from grpokit.advantages import AdvantageFn, gdpo, group, returns_to_go
from grpokit.runs.replay import replay
from grpokit.sampling import derive_seeds, further_indices
from small_runs import rows, train, write_prompts
from tiny_policies import BatchesSeen, TinyTokens, digit_sum

PROMPTS = [str(i) for i in range(12)]


def even_ones(samples: Sequence[Sample]) -> list[float]:
    """Only even prompts give scores that differ."""
    return [score * (1 - int(s.prompt.text) % 2) for s, score in zip(samples, digit_sum(samples), strict=True)]


def make(policy: TinyTokens | None = None, reward: Any = even_ones, **options: Any) -> Trainer:
    settings = {
        "prompts_per_step": 4,
        "group_size": 4,
        "learning_rate": 0.02,
        "seed": 3,
        "dynamic_sampling": 5,
        **options,
    }
    return Trainer(policy or TinyTokens(), [reward], PROMPTS, device="cpu", **settings)


def drawing(report: StepReport) -> tuple[float, float]:
    return report.metrics["dynamic_sampling/attempts"], report.metrics["dynamic_sampling/replaced"]


def test_groups_without_spread_are_replaced_in_their_places() -> None:
    policy = BatchesSeen()
    trainer, before = make(policy), make(dynamic_sampling=0).step()
    for step in range(3):
        report = trainer.step()
        assert all(i % 2 == 0 for i in report.prompts)
        assert len(set(report.prompts)) == 4
        assert report.metrics["frac_reward_zero_std"] == 0
        if step == 0:
            flat = [place for place in range(4) if before.rewards[4 * place : 4 * place + 4].unique().numel() == 1]
            assert len(flat) == 3
            assert [place for place in range(4) if report.prompts[place] != before.prompts[place]] == flat
            assert drawing(report) == (2, 5)  # two of the three had no spread again
        assert report.rollout.groups.tolist() == [4 * step + place for place in range(4) for _ in range(4)]
        samples = report.rollout.samples
        assert [s.group for s in samples] == report.rollout.groups.tolist()
        assert [s.prompt.text for s in samples] == [PROMPTS[i] for i in report.prompts for _ in range(4)]
        assert report.rewards[:, 0].tolist() == even_ones(samples)
        assert report.metrics["logprob_diff/max"] < 1e-5  # so log-probs, tokens and prompts belong together
    seeds = [number for drawn in policy.seeds for number in (*drawn.row.tolist(), *drawn.group.tolist())]
    assert len(set(seeds)) == len(seeds)
    assert "dynamic_sampling/attempts" not in before.metrics


def test_the_rewards_of_decisions_go_with_their_groups() -> None:
    def even_only(policy: TinyTokens) -> TinyTokens:
        draw = policy.rollout

        def rollout(prompts: Any, *args: Any, **options: Any) -> Any:
            found = draw(prompts, *args, **options)
            odd = torch.tensor([int(s.prompt.text) % 2 == 1 for s in found.samples])
            return replace(found, decision_rewards=found.decision_rewards.masked_fill(odd[:, None], 0.0))

        policy.rollout = rollout  # type: ignore[method-assign]
        return policy

    report = make(even_only(TinyTokens()), advantage=returns_to_go).step()
    rollout = report.rollout
    assert drawing(report)[1] > 0
    table = torch.where(rollout.mask, rollout.decision_rewards, torch.nan)
    expected = returns_to_go(report.rewards, torch.ones(1), rollout.groups, decision_rewards=table)
    assert torch.equal(report.advantages, expected.to(report.advantages))
    assert all(i % 2 == 0 for i in report.prompts)


def test_the_first_draw_is_that_of_a_run_without_it() -> None:
    report, plain = make().step(), make(dynamic_sampling=0).step()
    assert report.metrics["dynamic_sampling/reward_before"] == plain.metrics["reward"]
    assert report.metrics["reward"] > plain.metrics["reward"]
    full = make(reward=digit_sum).step()
    assert drawing(full) == (0, 0)
    assert [s.output for s in full.rollout.samples] == [s.output for s in plain.rollout.samples]


def test_places_have_the_seeds_of_their_groups() -> None:
    seeds = derive_seeds(3, stream="train", step=1, prompts=3, group_size=2)
    some = seeds.select([2, 0])
    assert some.row.tolist() == seeds.row[[4, 5, 0, 1]].tolist()
    assert some.group.tolist() == seeds.group[[2, 0]].tolist()
    assert some.group_ids.tolist() == [5, 3]


def test_the_attempts_are_bounded() -> None:
    asked = []

    def constant(samples: Sequence[Sample]) -> list[float]:
        asked.append(len(samples))
        return [0.0] * len(samples)

    report = make(reward=constant, dynamic_sampling=2).step()
    assert asked == [16, 16, 16]
    assert drawing(report) == (2, 8)
    assert report.metrics["frac_reward_zero_std"] == 1
    assert "all samples of every group got the same rewards" in report.warnings[0]


def test_a_group_that_no_reward_could_score_is_drawn_anew() -> None:
    def unscored(samples: Sequence[Sample]) -> list[float]:
        return [float("nan") if int(s.prompt.text) % 2 else float(len(s.output)) for s in samples]

    report = make(reward=unscored).step()
    assert report.metrics["unscored_rows"] == 0
    assert all(i % 2 == 0 for i in report.prompts)


def broken_on(*texts: str) -> Any:
    def reward(samples: Sequence[Sample]) -> list[float]:
        if any(s.prompt.text in texts for s in samples):
            raise ValueError("cannot read this one")
        return digit_sum(samples)

    return reward


def skipping(*texts: str, limit: float) -> Trainer:
    term = RewardTerm(name="broken", reward=broken_on(*texts), on_error="skip", skip_limit=limit)
    return Trainer(
        TinyTokens(), [term], PROMPTS, device="cpu", prompts_per_step=4, group_size=8, seed=3, dynamic_sampling=3
    )


def test_skip_limit_is_a_share_of_the_steps_rows() -> None:
    """One prompt of the first draw fails, and so does the one that replaces it: 8 of the step's 32 rows each time."""
    drawn = make(dynamic_sampling=0).step().prompts
    (second,) = further_indices(3, 0, attempt=1, places=[1], total=12, used=drawn)
    report = skipping(PROMPTS[drawn[1]], PROMPTS[second], limit=0.25).step()
    assert drawing(report) == (2, 2)
    assert [i for i in report.prompts if i not in drawn] != [second]
    assert (report.metrics["rewards/broken/unscored"], report.metrics["rewards/broken/failed"]) == (0, 0)

    few = [PROMPTS[i] for i in (drawn[0], drawn[1])]
    with pytest.raises(RewardError, match="lost 16 of 32 rows; skip_limit allows"):
        skipping(*few, limit=0.25).step()


def test_rows_that_a_reward_lost_before_count_towards_its_limit() -> None:
    """With two rewards a group that one of them lost has spread and stays, so its rows add to those of a later draw."""
    drawn = make(dynamic_sampling=0).step().prompts
    (further,) = further_indices(3, 0, attempt=1, places=[0], total=12, used=drawn)
    constant_one = PROMPTS[drawn[0]]

    def length(samples: Sequence[Sample]) -> list[float]:
        scores = zip(samples, digit_sum(samples), strict=True)
        return [0.0 if s.prompt.text == constant_one else score for s, score in scores]

    def reward(samples: Sequence[Sample]) -> list[float]:
        if any(s.prompt.text in (PROMPTS[drawn[1]], PROMPTS[further]) for s in samples):
            raise ValueError("cannot read this one")
        return [0.0] * len(samples)

    def run(limit: float) -> StepReport:
        terms = [
            RewardTerm(name="length", reward=length),
            RewardTerm(name="broken", reward=reward, on_error="skip", skip_limit=limit),
        ]
        settings = {"prompts_per_step": 4, "group_size": 8, "seed": 3, "dynamic_sampling": 3}
        return Trainer(TinyTokens(), terms, PROMPTS, device="cpu", **settings).step()

    report = run(0.5)
    assert drawing(report) == (1, 1)
    assert (report.metrics["rewards/broken/unscored"], report.metrics["rewards/broken/failed"]) == (16, 16)
    with pytest.raises(RewardError, match=r"lost 16 of 32 rows; "):
        run(0.4)


def test_gdpo_keeps_a_group_of_equal_sums_that_it_learns_from() -> None:
    """The rewards are a and 2 - 2 a with the weights 2 and 1, so all sums are 2, but the z-scores do not cancel."""

    def parity(samples: Sequence[Sample]) -> list[float]:
        return [float(len(s.output) % 2) for s in samples]

    def step(function: AdvantageFn) -> StepReport:
        terms = [
            RewardTerm(name="a", reward=parity, weight=2.0),
            RewardTerm(name="b", reward=lambda samples: [2 - 2 * a for a in parity(samples)]),
        ]
        settings = {"prompts_per_step": 4, "group_size": 16, "seed": 3, "dynamic_sampling": 1}
        return Trainer(TinyTokens(), terms, PROMPTS, device="cpu", advantage=function, **settings).step()

    found = {function: step(function) for function in (gdpo, group)}
    assert found[gdpo].totals.eq(2).all()
    assert [drawing(report) for report in found.values()] == [(0, 0), (1, 4)]
    assert [report.metrics["frac_reward_zero_std"] for report in found.values()] == [0, 1]
    assert found[gdpo].metrics["grad_norm"] > 0.01


@pytest.mark.parametrize("size", [2, 4, 8])
def test_sizes_change_nothing(size: int) -> None:
    a, b = make(rollout_batch_size=size, micro_batch_size=size), make()
    for _ in range(2):
        one, other = a.step(), b.step()
        assert list(one.prompts) == list(other.prompts)
        assert [s.output for s in one.rollout.samples] == [s.output for s in other.rollout.samples]
        assert one.metrics["grad_norm"] == pytest.approx(other.metrics["grad_norm"], rel=1e-5)


def test_a_resumed_run_draws_the_same(tmp_path: Path) -> None:
    straight = make()
    reports = [straight.step() for _ in range(5)]
    stopped = make()
    for _ in range(2):
        stopped.step()
    stopped.save(tmp_path / "step")
    resumed = make()
    resumed.load(tmp_path / "step")
    for report in reports[2:]:
        again = resumed.step()
        assert list(again.prompts) == list(report.prompts)
        assert torch.equal(again.rollout.old.logprobs, report.rollout.old.logprobs)
        assert drawing(again) == drawing(report)


def test_a_policy_knows_the_step_that_it_draws_for(tmp_path: Path) -> None:
    """In every call, of groups that are drawn again too, and in a resumed run; an evaluation has none."""
    policy = BatchesSeen()
    trainer = make(policy, rollout_batch_size=4)
    for _ in range(2):
        trainer.step()
    trainer.save(tmp_path / "step")
    resumed = BatchesSeen()
    again = make(resumed, rollout_batch_size=4)
    again.load(tmp_path / "step")
    again.step()
    steps = [seeds.step for seeds in policy.seeds]
    assert steps == sorted(steps)
    assert min(steps.count(step) for step in (0, 1)) > 4  # four calls, and those of the groups drawn again
    assert {seeds.step for seeds in resumed.seeds} == {2}
    evaluate(policy, [even_ones], PROMPTS)
    assert policy.seeds[-1].step == 0


def test_replay_finds_a_recorded_step_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_prompts(PROMPTS)
    train("out", run__record=True, trainer__dynamic_sampling=3, trainer__group_size=2, trainer__steps=4)
    assert sum(row["dynamic_sampling/replaced"] for row in rows("out/metrics.jsonl")) > 0
    found = [replay(Path("out"), step) for step in (2, 4)]
    assert all("decisions" in step.parts and step.equal for step in found)


def test_further_prompts_are_new_as_long_as_there_are_any() -> None:
    for attempt in range(1, 30):
        found = further_indices(3, 7, attempt=attempt, places=[0, 2, 3], total=8, used=[5, 1, 6])
        assert len(set(found) - {5, 1, 6}) == 3
    few = further_indices(3, 7, attempt=1, places=[0, 1, 2], total=2, used=[0])
    assert few[0] == 1
    assert set(few) <= {0, 1}
    first = [tuple(further_indices(3, 7, attempt=a, places=[0], total=1000, used=[])) for a in range(1, 50)]
    assert len(set(first)) > 40
