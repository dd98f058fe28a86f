"""The gradient of one optimizer step, summed over micro-batches of rows and slices of decisions.

Weights are fixed before any cutting (see `grpokit.training.loss_weights`), so the parts add up to the gradient
of the whole batch. The reference is scored inside its context, which is left before any backward pass.

A loss of whole sequences takes two passes. The first one, without the policy's graph, gives the derivative of the loss
by each decision. In the second one these derivatives are the constant weights of each slice's decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grpokit.objectives import Objective
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.metrics import Stopwatch, Tally
from grpokit.training.micro_batches import Batch, micro_batches
from grpokit.types import Decisions


class Backward:
    """Accumulates gradients of an objective.

    Args:
        policy: scores the decisions again.
        objective: the loss per decision.
        backward: called in place of `Tensor.backward`, such as accelerate's.
    """

    def __init__(self, policy: CheckedPolicy, objective: Objective, backward: Callable[[Tensor], None]) -> None:
        self.policy, self.objective, self.backward = policy, objective, backward

    def __call__(self, batch: Batch, *, size: int, tally: Tally, watch: Stopwatch, on_policy: bool) -> float:
        """Add the gradient of a batch to the parameters'; returns the loss.

        Args:
            batch: the rows of one optimizer step.
            size: the most rows of a micro-batch.
            tally: collects statistics of the decisions.
            watch: measures the phases "logprobs" and "backward".
            on_policy: whether no weight has changed since the rollout, so the log-probs must be the rollout's.
        """
        loss = torch.zeros((), dtype=torch.float64, device=batch.weights.device)
        for rows in micro_batches(batch.rollout.groups, size):
            micro_batch = batch.select(rows)
            mask = micro_batch.rollout.mask
            # A slice without decisions, such as a sampler's noiseless last step, has no density and is not scored.
            slices = [s for s in self.policy.slices(micro_batch.rollout) if bool(mask[:, s].any())]
            if self.objective.whole_sequence and len(slices) > 1:
                loss += self._whole_sequences(micro_batch, slices, tally, watch, on_policy=on_policy)
                continue
            for decisions in slices:
                with watch("logprobs"):
                    reference = self._reference(micro_batch, [decisions], decisions)
                    new = self.policy.logprobs(micro_batch.rollout, decisions, grad=True)
                    value = self._loss(micro_batch, new, decisions, reference, tally, on_policy=on_policy)
                with watch("backward"):
                    self.backward(value)
                loss += value.detach()
        return float(loss)

    def _whole_sequences(
        self, batch: Batch, slices: Sequence[slice], tally: Tally, watch: Stopwatch, *, on_policy: bool
    ) -> Tensor:
        """The loss of whole sequences, with a policy that scores slice by slice."""
        columns = torch.cat([torch.arange(s.start, s.stop) for s in slices]).to(batch.weights.device)
        with watch("logprobs"):
            parts = [self.policy.logprobs(batch.rollout, s, grad=False) for s in slices]
            detached = _requiring_grad(concatenate(parts))
            reference = self._reference(batch, slices, columns)
            value = self._loss(batch, detached, columns, reference, tally, on_policy=on_policy)
        gradients = _gradients(value, detached)
        start = 0
        for decisions in slices:
            stop = start + decisions.stop - decisions.start
            with watch("logprobs"):
                new = self.policy.logprobs(batch.rollout, decisions, grad=True)
                terms = [(gradient[:, start:stop] * getattr(new, name)).sum() for name, gradient in gradients.items()]
                weighted = torch.stack(terms).sum()
            with watch("backward"):
                self.backward(weighted)
            start = stop
        return value.detach()

    def _reference(self, batch: Batch, slices: Sequence[slice], columns: slice | Tensor) -> Decisions | None:
        """The reference's view of some slices, which together are `columns`."""
        if self.objective.needs_moments:
            with self.policy.reference():
                return concatenate([self.policy.logprobs(batch.rollout, s, grad=False) for s in slices])
        return batch.reference and batch.reference.select(decisions=columns)

    def _loss(
        self,
        batch: Batch,
        new: Decisions,
        columns: slice | Tensor,
        reference: Decisions | None,
        tally: Tally,
        *,
        on_policy: bool,
    ) -> Tensor:
        """The weighted sum of the objective over some decisions of a batch: a scalar."""
        mask = batch.rollout.mask[:, columns]
        old = batch.old.select(decisions=columns) if batch.old else new.detach()
        advantages = batch.advantages if batch.advantages.ndim == 1 else batch.advantages[:, columns]
        loss = self.objective(new, old, advantages, mask, reference)
        for name, values in loss.stats.items():
            tally.add(name, values, mask)
        if on_policy:
            tally.add("logprob_diff", (new.logprobs.detach() - batch.rollout.old.logprobs[:, columns]).abs(), mask)
        return (loss.value * batch.weights[:, columns].to(loss.value)).sum()


def concatenate(parts: Sequence[Decisions]) -> Decisions:
    """Consecutive slices of decisions -> all of them."""
    columns = {name: [getattr(part, name) for part in parts] for name, x in vars(parts[0]).items() if x is not None}
    return Decisions(**{name: torch.cat(tensors, dim=1) for name, tensors in columns.items()})


def _requiring_grad(decisions: Decisions) -> Decisions:
    """The same numbers, detached, as inputs of a new graph."""
    detached = decisions.detach()
    for x in vars(detached).values():
        if x is not None:
            x.requires_grad_()
    return detached


def _gradients(value: Tensor, detached: Decisions) -> dict[str, Tensor]:
    """Name -> the derivative of `value` by that field of `detached`, for the fields that it depends on."""
    inputs = {name: x for name, x in vars(detached).items() if x is not None}
    gradients = torch.autograd.grad(value, list(inputs.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(inputs, gradients, strict=True) if gradient is not None}
