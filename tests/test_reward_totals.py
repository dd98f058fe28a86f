"""A row's total has one definition: what is trained is what is shown, stored, bounded and ranked."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from grpokit import RewardTerm, Sample, Trainer, advantages, evaluate
from grpokit.evaluation.files import evaluate_files
from grpokit.evaluation.intervals import mean_of_totals
from grpokit.evaluation.paired import changes
from grpokit.evaluation.sample_files import find_samples
from grpokit.reward_totals import totals
from grpokit.rewards.scoring import score_samples
from grpokit.run_folder import rollout_record
from grpokit.run_folder.journal import Journal, all_scores
from tiny_policies import TinyTokens, digit_sum

NAN = math.nan


def sometimes(samples: Sequence[Sample]) -> list[float]:
    """Scores no sample of the prompt "2", and of others those whose text begins with an even digit."""
    return [
        NAN if sample.prompt.text == "2" or int(sample.output[:1] or 1) % 2 else float(len(sample.output))
        for sample in samples
    ]


TERMS = [
    RewardTerm(name="sum", reward=digit_sum, weight=0.5),
    RewardTerm(name="sometimes", reward=sometimes, weight=-2.0),
    RewardTerm(name="watched", reward=lambda samples: [NAN] * len(samples), weight=0.0),
]


def test_by_hand() -> None:
    """Group 0: its mean; group 1, which the second reward never scored: the batch's mean; a silent row: none."""
    rewards = torch.tensor([[1, 10], [3, NAN], [5, 20], [7, NAN], [9, NAN], [NAN, NAN]], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    weights = torch.tensor([1.0, 0.1], dtype=torch.float64)
    assert totals(rewards, weights, groups)[:5].tolist() == pytest.approx([2, 4.5, 7, 8.5, 10.5])
    assert totals(rewards, weights, groups)[5].isnan()
    assert totals(rewards, torch.tensor([0.0, 1.0]), groups).isnan().tolist() == [False, True, False, True, True, True]


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_that_is_bounded_is_the_mean_of_the_totals(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    rewards[torch.rand(12, 3, generator=generator) < 0.4] = NAN
    groups = torch.randint(0, 4, (12,), generator=generator)
    weights = torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64)
    mean = mean_of_totals(rewards.T.tolist(), weights.tolist(), groups.tolist())
    assert mean.value == pytest.approx(float(totals(rewards, weights, groups).nanmean()), abs=1e-12)


def test_what_is_trained_is_what_is_shown_and_stored_and_ranked(tmp_path: Path) -> None:
    trainer = Trainer(TinyTokens(), TERMS, ["1", "2", "3"], prompts_per_step=3, group_size=4, device="cpu")
    report = trainer.step()
    assert report.rewards.isnan().any(dim=0).tolist() == [False, True, True]
    weights, groups = torch.tensor([0.5, -2.0, 0.0], dtype=torch.float64), report.rollout.groups
    expected = totals(report.rewards, weights, groups)
    trained = advantages.group(report.rewards[:, :2], weights[:2], groups)
    for group in groups.unique():
        rows = groups == group
        assert trained[rows].argsort().tolist() == expected[rows].argsort().tolist()
    assert torch.equal(report.totals, expected)
    assert report.metrics["reward"] == float(expected.mean())
    rollout_record.write_step(tmp_path, report)
    assert torch.equal(rollout_record.read_step(tmp_path, 1).tensors["totals"], expected)
    for name in ("metrics.jsonl", "eval.jsonl"):
        (tmp_path / name).touch()
    Journal(tmp_path, 0).groups(report)
    kept = [json.loads(line) for line in (tmp_path / "groups/step_000001/samples.jsonl").read_text().splitlines()]
    means = {int(group): float(expected[groups == group].mean()) for group in groups.unique()}
    assert {row["place"]: row["group"] for row in kept} == {
        "best": max(means, key=means.__getitem__),
        "worst": min(means, key=means.__getitem__),
    }
    for group, rows in ((g, [row["reward"] for row in kept if row["group"] == g]) for g in {r["group"] for r in kept}):
        assert rows == expected[groups == group].tolist()


def test_evaluations_files_and_reports_say_the_same(tmp_path: Path) -> None:
    found = evaluate(TinyTokens(), TERMS, ["1", "2", "3", "4"], samples_per_prompt=3)
    weights, groups = found.scores.weights, torch.tensor([sample.group for sample in found.samples])
    expected = totals(found.scores.matrix, weights, groups)
    assert torch.equal(found.columns()["reward"], expected)
    assert found.summary.means["reward"] == float(expected.nanmean())
    lines = [{"prompt": s.prompt.text, "output": s.output, "group": s.group} for s in found.samples]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    of_files = evaluate_files(TERMS, find_samples(tmp_path / "samples.jsonl"), batch_size=4)
    assert torch.equal(of_files.scores.totals, expected)
    assert of_files.summary.means == pytest.approx(found.summary.means)
    assert of_files.summary.ci95 == pytest.approx(found.summary.ci95)
    before = all_scores(found)
    scores = before.scores
    better = {**scores, "sum": [x + 1 for x in scores["sum"]], "reward": [x + 0.5 for x in scores["reward"]]}
    after = before.model_copy(update={"scores": better})
    row = asdict(found.summary)
    (change,) = [
        change
        for change in changes(
            row,
            {**row, "means": {**row["means"], "reward": row["means"]["reward"] + 0.5}},
            before,
            after,
            {"reward": 1.0, "sum": 0.5, "sometimes": -2.0, "watched": 0.0},
        )
        if change.name == "reward"
    ]
    assert change.change == pytest.approx(0.5)
    assert change.width == pytest.approx(0.0, abs=1e-12)  # every row gained the same


def test_scores_know_the_groups_of_their_rows() -> None:
    samples = evaluate(TinyTokens(), TERMS, ["1", "2"], samples_per_prompt=2).samples
    assert score_samples(TERMS, samples).groups.tolist() == [sample.group for sample in samples]
