"""The gradient of one optimizer step, summed over row micro-batches and step slices.

Weights are fixed before any cutting (see `objectives.reduction_weights`), so the pieces add up to the gradient of the
whole batch. Frozen references are asked for inside their context, and the context is left before any backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpokit.objectives import Objective
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.metrics import Stopwatch, Tally
from grpokit.training.micro_batches import Piece, concatenate, micro_batches
from grpokit.types import Decisions


class Backward:
    """Accumulates gradients of an objective.

    Args:
        policy: whose decisions are scored again.
        objective: the loss per decision.
        backward: what to call instead of `Tensor.backward`, such as accelerate's.
    """

    def __init__(self, policy: CheckedPolicy, objective: Objective, backward: Callable[[Tensor], None]) -> None:
        self.policy = policy
        self.objective = objective
        self.backward = backward

    def __call__(self, batch: Piece, *, size: int, tally: Tally, watch: Stopwatch, fresh: bool) -> float:
        """Add the gradient of a batch to the parameters'; returns the loss.

        Args:
            batch: the rows of one optimizer step.
            size: the most rows of a piece.
            tally: statistics of the decisions.
            watch: times of the phases "logprobs" and "backward".
            fresh: whether no weight has changed since the rollout, so that its log-probs must come out again.
        """
        loss = torch.zeros((), dtype=torch.float64, device=batch.weights.device)
        for rows in micro_batches(batch.rollout.groups, size):
            piece = batch.select(rows)
            slices = self.policy.slices(piece.rollout)
            if self.objective.whole_sequence and len(slices) > 1:
                loss += self._whole(piece, slices, tally, watch, fresh=fresh)
                continue
            for steps in slices:
                if not bool(piece.rollout.mask[:, steps].any()):
                    continue  # such as the last step of a sampler, which has no noise and no density
                with watch("logprobs"):
                    reference = self._reference(piece, [steps], steps)
                    new = self.policy.logprobs(piece.rollout, steps, grad=True)
                    value = self._loss(piece, new, steps, reference, tally, fresh=fresh)
                with watch("backward"):
                    self.backward(value)
                loss += value.detach()
        return float(loss)

    def _whole(self, piece: Piece, slices: Sequence[slice], tally: Tally, watch: Stopwatch, *, fresh: bool) -> Tensor:
        """A loss that ties a row's decisions together, on a policy that scores slice by slice.

        A pass without gradient gathers all decisions; the loss's derivative by each is then the constant with which
        the second pass weighs that decision's own gradient.
        """
        kept = [steps for steps in slices if bool(piece.rollout.mask[:, steps].any())]
        if not kept:
            return torch.zeros((), dtype=torch.float64, device=piece.weights.device)
        columns = torch.cat([torch.arange(steps.start, steps.stop) for steps in kept]).to(piece.weights.device)
        with watch("logprobs"):
            whole = leaves(concatenate([self.policy.logprobs(piece.rollout, steps, grad=False) for steps in kept]))
            reference = self._reference(piece, kept, columns)
            value = self._loss(piece, whole, columns, reference, tally, fresh=fresh)
        slopes = gradients(value, whole)
        start = 0
        for steps in kept:
            part = slice(start, start + steps.stop - steps.start)
            start = part.stop
            with watch("logprobs"):
                new = self.policy.logprobs(piece.rollout, steps, grad=True)
                weighted = torch.stack(
                    [(slope[:, part] * getattr(new, name)).sum() for name, slope in slopes.items()]
                ).sum()
            with watch("backward"):
                self.backward(weighted)
        return value.detach()

    def _reference(self, piece: Piece, slices: Sequence[slice], columns: slice | Tensor) -> Decisions | None:
        """The reference's view of some slices, which together are `columns`."""
        if self.objective.needs_moments:
            with self.policy.reference():
                return concatenate([self.policy.logprobs(piece.rollout, steps, grad=False) for steps in slices])
        return piece.reference and piece.reference.cut(steps=columns)

    def _loss(
        self,
        piece: Piece,
        new: Decisions,
        steps: slice | Tensor,
        reference: Decisions | None,
        tally: Tally,
        *,
        fresh: bool,
    ) -> Tensor:
        """The weighted sum of the objective over some decisions of a piece: a scalar."""
        mask = piece.rollout.mask[:, steps]
        old = piece.old.cut(steps=steps) if piece.old else new.detach()
        advantages = piece.advantages if piece.advantages.ndim == 1 else piece.advantages[:, steps]
        result = self.objective(new, old, advantages, mask, reference)
        for name, values in result.stats.items():
            tally.add(name, values, mask)
        if fresh:
            tally.add("gap", (new.logprobs.detach() - piece.rollout.old.logprobs[:, steps]).abs(), mask)
        return (result.value * piece.weights[:, steps].to(result.value)).sum()


_DIFFERENTIABLE = ("logprobs", "entropy", "mean", "std")


def leaves(steps: Decisions) -> Decisions:
    """The same numbers as leaves of a new graph."""
    fresh = steps.detach()
    for name in _DIFFERENTIABLE:
        x = getattr(fresh, name)
        if x is not None:
            x.requires_grad_()
    return fresh


def gradients(value: Tensor, of: Decisions) -> dict[str, Tensor]:
    """The derivative of `value` by every leaf that it depends on, by name."""
    names = [name for name in _DIFFERENTIABLE if getattr(of, name) is not None]
    slopes = torch.autograd.grad(value, [getattr(of, name) for name in names], allow_unused=True)
    return {name: slope for name, slope in zip(names, slopes, strict=True) if slope is not None}
