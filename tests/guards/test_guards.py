"""Guards stop what would train wrongly, say the measured figure, and leave what is right alone."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from grpokit import (
    CheckpointError,
    Decisions,
    Prompt,
    RewardTerm,
    RunError,
    Trainer,
    UsageError,
    advantages,
    objectives,
    swapped,
)
from grpokit.data import as_prompts
from grpokit.guards.rewards import SlowRewards, UnscoredRows
from grpokit.guards.zero_std import ZeroStd
from grpokit.processes.team import Team
from grpokit.rewards.scoring import Scores
from grpokit.rewards.worker_pool import PooledReward
from grpokit.training import checkpoint, metrics
from grpokit.training.checks import LogprobDiffLimit, check_logprob_diff
from steps import a_step
from tiny_policies import Fails, TinyGaussian, TinyTokens, digit_sum, nearness

PROMPTS = [str(i) for i in range(12)]


def make(policy: TinyTokens | None = None, reward=digit_sum, **options) -> Trainer:
    defaults = {"prompts_per_step": 4, "group_size": 4, "micro_batch_size": 16, "learning_rate": 1e-2, "device": "cpu"}
    return Trainer(policy or TinyTokens(), [reward], PROMPTS, **(defaults | options))


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.updates.parameters])


# --- ratio == 1 -----------------------------------------------------------------------------------------------------


class Tempered(TinyTokens):
    """Sampled at temperature 1, scored at another."""

    temperature = 1.05

    def logprobs(self, rollout, steps):
        tokens, prompt = rollout.trace.per_row["tokens"], rollout.trace.per_group["number"][rollout.group_index]
        previous = nn.functional.pad(tokens, (1, 0))[:, :-1][:, steps]
        position = torch.arange(self.length)[steps].expand_as(previous)
        logits = self.logits(prompt[:, None].expand_as(previous), position, previous) / self.temperature
        return Decisions(logprobs=logits.log_softmax(-1).gather(-1, tokens[:, steps, None])[..., 0])


class Dropped(TinyTokens):
    """Dropout left on in the scored pass."""

    def logprobs(self, rollout, steps):
        found = super().logprobs(rollout, steps)
        return Decisions(logprobs=nn.functional.dropout(found.logprobs, 0.1))


class OneDecision(TinyTokens):
    """A single decision of a single row is scored wrongly: the end token as if it were padding."""

    def logprobs(self, rollout, steps):
        found = super().logprobs(rollout, steps)
        wrong = torch.zeros_like(found.logprobs)
        wrong[0, 0] = 0.01
        return Decisions(logprobs=found.logprobs + wrong)


@pytest.mark.parametrize("policy", [Tempered, Dropped, OneDecision])
def test_log_probs_that_disagree_stops_before_any_weight_changes(policy: type[TinyTokens]) -> None:
    trainer = make(policy())
    before = weights(trainer)
    with pytest.raises(
        RunError, match=r"logprobs\(\) gives other log-probs than the rollout, before any update"
    ) as caught:
        trainer.step()
    assert "Usual causes: temperature" in str(caught.value)
    assert torch.equal(weights(trainer), before)
    assert trainer.completed == trainer.updates.done == 0


@pytest.mark.parametrize("policy", [TinyTokens(), TinyTokens(slices=3), TinyGaussian()])
@pytest.mark.parametrize("options", [{}, {"updates_per_rollout": 2, "minibatches": 2}, {"objective": "gspo"}])
def test_a_right_policy_passes(policy: TinyTokens, options: dict) -> None:
    if "objective" in options:
        options = {"objective": objectives.GSPO()}
    trainer = make(policy, nearness if isinstance(policy, TinyGaussian) else digit_sum, **options)
    for _ in range(3):
        assert trainer.step().metrics["logprob_diff/max"] < 1e-5


def test_gap_limits() -> None:
    full, low = LogprobDiffLimit.of(None, low_precision=False), LogprobDiffLimit.of(None, low_precision=True)
    assert (full.mean, full.largest) == (1e-4, 1e-3)
    assert (low.mean, low.largest) == (0.1, math.inf)
    assert LogprobDiffLimit.of(0.01, low_precision=False) == LogprobDiffLimit(mean=0.01, largest=0.1)
    check_logprob_diff(8.5e-6, 4.1e-5, full, step=1)  # the worst of a right policy in fp32
    check_logprob_diff(0.08, 0.43, low, step=1)  # and in bf16
    check_logprob_diff(math.nan, math.nan, full, step=1)  # nothing measured: every decision is masked
    with pytest.raises(RunError, match=r"by 5e-05 on average and 0\.002 at most; the limit is 0\.0001 on average and"):
        check_logprob_diff(5e-5, 2e-3, full, step=1)
    with pytest.raises(RunError, match=r"the limit is 0\.1 on average in low precision"):
        check_logprob_diff(0.3, 1.2, low, step=7)


# --- numbers that are none ------------------------------------------------------------------------------------------


class Poisoned(TinyTokens):
    """From the second step on, the log-probs of prompt 5 are not numbers in training."""

    where = "logprobs"
    calls = 0

    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        self.calls += 1
        found = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
        if self.where == "rollout" and self.calls > 1:
            found.old.logprobs[9, 0] = math.inf
        return found

    def logprobs(self, rollout, steps):
        found = super().logprobs(rollout, steps)
        if self.where != "logprobs" or self.calls < 2:
            return found
        bad = torch.tensor([s.prompt.text == self.bad for s in rollout.samples])
        column = torch.arange(found.logprobs.shape[1]) == 0
        return Decisions(logprobs=torch.where(bad[:, None] & column, found.logprobs * math.nan, found.logprobs))


@pytest.mark.parametrize(("size", "minibatches"), [(16, 1), (3, 1), (16, 2)])
def test_a_loss_that_is_no_number_names_step_row_and_prompt(size: int, minibatches: int) -> None:
    policy = Poisoned()
    trainer = make(policy, micro_batch_size=size, minibatches=minibatches)
    policy.bad = trainer.train_prompts[trainer_prompts(trainer, 1)[2]].text
    trainer.step()
    before = weights(trainer)
    with pytest.raises(RunError) as caught:
        trainer.step()
    message = re.match(
        rf"The loss is nan in step 2, update (\d); this update was not made: logprobs\(\) gives "
        rf"the log-prob nan for decision 0 of row 8 \(prompt '{policy.bad}'; 4 of {16 // minibatches} rows are "
        r"affected\)\. Usual causes: ",
        str(caught.value),
    )
    assert message
    assert torch.equal(weights(trainer), before) == (message[1] == "1")
    assert trainer.completed == 1


def trainer_prompts(trainer: Trainer, step: int) -> list[int]:
    from grpokit.sampling import prompt_indices

    return prompt_indices(trainer.seed, step, per_step=trainer.prompts_per_step, total=len(trainer.train_prompts))


def test_a_rollout_that_is_no_number_names_its_row() -> None:
    policy = Poisoned()
    policy.where = "rollout"
    trainer = make(policy)
    trainer.step()
    with pytest.raises(
        RunError, match=r"rollout gave the log-prob inf for decision 0 of row 9 \(prompt '\d+'; 1 of 16"
    ):
        trainer.step()


def test_a_gradient_that_is_no_number_behind_a_finite_loss() -> None:
    class Root(TinyTokens):
        def logprobs(self, rollout, steps):
            found = super().logprobs(rollout, steps)
            return Decisions(logprobs=found.logprobs + (self.net[0].weight.sum() * 0).sqrt())

    with pytest.raises(RunError, match=r"The gradient's norm is nan in step 1, update 1, though the loss is finite"):
        make(Root()).step()


# --- the reference --------------------------------------------------------------------------------------------------


class Shared(TinyTokens):
    """Its reference shares the weights that are trained."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.frozen = self.net


class Drifting(TinyTokens):
    """Its reference follows the policy a little at every rollout."""

    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        if self.frozen is not None:
            for p in self.frozen.parameters():
                p.data += 0.01
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)


KL = {"objective": objectives.GRPO(kl_coef=0.1)}


def test_a_reference_that_moves_with_the_policy_stops_after_the_first_step() -> None:
    with pytest.raises(
        RunError, match=r"The reference has changed: after the first step, its log-probs .* by 0\.\d+ on average"
    ):
        make(Shared(), **KL).step()


def test_a_reference_that_drifts_is_found_when_the_run_is_saved(tmp_path: Path) -> None:
    trainer = make(Drifting(), **KL)
    trainer.step()
    trainer.step()
    with pytest.raises(RunError, match=r"The reference has changed: after step 2, .*frozen_copy"):
        trainer.save(tmp_path / "state")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("policy", "kl"), [(TinyTokens, "k3"), (TinyGaussian, "k1"), (TinyGaussian, "gaussian")])
def test_a_reference_that_stays_passes_also_after_a_resume(policy: type[TinyTokens], kl: str, tmp_path: Path) -> None:
    options = {"objective": objectives.GRPO(kl_coef=0.1, kl=kl)}
    reward = nearness if policy is TinyGaussian else digit_sum
    first = make(policy(), reward, **options)
    for _ in range(3):
        first.step()
    first.save(tmp_path / "state")
    again = make(policy(), reward, **options)
    again.load(tmp_path / "state")
    assert again.step().metrics["kl"] == first.step().metrics["kl"]
    again.save(tmp_path / "later")


def test_a_resume_whose_reference_is_another_is_refused(tmp_path: Path) -> None:
    """The start was changed after the policy was built, so a policy that is built anew has another reference."""
    policy = TinyTokens()
    policy.net[-1].weight.data *= 1.5
    trainer = make(policy, **KL)
    trainer.step()
    trainer.save(tmp_path / "state")
    again = make(TinyTokens(), **KL)
    with pytest.raises(
        RunError, match=r"The reference has changed: after loading .*a policy that starts from other weights"
    ):
        again.load(tmp_path / "state")
    right = TinyTokens()
    right.net[-1].weight.data *= 1.5
    make(right, **KL).load(tmp_path / "state")


def test_the_probe_survives_a_checkpoint_as_it_is(tmp_path: Path) -> None:
    trainer = make(TinyTokens(), **KL)
    trainer.step()
    probe = trainer._reference_probe
    trainer.save(tmp_path / "state")
    fresh = make(TinyTokens(), **KL)
    fresh.load(tmp_path / "state")
    back, (before, after) = fresh._reference_probe, (each.state_dict() for each in (probe, fresh._reference_probe))
    assert after.keys() == before.keys()
    assert all(
        torch.equal(x, after[name]) if isinstance(x, torch.Tensor) else x == after[name] for name, x in before.items()
    )
    assert back.rollout.samples[0].prompt == trainer.train_prompts[back.prompt]


# --- nothing to learn from ------------------------------------------------------------------------------------------


def scores_of(*columns: list[float]) -> Scores:
    matrix = torch.tensor(columns, dtype=torch.float64).T
    names = ["ocr", "ssim", "third"][: len(columns)]
    return Scores(
        matrix=matrix,
        weights=torch.ones(len(columns), dtype=torch.float64),
        groups=GROUPS,
        names=names,
        seconds=[0.0] * len(columns),
        lost=torch.zeros_like(matrix, dtype=torch.bool),
        asked=[True] * len(columns),
    )


GROUPS = torch.tensor([0, 0, 1, 1])


def look(zero_std: ZeroStd, *columns: list[float], step: int, ends: Sequence[str] = ()) -> list[str]:
    scores = scores_of(*columns)
    return zero_std.weighted(a_step(step, scores, advantages.group(scores.matrix, scores.weights, GROUPS), ends))


def test_a_reward_that_never_tells_samples_apart_stops_the_run() -> None:
    trainer = make(reward=lambda samples: [0.5] * len(samples), max_zero_std_steps=3)
    first = trainer.step()
    assert first.warnings == [
        "In step 1 all samples of every group got the same rewards, so there was nothing to learn from: '<lambda>' "
        "gave 0.5 to all 16 rows that it scored. If this goes on for 3 steps, the run stops."
    ]
    assert trainer.step().warnings == []
    with pytest.raises(RunError, match=r"For 3 steps in a row, .* In step 3: '<lambda>' gave 0\.5 to all 16 rows"):
        trainer.step()
    assert trainer.completed == 2


def test_which_reward_is_constant_is_said() -> None:
    rounded = [0.25, 0.25, 1, math.nextafter(1, 2)]  # the advantages of the last two are 0
    (said,) = look(ZeroStd(None), [0, 0, 0, 0], rounded, [math.nan] * 4, step=4)
    assert "'ocr' gave 0 to all 4 rows that it scored" in said
    assert "'ssim' gave 0.25 to 1, the same inside each group" in said
    assert "'third' scored no row" in said
    assert "stops" not in said


def test_a_reward_that_teaches_nothing_beside_others_is_said_once() -> None:
    """The second is 0.25 or 1 by the prompt, so no group tells its samples apart; the third began to vary in step 2."""
    zero_std = ZeroStd(None)
    said = {}
    for step in range(1, 9):
        third = [0.0, 0, 0, 1] if step == 2 else [1.0] * 4
        warnings = look(zero_std, [0, 1, 0, step], [0.25, 0.25, 1, 1], third, step=step)
        said |= {step: warnings} if warnings else {}
        zero_std.load_state_dict(json.loads(json.dumps(zero_std.state_dict())))
    assert list(said) == [3]
    (warning,) = said[3]
    assert "'ssim' gave 0.25 to 1, the same inside each group" in warning


@pytest.mark.parametrize(("cut", "said"), [(3, True), (2, True), (1, False), (0, False)])
def test_texts_that_were_cut_name_their_limit(cut: int, *, said: bool) -> None:
    ends = ["length"] * cut + ["stop"] * (4 - cut)
    warnings = look(ZeroStd(9), [0, 0, 0, 0], step=1, ends=ends)
    flat = ZeroStd(None)
    for step in range(3):
        warnings += look(flat, [0, 0, 0, 0], [0, 1, 0, 1], step=step, ends=ends)
    words = [f"{cut} of 4 texts were cut at the limit of length: raise policy.max_new_tokens." in w for w in warnings]
    assert words == [said, said]
    with pytest.raises(RunError) as stopped:
        look(ZeroStd(1), [0, 0, 0, 0], step=1, ends=ends)
    assert ("max_new_tokens" in str(stopped.value)) == said


def test_steps_with_spread_start_the_count_anew() -> None:
    zero_std = ZeroStd(2)
    for step in range(10):
        column = [0.0, 0, 0, 0] if step % 2 else [0.0, 1, 0, 0]
        look(zero_std, column, step=step)
    assert zero_std.count == 1


def test_a_policy_that_has_converged_ends_its_training_well() -> None:
    zero_std = ZeroStd(2)
    look(zero_std, [0, 1, 0, 0], step=1)
    look(zero_std, [1, 1, 1, 1], step=2)
    assert look(zero_std, [1, 1, 1, 1], step=3)[0].endswith("to continue anyway.")
    assert "No step had a higher mean reward, so the policy has converged" in zero_std.converged


def test_a_policy_that_has_collapsed_does_not() -> None:
    zero_std = ZeroStd(2)
    look(zero_std, [0, 1, 0, 0], step=1)
    look(zero_std, [0, 0, 0, 0], step=2)
    with pytest.raises(RunError, match="For 2 steps in a row"):
        look(zero_std, [0, 0, 0, 0], step=3)


def test_an_early_streak_is_no_convergence_of_a_later_one() -> None:
    zero_std = ZeroStd(2)
    for step, column in enumerate(([1, 1, 1, 1], [0.8, 1, 0.8, 1], [0, 0, 0, 0]), 1):
        look(zero_std, column, step=step)
    with pytest.raises(RunError, match="For 2 steps in a row"):
        look(zero_std, [0, 0, 0, 0], step=4)


def test_convergence_is_by_the_best_of_the_steps_without_spread() -> None:
    """Prompts differ in what can be reached, so the last zero_std step may lie below."""
    zero_std = ZeroStd(3)
    look(zero_std, [0.95, 1, 1, 0.95], step=1)
    for step, value in ((2, 1.0), (3, 1.0), (4, 0.9)):
        look(zero_std, [value] * 4, step=step)
    assert "has converged" in zero_std.converged


def test_rewards_that_cancel_in_the_sum_but_not_in_the_advantages_count_as_spread() -> None:
    """Per-reward z-scores (gdpo) learn where the weighted sum is the same for all."""
    scores = scores_of([0, 0, 1, 1], [2, 2, 0, 0])
    one = torch.zeros(4, dtype=torch.int64)
    scores = replace(scores, weights=torch.tensor([2.0, 1.0], dtype=torch.float64), groups=one)
    assert advantages.gdpo(scores.matrix, scores.weights, one).abs().min() > 0.5
    assert ZeroStd(1).weighted(a_step(1, scores, advantages.gdpo(scores.matrix, scores.weights, one))) == []
    said = ZeroStd(None).weighted(a_step(1, scores, advantages.group(scores.matrix, scores.weights, one)))
    assert "'ocr' gave 0 to 1, which did not count" in said[0]


def test_the_count_goes_on_after_a_resume() -> None:
    first, second = ZeroStd(3), ZeroStd(3)
    look(first, [0, 1, 0, 0], step=1)
    look(first, [1, 1, 1, 1], step=2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert vars(second) == vars(first)


def test_a_reward_that_leaves_half_of_the_rows_unscored_is_said_once() -> None:
    """In step 1 it is a quarter, in step 2 half of the rows, and a resume does not say it again."""
    nan = math.nan
    terms = [RewardTerm(name=name, reward=digit_sum) for name in ("ocr", "ssim")]
    prompts = as_prompts(["0", "1"])
    guard, said = UnscoredRows(terms, prompts), []
    for step, column in enumerate(([nan, 1, 2, 3], [nan, 1, nan, 3], [nan] * 4), 1):
        said += guard.scored(a_step(step, scores_of([0.0, 1, 2, 3], column)))
        resumed = UnscoredRows(terms, prompts)
        resumed.load_state_dict(json.loads(json.dumps(guard.state_dict())))
        guard = resumed
    (warning,) = said
    assert "'ssim' left 50% of the rows of step 2" in warning
    assert "It teaches nothing about such a row" in warning


def test_a_monitor_that_leaves_half_of_the_rows_unscored_is_not_said_to_teach() -> None:
    guard = UnscoredRows([RewardTerm(name="seen", reward=digit_sum, weight=0)], as_prompts(["0", "1"]))
    (warning,) = guard.scored(a_step(1, scores_of([math.nan, 1, math.nan, 3])))
    assert "teaches" not in warning


def test_rows_of_unscorable_prompts_and_of_exceptions_do_not_count() -> None:
    terms = [RewardTerm(name="ocr", reward=digit_sum, unscorable=lambda prompt: "no target" * (prompt.text == "0"))]
    prompts = as_prompts(["0", "1"])
    expected = scores_of([math.nan, math.nan, math.nan, 1])
    assert UnscoredRows(terms, prompts).scored(a_step(1, expected)) == []  # one of four
    assert len(UnscoredRows(terms, prompts).scored(a_step(1, scores_of([1, 1, math.nan, math.nan])))) == 1
    raised = replace(scores_of([1, 1, math.nan, math.nan]), lost=torch.tensor([[False], [False], [True], [True]]))
    assert UnscoredRows(terms, prompts).scored(a_step(1, raised)) == []


def steps_of(guard: SlowRewards, *, seconds: Sequence[float], total: float) -> list[tuple[int, str]]:
    """What it says where a step takes `total` seconds, and the second reward these of the steps."""
    said = []
    for number, own in enumerate(seconds, 1):
        step = a_step(number, replace(scores_of([0.0, 1, 2, 3], [0.0, 1, 2, 3]), seconds=[0.1, own]))
        step.log.start -= total
        said += [(number, line) for line in (*guard.scored(step), *guard.updated(step))]
    return said


@pytest.mark.parametrize(
    ("seconds", "total", "share"),
    [
        ([90.0, 2.5, 3.0, 3.02, 3, 3], 4, "71%"),  # the first loads weights
        ([90.0, 1.9, 1.9, 1.9, 3, 3], 4, ""),
        ([0.9, 0.9, 0.9, 0.9, 3, 3], 1, ""),  # steps too short to matter
    ],
)
def test_a_reward_that_takes_most_of_a_step_gets_one_hint_at_workers(
    seconds: list[float], total: float, share: str
) -> None:
    terms = [RewardTerm(name=name, reward=digit_sum) for name in ("ocr", "ssim")]
    said = steps_of(SlowRewards(terms, Team()), seconds=seconds, total=total)
    assert [number for number, _ in said] == ([5] if share else [])
    assert all(f"'ssim' took {share}" in line and "`workers: 2`" in line for _, line in said)


def test_a_reward_that_scores_elsewhere_gets_no_hint() -> None:
    elsewhere = PooledReward("length", {})
    terms = [RewardTerm(name="ocr", reward=digit_sum), RewardTerm(name="ssim", reward=elsewhere)]
    assert steps_of(SlowRewards(terms, Team()), seconds=[3.0] * 6, total=4) == []
    other = Team()
    other.rank = 1  # it has other times, so its words would be another warning
    terms = [replace(term, reward=digit_sum) for term in terms]
    assert steps_of(SlowRewards(terms, other), seconds=[3.0] * 6, total=4) == []


def test_updates_that_a_loss_scaler_skips_for_ever_stop_the_run() -> None:
    """Of fp16 training, which needs a GPU; the scaler itself runs anywhere."""
    trainer = make(steps=50)
    trainer.updates.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def skip(times: int) -> None:
        overflow = trainer.updates.parameters[0].register_hook(lambda gradient: gradient * math.inf)
        for _ in range(times):
            trainer.step()
        overflow.remove()

    skip(19)
    trainer.step()  # the count starts over
    skip(19)
    with pytest.raises(RunError, match=r"skipped 20 updates in a row, and its scale fell to 1.82e-12"):
        skip(1)
    assert trainer.updates.skipped == 19  # as before the step that failed


def test_a_step_that_was_broken_off_leaves_no_count_behind() -> None:
    class Later(TinyTokens):
        broken = False

        def logprobs(self, rollout, steps):
            found = super().logprobs(rollout, steps)
            return Decisions(logprobs=found.logprobs * math.nan) if self.broken else found

    policy = Later()
    trainer = make(policy, updates_per_rollout=3, warmup_steps=100)
    handle = trainer.updates.optimizer.register_step_post_hook(lambda *_: setattr(policy, "broken", True))
    with pytest.raises(RunError, match="update 2"):
        trainer.step()
    handle.remove()
    policy.broken = False
    report = trainer.step()
    assert report.metrics["learning_rate"] == pytest.approx(3 / 100 * 1e-2)
    assert report.metrics["logprob_diff/mean"] < 1e-5  # it was measured


def test_a_step_whose_report_fails_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(updates_per_rollout=2)
    monkeypatch.setattr(metrics, "decision_metrics", lambda tally: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.step()
    assert (trainer.completed, trainer.updates.done) == (0, 2)
    monkeypatch.undo()
    assert "interrupted after 2 of its 2 updates" in trainer.step().warnings[0]


def test_a_step_that_is_taken_again_counts_once() -> None:
    rewards = [
        RewardTerm(name="same", reward=lambda samples: [0.5] * len(samples)),
        RewardTerm(name="watched", reward=digit_sum, weight=0),
    ]
    options = {"prompts_per_step": 4, "group_size": 4, "micro_batch_size": 16, "max_zero_std_steps": 4, "device": "cpu"}
    policy = Fails()
    clean, again = (Trainer(p, rewards, PROMPTS, **options) for p in (TinyTokens(), policy))
    expected = [clean.step().warnings for _ in range(3)]
    assert "'same' gave 0.5" in expected[0][0]
    assert "watched" not in expected[0][0]  # a monitor that varies teaches nothing
    policy.left = 1
    with pytest.raises(ValueError, match="a fault"):
        again.step()
    found = [again.step().warnings]
    policy.left = 1
    with pytest.raises(ValueError, match="a fault"):
        again.step()
    assert found + [again.step().warnings for _ in range(2)] == expected
    assert again._zero_std.state_dict() == clean._zero_std.state_dict()
    ours, theirs = (trainer.observers["guards/reward_hacking"].state_dict() for trainer in (again, clean))
    assert ours == theirs
    assert [row[0] for row in ours["rows"]["watched"]] == [1, 2, 3]
    for trainer in (clean, again):
        with pytest.raises(RunError, match=r"For 4 steps in a row, .* In step 4"):
            trainer.step()


def test_a_checkpoint_replaces_nothing_but_a_checkpoint(tmp_path: Path) -> None:
    trainer = make()
    trainer.step()
    (tmp_path / "work").mkdir()
    (tmp_path / "work/thesis.txt").write_text("years")
    with pytest.raises(
        UsageError, match=r"work contains files that are not a checkpoint; saving would replace them\. Choose"
    ):
        trainer.save(tmp_path / "work")
    assert (tmp_path / "work/thesis.txt").read_text() == "years"
    with pytest.raises(UsageError, match=r"thesis\.txt is a file; a checkpoint is a folder\. Choose another name\."):
        trainer.save(tmp_path / "work/thesis.txt")
    assert (tmp_path / "work/thesis.txt").read_text() == "years"
    trainer.save(tmp_path / "state")
    trainer.save(tmp_path / "state")


def test_a_policy_that_cannot_write_leaves_nothing(tmp_path: Path) -> None:
    class Full(TinyTokens):
        full = False

        def state_dict(self):
            if self.full:
                raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos")
            return super().state_dict()

    trainer = make(Full())
    trainer.step()
    trainer.policy.full = True
    with pytest.raises(RunError, match=r"state of policy: .* raised RuntimeError: \[enforce fail"):
        trainer.save(tmp_path / "state")
    assert not list(tmp_path.iterdir())


def test_fewer_prompts_than_the_references_sample_needs_are_refused(tmp_path: Path) -> None:
    trainer = make(TinyTokens(), **KL)
    trainer.step()
    trainer.save(tmp_path / "state")
    fewer = Trainer(TinyTokens(), [digit_sum], PROMPTS[:1], prompts_per_step=1, group_size=4, device="cpu", **KL)
    with pytest.raises(CheckpointError, match=r"had at least \d+ training prompts, this one has 1\."):
        fewer.load(tmp_path / "state")


@pytest.mark.parametrize(
    "name", ["state.json", "optimizer.safetensors", "reference_probe.safetensors", "policy.safetensors"]
)
@pytest.mark.parametrize("at", [0.2, 0.5, 0.99])
def test_one_changed_byte_is_refused_before_anything_is_loaded(name: str, at: float, tmp_path: Path) -> None:
    """Weights and moments with another digit are valid files, and another run."""
    trainer = make(TinyTokens(), **KL)
    trainer.step()
    place = tmp_path / "step_000001"
    trainer.save(place)
    content = bytearray((place / name).read_bytes())
    content[int(at * len(content))] ^= 1
    (place / name).write_bytes(content)
    fresh = make(TinyTokens(), **KL)
    before = weights(fresh)
    with pytest.raises(CheckpointError, match=rf"step_000001 is damaged: {name} (was changed after|is not JSON)"):
        fresh.load(place)
    assert torch.equal(weights(fresh), before)


def test_pruning_gets_past_what_a_kill_has_left(tmp_path: Path) -> None:
    trainer = make()
    for step in (1, 2):
        trainer.step()
        trainer.save(tmp_path / f"step_{step:06d}")
    (tmp_path / ".step_000001.deleted").mkdir()
    (tmp_path / ".step_000001.deleted/rest").touch()
    checkpoint.prune(tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000002"]


def test_a_kill_while_a_checkpoint_is_deleted_leaves_no_half_of_it(tmp_path: Path) -> None:
    trainer = make()
    for step in (1, 2, 3):
        trainer.step()
        trainer.save(tmp_path / f"step_{step:06d}")
    (tmp_path / "step_000002").rename(tmp_path / ".step_000002.deleted")
    assert checkpoint.steps(tmp_path) == [tmp_path / "step_000001", tmp_path / "step_000003"]
    checkpoint.prune(tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000003"]


class TwoNets(TinyTokens):
    """Two nets of the same shapes, in one order or the other."""

    def __init__(self, order: str = "ab") -> None:
        super().__init__()
        self.order, self.nets = order, {"a": self.net, "b": TinyTokens(seed=1).net}

    def logits(self, prompt, position, previous):
        first = super().logits(prompt, position, previous)
        with swapped(self, "net", self.nets["b"]):
            return first + 0.1 * super().logits(prompt, position, previous)

    def modules(self):
        return {name: self.nets[name] for name in self.order}

    def state_dict(self):
        return {f"{name}.{key}": x for name, net in self.nets.items() for key, x in net.state_dict().items()}

    def load_state_dict(self, state):
        for name, net in self.nets.items():
            net.load_state_dict({key: state[f"{name}.{key}"] for key in net.state_dict()})


def test_the_optimizers_state_finds_its_parameters_in_any_order(tmp_path: Path) -> None:
    options = {"max_grad_norm": None}  # scaling by a norm that is summed in another order would change the last bits
    whole = make(TwoNets("ab"), **options)
    for _ in range(2):
        whole.step()
    whole.save(tmp_path / "state")
    for order in ("ab", "ba"):
        again = make(TwoNets(order), **options)
        again.load(tmp_path / "state")
        assert again.step().metrics["learning_rate"] == 1e-2
        if order == "ab":
            whole.step()
        for name, net in whole.policy.nets.items():
            for a, b in zip(net.parameters(), again.policy.nets[name].parameters(), strict=True):
                assert torch.equal(a, b)
    with pytest.raises(
        CheckpointError,
        match=r"belongs to another policy, .* \('b/0\.weight', .* and 3 more only in the checkpoint\)\. Resume",
    ):
        make(TwoNets("a")).load(tmp_path / "state")
    make(TwoNets("a")).save(tmp_path / "one")
    with pytest.raises(
        CheckpointError,
        match=r"'a/0\.weight', .* only in the checkpoint; 'net/0\.weight', .* 3 more only in this policy\)",
    ):
        make().load(tmp_path / "one")


@pytest.mark.parametrize(
    "kind",
    [torch.optim.SGD, functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.Adafactor],
    ids=["SGD", "momentum", "Adafactor"],
)
def test_another_optimizers_state_is_kept_too(kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other() -> Trainer:
        trainer = make()
        (group,) = trainer.updates.optimizer.param_groups
        named = list(zip(group["param_names"], group["params"], strict=True))
        trainer.updates.optimizer = kind(named, lr=0.1)
        return trainer

    whole, again = other(), other()
    for _ in range(2):
        whole.step()
    whole.save(tmp_path / "state")
    monkeypatch.chdir(tmp_path / "state")
    again.load(".")
    whole.step()
    again.step()
    assert torch.equal(weights(whole), weights(again))


def test_the_probe_is_a_row_that_decides_something() -> None:
    class FirstRowForced(Shared):
        """Nothing is decided in the first row of a rollout."""

        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            found = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
            found.mask[0] = False
            return found

    with pytest.raises(RunError, match="The reference has changed: after the first step"):
        make(FirstRowForced(), **KL).step()


def test_whole_sequence_losses_score_no_masked_slice_either() -> None:
    class LastMasked(TinyTokens):
        def rollout(self, prompts, group_size, *, seeds, evaluate=False):
            found = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
            found.mask[:, -1] = False
            return found

    cut, whole = LastMasked(slices=7), LastMasked()
    options = {"objective": objectives.GSPO(kl_coef=0.1), "updates_per_rollout": 2, "learning_rate": 0.05}
    a, b = make(cut, **options), make(whole, **options)
    a.step(), b.step()
    assert slice(6, 7) not in [steps for _, steps in cut.scored]
    assert torch.allclose(weights(a), weights(b), rtol=0, atol=2e-6)


def test_iteration_ends_on_convergence(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make(steps=200, learning_rate=3e-2, max_zero_std_steps=5)
    reports = list(trainer)
    assert len(reports) < 200
    assert all(report.metrics["frac_reward_zero_std"] == 1 for report in reports[-5:])
    assert reports[-1].warnings == [trainer.converged]
    assert f"warning, step {len(reports)}: {trainer.converged}\n" in capsys.readouterr().err


# --- what is saved --------------------------------------------------------------------------------------------------


def test_a_step_broken_off_between_updates_says_how_many_were_made(tmp_path: Path) -> None:
    class Later(TinyTokens):
        broken = False

        def logprobs(self, rollout, steps):
            found = super().logprobs(rollout, steps)
            return Decisions(logprobs=found.logprobs * math.nan) if self.broken else found

    policy = Later()
    trainer = make(policy, updates_per_rollout=3)
    trainer.step()
    trainer.updates.optimizer.register_step_post_hook(lambda *_: setattr(policy, "broken", True))
    with pytest.raises(RunError, match=r"The loss is nan in step 2, update 2; this update was not made"):
        trainer.step()
    assert (trainer.completed, trainer.updates.done) == (1, 1)
    policy.broken = False
    trainer.save(tmp_path / "state")
    assert checkpoint.read_state(tmp_path / "state")["parts"]["position"]["updates_done"] == 1
    again = make(Later(), updates_per_rollout=3)
    again.load(tmp_path / "state")
    assert torch.equal(weights(again), weights(trainer))
    assert again.step().step == 2


def test_the_loss_scale_is_kept(tmp_path: Path) -> None:
    """Of fp16 training, which needs a GPU; the scaler itself runs anywhere."""
    trainer = make()
    trainer.step()
    trainer.updates.scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    trainer.updates.skipped = 3
    trainer.save(tmp_path / "state")
    again = make()
    again.updates.scaler = torch.amp.GradScaler("cpu")
    assert again.updates.scaler.get_scale() == 65536
    again.load(tmp_path / "state")
    assert (again.updates.scaler.get_scale(), again.updates.skipped) == (512, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("state.json", r"is not a checkpoint of grpokit: it has no state\.json"),
        ("torn state", r"is damaged: state\.json is not JSON"),
        ("foreign state", r"is not a checkpoint of grpokit: its state\.json has no format"),
        ("newer", r"has format 99; this grpokit reads format 5\. Update grpokit"),
        ("optimizer.safetensors", r"is damaged: .*optimizer\.safetensors"),
        ("torn optimizer", r"is damaged: "),
        ("policy.safetensors", r"is damaged: policy\.safetensors cannot be read \(No such file"),
        (
            "another policy",
            r"belongs to another policy, with other trainable parameters \('net/0\.weight', "
            r"'net/0\.bias', 'net/2\.weight' and 2 more with another shape\)\. Resume with the policy",
        ),
    ],
)
def test_unusable_checkpoints_change_nothing(damage: str, message: str, tmp_path: Path) -> None:
    trainer = make()
    trainer.step()
    place = tmp_path / "step_000001"
    trainer.save(place)
    policy = TinyTokens()
    match damage:
        case "torn state":
            (place / "state.json").write_text('{"format": 1, "st')
        case "foreign state":
            (place / "state.json").write_text('{"best_metric": null, "epoch": 3}')
        case "newer":
            (place / "state.json").write_text('{"format": 99}')
        case "torn optimizer":
            whole = (place / "optimizer.safetensors").read_bytes()
            (place / "optimizer.safetensors").write_bytes(whole[: len(whole) // 2])
        case "another policy":
            policy = TinyTokens(width=8)
        case _:
            (place / damage).unlink()
    fresh = make(policy)
    before = weights(fresh)
    with pytest.raises(CheckpointError, match=message) as caught:
        fresh.load(place)
    assert caught.value.exit_code == 2
    assert torch.equal(weights(fresh), before)
    assert fresh.completed == 0


@pytest.mark.parametrize("torn", ["optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_names_the_one_before(torn: str, tmp_path: Path) -> None:
    trainer = make()
    places = [tmp_path / f"step_{step:06d}" for step in (1, 2, 3)]
    for place in places:
        trainer.step()
        trainer.save(place)
    for before, place in reversed(list(itertools.pairwise(places))):
        (place / torn).write_bytes(b"torn")
        with pytest.raises(CheckpointError, match=rf" Delete {place} to continue from {before}\.$"):
            make().load(place)
        shutil.rmtree(place)


def test_a_prompt_beyond_the_data_is_no_matter_without_a_reference(tmp_path: Path) -> None:
    """The probe is read only where there is a reference to hold it against."""
    trainer = make(TinyTokens(), **KL)
    trainer.step()
    trainer.save(tmp_path / "state")
    again = Trainer(TinyTokens(), [digit_sum], [Prompt(text="1")], prompts_per_step=1, group_size=4, device="cpu")
    again.load(tmp_path / "state")
    assert again.completed == 1


def test_numbers_are_checked() -> None:
    with pytest.raises(UsageError, match="rollout_batch_size must be at least 1, or None, got 0"):
        make(rollout_batch_size=0)
    with pytest.raises(UsageError, match="learning_rate must be a finite number, got inf"):
        make(learning_rate=math.inf)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": TinyTokens}, r"^policy is <class .*>, a class; make an object of it\."),
        ({"policy": "gpt2"}, r"^policy is 'gpt2', which lacks rollout, .*, load_state_dict\. See grpokit\.Policy\.$"),
        ({"rewards": digit_sum}, r"^rewards is <function .*; expected a list of rewards, as in \[reward\], or a"),
        ({"rewards": 3}, r"^rewards is 3; expected a list"),
        ({"advantage": "group"}, r"^advantage is 'group'; expected a function such as grpokit\.advantages\.group\.$"),
        ({"objective": "grpo"}, r"^objective is 'grpo'; expected an objective such as"),
        ({"correction": "mask"}, r"^correction must be a grpokit.Correction, or None, got 'mask'"),
        ({"trackers": "tensorboard"}, r"^trackers must be a list of texts, as in \['tensorboard'\], got 'tensorboard'"),
    ],
)
def test_arguments_of_another_type_are_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"policy": TinyTokens(), "rewards": [digit_sum], "prompts": PROMPTS, "device": "cpu"}
    with pytest.raises(UsageError, match=message):
        Trainer(**(arguments | changes))


def test_a_step_that_was_interrupted_between_two_updates_says_so_when_it_is_taken_again() -> None:
    """Ctrl-C in a notebook, and the same cell once more: the weights are not those before the step."""

    class Interrupted(TinyTokens):
        calls = 0

        def logprobs(self, rollout, steps):
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().logprobs(rollout, steps)

    trainer = make(Interrupted(), updates_per_rollout=2)
    with pytest.raises(KeyboardInterrupt):
        trainer.step()
    words = "Step 1 was interrupted after 1 of its 2 updates; they are kept, and it is drawn again."
    assert [words in trainer.step().warnings for _ in range(2)] == [True, False]


def test_advantages_that_are_rounding_alone_teach_nothing() -> None:
    """The guard, the metric and dynamic sampling agree on that."""
    trainer = make(TinyTokens(), advantage=lambda rewards, *_: torch.full((len(rewards),), 1e-10), max_zero_std_steps=2)
    assert trainer.step().metrics["frac_reward_zero_std"] == 1
    with pytest.raises(RunError, match="nothing to learn from"):
        trainer.step()
