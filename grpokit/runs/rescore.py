"""Scores a recorded run with another reward, and says how its rankings would have changed.

GRPO learns from rankings inside groups alone, so that is where two rewards are compared: Kendall's tau-b, the best
sample of each group, the signs of the advantages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from grpokit import advantages
from grpokit.config import presets
from grpokit.config.evaluation import EvaluationConfig, put_in
from grpokit.data import PromptSequence
from grpokit.errors import DataError, UsageError, plural
from grpokit.evaluation.evaluation import Evaluation
from grpokit.rewards.scoring import Scores, score_samples
from grpokit.run_folder import rollout_record
from grpokit.run_folder.names import check_run_folder
from grpokit.run_folder.rollout_record import Described, Recorded
from grpokit.runs import build, build_rewards, resuming
from grpokit.types import Prompt, Sample


@dataclass(kw_only=True)
class Ranking:
    """A recorded reward over a run, and how the new one's rankings agree with it.

    Attributes:
        means: its mean in each step that has it.
        taus: Kendall's tau-b of the groups in which both rewards tell samples apart.
        changed: in how many of these groups no sample is best under both.
        groups: all groups.
    """

    means: dict[int, float] = field(default_factory=dict)
    taus: list[float] = field(default_factory=list)
    changed: int = 0
    groups: int = 0

    def add(self, step: int, old: Tensor, new: Tensor, groups: Tensor) -> None:
        """Compare the rewards of a step, all [B], inside each group, over the rows that both could score."""
        self.means[step] = float(old.nanmean())
        for group in groups.unique():
            both = (groups == group) & ~old.isnan() & ~new.isnan()
            x = old[both]
            y = new[both]
            tau = kendall_tau(x, y)
            self.groups += 1
            if not math.isnan(tau):
                best_in_both = (x == x.max()) & (y == y.max())
                self.taus.append(tau)
                self.changed += not bool(best_in_both.any())


@dataclass(frozen=True, kw_only=True)
class Rescored:
    """What another reward says about a recorded run.

    Attributes:
        name: the reward's.
        run: the run's folder.
        prompts: its training prompts.
        scores: step -> the new scores of its samples; NaN where the reward could not score.
        flipped: rows whose advantage would have had the other sign under the new reward alone.
        rankings: the recorded rewards by name, and their weighted sum, "reward".
    """

    name: str
    run: Path
    prompts: PromptSequence
    scores: Mapping[int, Scores]
    flipped: int
    rankings: Mapping[str, Ranking]

    @property
    def column(self) -> Tensor:
        """[N] the new scores of all samples."""
        return torch.cat([scores.matrix[:, 0] for scores in self.scores.values()])

    def thirds(self, means: Mapping[int, float]) -> list[str]:
        """The mean over the first and the last third of the steps; a dash where a reward has none, as in phases."""
        steps = list(self.scores)
        third = max(1, len(steps) // 3)
        words = []
        for part in (steps[:third], steps[-third:]):
            values = [means[step] for step in part if step in means]
            finite = [value for value in values if not math.isnan(value)]
            words.append(f"{math.fsum(finite) / len(finite):.3f}" if finite else "-")
        return words

    def evaluations(self) -> Iterator[tuple[int, Evaluation, str]]:
        """For a page: each step, its samples with the new scores, and no title.

        The record is read again, so that memory holds one step.
        """
        for number, scores in self.scores.items():
            step = rollout_record.read_step(self.run, number)
            samples = _samples(number, step, self.prompts)
            yield number, Evaluation(samples=samples, prompts=[s.prompt for s in samples], scores=scores), ""


def rescore(run: Path, evaluation: EvaluationConfig) -> Rescored:
    """Score all recorded steps of a run with another reward.

    Args:
        run: a run folder with a record.
        evaluation: names the reward.

    Raises:
        UsageError: no such run, no record, not one reward, outputs that were only described, or prompts, targets or
            source pictures that have changed since.
        RewardError: the reward failed.
        RunError: the record is damaged.
    """
    check_run_folder(run)
    if len(evaluation.rewards) != 1:
        raise UsageError("A record is scored with one reward at a time. Give one --reward NAME.")
    numbers = rollout_record.recorded_steps(run)
    if not numbers:
        raise UsageError(f"{run} holds no record of its rollouts. A run keeps one with run.record=true.")
    config, _ = presets.read_config(run)
    terms = build_rewards.rewards(put_in(config, evaluation))
    try:
        prompts, _ = build.prompts(config)
        changes = resuming.changed_prompts(run, resuming.prompt_digests(prompts, None), {"train": prompts})
        if changes:
            raise DataError(f"{run} was started with other {changes['train']}. Restore the data of the run.")
        scores_of = {}
        flipped = 0
        rankings: dict[str, Ranking] = defaultdict(Ranking)
        for number in numbers:  # one by one, so that memory does not grow with their outputs
            step = rollout_record.read_step(run, number)
            groups = step.tensors["groups"]
            scores = score_samples(terms, _samples(number, step, prompts))
            scores_of[number] = scores
            names = [*step.reward_names, "reward"]
            recorded = [*step.tensors["rewards"].T, step.tensors["totals"]]
            for name, old in zip(names, recorded, strict=True):
                rankings[name].add(number, old, scores.matrix[:, 0], groups)
            signs = torch.tensor([row["advantage"] for row in step.rows])
            advantage = advantages.group(scores.matrix, torch.ones(1), groups)
            flipped += int((advantage * signs < 0).sum())
    finally:
        build_rewards.close(terms)
    return Rescored(
        name=terms[0].name,
        run=run,
        prompts=prompts,
        scores=scores_of,
        flipped=flipped,
        rankings=rankings,
    )


HEADINGS = ("reward", "tau", "other best", "groups", "first third", "last third")


def ranking_table(result: Rescored) -> Iterator[tuple[str, ...]]:
    """Rows for `HEADINGS`: the new reward, then the recorded ones, the weighted sum last."""
    means = {step: float(scores.matrix.nanmean()) for step, scores in result.scores.items()}
    yield f"{result.name} (new)", "", "", "", *result.thirds(means)
    for name in sorted(result.rankings, key=lambda name: name == "reward"):
        ranking = result.rankings[name]
        count = len(ranking.taus)
        tau = f"{sum(ranking.taus) / count:+.3f}" if count else "-"
        other_best = f"{ranking.changed / count:.1%}" if count else "-"
        yield name, tau, other_best, f"{count} of {ranking.groups}", *result.thirds(ranking.means)


def lines(result: Rescored) -> Iterator[str]:
    """The lines below the table."""
    rows = len(result.column)
    unscored = int(result.column.isnan().sum())
    again = f"{plural(rows, 'sample')} of {plural(len(result.scores), 'step')} scored again"
    yield f"{again}, {unscored} of them could not be scored"
    yield f"{result.flipped} of {rows} advantages ({result.flipped / rows:.1%}) would have had the other sign"
    yield "tau: mean of Kendall's tau-b with the new reward, over the groups in which both tell samples apart"


def kendall_tau(x: Tensor, y: Tensor) -> float:
    """Kendall's tau-b of two rankings [n]: 1 where they agree on every pair, -1 where they disagree on every one.

    Pairs that are tied in one of them count for neither side and shrink the scale (Kendall, 1945). NaN where one of
    the two ties all.

    >>> kendall_tau(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 40.0]))
    1.0
    >>> kendall_tau(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))  # 2 pairs agree, 1 does not
    0.3333333333333333
    """
    a = _order_of_pairs(x)
    b = _order_of_pairs(y)
    untied = float(a.square().sum() * b.square().sum())
    if not untied:
        return math.nan
    return float((a * b).sum()) / math.sqrt(untied)


def _order_of_pairs(x: Tensor) -> Tensor:
    """1, 0 or -1 for each pair of numbers: [n] -> [n, n]."""
    x = x.double()
    return torch.sign(x[:, None] - x)


def _samples(number: int, step: Recorded, prompts: Sequence[Prompt]) -> list[Sample]:
    """The samples of a recorded step, with whole prompts: images, targets and all."""
    drawn = {row["prompt_index"] for row in step.rows}
    whole = {index: prompts[index] for index in drawn if index < len(prompts)}
    samples = []
    for row, output in zip(step.rows, step.outputs, strict=True):
        prompt = whole.get(row["prompt_index"])
        if prompt is None or prompt.text != row["prompt"]:  # a resume with --force may have changed them
            raise DataError(f"Step {number} was drawn for prompts that the run's data no longer hold.")
        if isinstance(output, Described):
            raise UsageError(
                f"The outputs of step {number} cannot be scored again: row {row['row']} is recorded only as "
                f"{output.text[:80]!r}. A record keeps plain data, pictures and numbers, and describes other objects."
            )
        info = {**row["info"], "training_step": number}
        sample = Sample(prompt=prompt, output=output, group=row["group"], info=info)
        samples.append(sample)
    return samples
