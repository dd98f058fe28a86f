"""Takes steps of a run from one and the same weights: what each group of samples teaches, and where a step leads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from grpokit import Batch, LearningStep, Observer, Sample, StepReport, UsageError
from grpokit.advantages import compute
from grpokit.rewards.scoring import Scores
from grpokit_diagnosis.probe.arrival import Arrival, arrival
from grpokit_diagnosis.probe.rebuilt import Rebuilt

_MOST = 2**20  # numbers of a gradient that are looked at, evenly spread over all


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A step, and what was measured around it. Gradients are of the loss, [P, d], a row for each group.

    Attributes:
        report: the step's own.
        samples: B samples.
        scores: of all rewards [B, R].
        length: of the step, over all trainable weights together.
        clipped: by how much the gradients of its updates are shortened, on average: 1 not at all.
        arrival: of its last update in the weights.
        gradients: of the whole loss.
        regulariser: of the loss without advantages, which is that of the KL and of an entropy bonus; None without any.
        by_reward: trained reward -> the gradient of that reward alone; empty where only one is trained.
        logprob_change: mean absolute change of the decisions' log-probs, in nats per action dimension.
    """

    report: StepReport
    samples: Sequence[Sample]
    scores: Scores
    length: float
    clipped: float
    arrival: Arrival
    gradients: Tensor
    regulariser: Tensor | None
    by_reward: dict[str, Tensor]
    logprob_change: float

    @property
    def of_rewards(self) -> Tensor:
        """The gradient of the rewards alone."""
        return self.gradients if self.regulariser is None else self.gradients - self.regulariser


@dataclass
class _Watch(Observer):
    """Keeps what a step has learned from."""

    batches: list[Batch] = field(default_factory=list)
    step: LearningStep | None = None

    def differentiated(self, step: LearningStep) -> Sequence[str]:
        """Keep the rows of an update."""
        self.step = step
        self.batches.append(step.minibatch)
        return ()


def take(run: Rebuilt, count: int) -> tuple[list[Taken], list[Tensor]]:
    """Take the run's next steps, each from the same weights; the optimizer's averages go on.

    Args:
        run: whose weights are the same again after each step.
        count: of the steps.

    Returns:
        The steps; and their common direction: the mean change of each parameter, as long as a step is on average.
    """
    start = run.weights()
    total = [torch.zeros_like(weight) for weight in start]
    taken = []
    for _ in range(count):
        step = _take_one(run, start, total)
        taken.append(step)
    length = sum(step.length for step in taken) / count
    scale = length / max(_norm(total), 1e-30)
    return taken, [scale * change for change in total]


def _take_one(run: Rebuilt, start: Sequence[Tensor], total: Sequence[Tensor]) -> Taken:
    """Take a step, add its change of each parameter to `total`, and go back to the start."""
    trainer, watch = run.trainer, _Watch()
    trainer.observers = {"diagnosis": watch}
    report = trainer.step(log=False)
    step = watch.step
    assert step is not None
    first_pass = watch.batches[: trainer.minibatches]
    batches = [batch for batch in first_pass if len(batch.rollout.groups)]
    if not batches:
        raise UsageError("The modifiers of this run leave out all samples of a step, so there is nothing to measure.")
    change = [new - old for new, old in zip(run.weights(), start, strict=True)]
    for whole, part in zip(total, change, strict=True):
        whole += part
    decisions = batches[0].rollout
    moved = trainer.logprobs_of(decisions)
    clipped = _clipped(trainer.max_grad_norm, step.norms)
    arrives = arrival(run, start, change, clipped=clipped)
    run.set_weights(start)
    shift = (moved - trainer.logprobs_of(decisions)).abs()
    return Taken(
        report=report,
        samples=step.rollout.samples,
        scores=step.scores.trained,
        length=_norm(change),
        clipped=clipped,
        arrival=arrives,
        gradients=_of_groups(run, batches),
        regulariser=_regulariser(run, batches, step),
        by_reward=_by_reward(run, batches, step),
        logprob_change=float(shift[batches[0].mask].mean()),
    )


def _norm(change: Sequence[Tensor]) -> float:
    """The length of a change of all parameters."""
    return math.sqrt(sum(float(part.double().square().sum()) for part in change))


def _clipped(limit: float | None, norms: Sequence[float]) -> float:
    """By how much gradients of these lengths are shortened, on average."""
    if limit is None:
        return 1.0
    return sum(max(1.0, norm / limit) for norm in norms) / len(norms)


def _of_groups(run: Rebuilt, batches: Sequence[Batch], advantages: Tensor | None = None) -> Tensor:
    """The gradient of each group: [P, d]; of one minibatch their mean is the gradient.

    Args:
        run: whose weights the rows were drawn with.
        batches: the minibatches of a step.
        advantages: of all its rows, [B] or [B, T], in place of their own.
    """
    rows = []
    for batch in batches:
        if advantages is not None:
            own = advantages[batch.numbers].to(batch.advantages)
            batch = replace(batch, advantages=own[:, : batch.mask.shape[1]] if own.ndim == 2 else own)
        groups = batch.rollout.groups
        ids = groups.unique()
        for group in ids:
            part = batch.select((groups == group).nonzero()[:, 0])
            rows.append(_flat(run.trainer.gradient_of(part)) * len(ids))
    return torch.stack(rows)


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    """The numbers of a gradient, or every k-th of very many: [d]."""
    stride = 1 + sum(map(torch.numel, gradients)) // _MOST
    return torch.cat([g.detach().reshape(-1)[::stride].float().cpu() for g in gradients])


def _regulariser(run: Rebuilt, batches: Sequence[Batch], step: LearningStep) -> Tensor | None:
    """The gradient of what acts beside the reward."""
    objective = run.trainer.objective
    if not (run.trainer.needs_reference or objective.entropy_coef):
        return None
    return _of_groups(run, batches, torch.zeros_like(step.advantages))


def _by_reward(run: Rebuilt, batches: Sequence[Batch], step: LearningStep) -> dict[str, Tensor]:
    """The gradient of each trained reward, if there are several."""
    trained = step.scores.trained
    gradients = {}
    if len(trained.names) > 1:
        for place, name in enumerate(trained.names):
            column, weight = trained.matrix[:, [place]], trained.weights[[place]]
            own = compute(run.trainer.advantage, column, weight, trained.groups, trained.decision_rewards)
            gradients[name] = _of_groups(run, batches, own)
    return gradients
