"""Scores a policy on held-out prompts, with the same prompts and the same random draws every time.

So the results before and after training differ only by the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.data import as_prompts
from grpokit.errors import UsageError
from grpokit.evaluation.intervals import half_width, mean_of_totals
from grpokit.policy import Policy
from grpokit.processes.fsdp2 import gathered
from grpokit.processes.team import Team
from grpokit.rewards.scoring import Scores, Scoring, joined
from grpokit.rewards.terms import Rewards, as_terms
from grpokit.sampling import derive_seeds
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.contract import check_policy
from grpokit.training.memory import Halving
from grpokit.types import Prompt, Sample


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Samples on held-out prompts with their scores.

    Attributes:
        samples: B samples, each prompt's next to each other.
        scores: their scores [B, R].
    """

    samples: Sequence[Sample]
    scores: Scores

    def part(self, rows: Sequence[int]) -> Evaluation:
        """The evaluation of some samples alone."""
        samples = [self.samples[i] for i in rows]
        return Evaluation(samples=samples, scores=self.scores.select(torch.tensor(rows)))

    def columns(self) -> dict[str, Tensor]:
        """Name -> [B] for every reward; "reward" has the rows' totals."""
        columns = dict(zip(self.scores.names, self.scores.matrix.T, strict=True))
        columns["reward"] = self.scores.totals
        return columns

    def means(self) -> dict[str, float]:
        """Name -> mean over the scored samples."""
        columns = self.columns()
        return {name: float(column.nanmean()) for name, column in columns.items()}

    def summary(self) -> dict[str, float]:
        """A row of `eval.jsonl`: each mean, and under `<name>/ci95` half the width of its 95 % interval."""
        prompts = self.scores.groups.tolist()
        columns = self.scores.matrix.T.tolist()
        widths = {}
        for name, column in zip(self.scores.names, columns, strict=True):
            widths[name] = half_width(column, prompts)
        widths["reward"] = mean_of_totals(columns, self.scores.weights.tolist(), prompts).half_width
        row = {}
        for name, mean in self.means().items():
            row[name] = mean
            row[f"{name}/ci95"] = widths[name]
        return row


def draw(
    policy: Policy,
    prompts: Iterable[str | Prompt],
    *,
    seed: int = 42,
    samples_per_prompt: int = 1,
    batch_size: int = 64,
    evaluate: bool = True,
    stream: str = "evaluate",
    mixed_precision: str = "no",
    team: Team | None = None,
) -> list[Sample]:
    """Draw samples without training, in batches; the batch size does not change the samples.

    Args:
        policy: the policy, on any device, such as `grpokit.load` returns.
        prompts: P texts or prompts, in any iterable; not a single text.
        seed: all randomness follows from it.
        samples_per_prompt: G.
        batch_size: the most samples at a time; halved if memory runs out.
        evaluate: use the policy's settings for evaluation, not those of training.
        stream: "evaluate" draws what `evaluate` scores with the same seed, "sample" what `grpokit sample` draws.
        mixed_precision: "no", "bf16" or "fp16", as in training.
        team: the processes that share out the prompts; each draws its own.

    Returns:
        P * G samples, each prompt's next to each other; `output` has the picture or text.

    Raises:
        UsageError: `policy` is not a policy, a number is below 1, mixed_precision has another value, or the policy
            cannot read a prompt.
    """
    check_policy(policy)
    prompts = as_prompts(prompts)
    if samples_per_prompt < 1 or batch_size < 1:
        raise UsageError(f"samples_per_prompt is {samples_per_prompt} and batch_size {batch_size}; expected 1 or more.")
    seeds = derive_seeds(seed, stream=stream, step=0, prompts=len(prompts), group_size=samples_per_prompt)
    share = (team or Team()).share(len(prompts))
    prompts = prompts[share.start : share.stop]
    seeds = seeds.select(share)
    checked = CheckedPolicy(policy, mixed_precision=mixed_precision)
    fit = Halving(max(1, min(batch_size, len(seeds.row))))
    with gathered():  # by all processes, also by one without prompts
        if not prompts:
            return []
        rollouts = checked.rollouts(prompts, samples_per_prompt, seeds, fit=fit, evaluate=evaluate)
        return [sample for rollout in rollouts for sample in rollout.samples]


def evaluate(
    policy: Policy,
    rewards: Rewards,
    prompts: Iterable[str | Prompt],
    *,
    seed: int = 42,
    samples_per_prompt: int = 1,
    batch_size: int = 64,
    mixed_precision: str = "no",
    team: Team | None = None,
) -> Evaluation:
    """Draw samples on held-out prompts and score them.

    Args:
        policy: the policy, used with its own settings for evaluation.
        rewards: as for `Trainer`.
        prompts: held-out texts or prompts.
        seed: all randomness follows from it, so the draws before and after training are the same.
        samples_per_prompt: samples for each prompt.
        batch_size: the most samples at a time; halved if memory runs out.
        mixed_precision: "no", "bf16" or "fp16", as in training.
        team: the processes that share out the prompts. Process 0 gets all samples, the others their own, and all get
            the scores.
    """
    terms = as_terms(rewards)
    team = team or Team()
    prompts = as_prompts(prompts)
    with team.failing_together():
        samples = draw(
            policy,
            prompts,
            seed=seed,
            samples_per_prompt=samples_per_prompt,
            batch_size=batch_size,
            mixed_precision=mixed_precision,
            team=team,
        )
        scores = joined(terms, team.gather(Scoring(terms, samples).result()))
        everyone = [sample for part in team.gather_in_first(samples) for sample in part]
    return Evaluation(samples=everyone or samples, scores=scores)
