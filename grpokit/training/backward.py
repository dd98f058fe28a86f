"""The gradient of one optimizer step, summed over micro-batches of rows and slices of decisions.

Weights are fixed before any cutting (see `grpokit.training.loss_weights`), so the parts add up to the gradient
of the whole batch. The reference is scored inside its context, which is left before any backward pass.

A loss of whole sequences takes two passes. The first one, without the policy's graph, gives the derivative of the loss
by each decision. In the second one these derivatives are the constant weights of each slice's decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from grpokit.knobs import Correction
from grpokit.objectives import Loss, Objective
from grpokit.policy import joined
from grpokit.processes.team import Team
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.correction import correction_weights
from grpokit.training.metrics import Stopwatch, Tally
from grpokit.training.micro_batches import Batch, Limit
from grpokit.training.spare import Spare
from grpokit.types import Ask, Decisions, Rollout


class Backward:
    """Accumulates gradients of an objective.

    Args:
        policy: scores the decisions again.
        objective: the loss per decision.
        correction: importance weights where the sampler was another one, or None.
        backward: called in place of `Tensor.backward`, such as accelerate's.
    """

    def __init__(
        self,
        policy: CheckedPolicy,
        objective: Objective,
        correction: Correction | None,
        backward: Callable[[Tensor], None],
    ) -> None:
        self.policy, self.objective, self.correction, self.backward = policy, objective, correction, backward

    def needs_old(self, rollout: Rollout, team: Team) -> bool:
        """Whether the first pass needs the old log-probs: weights of sequences that are scored slice by slice do."""
        by_sequence = self.correction is not None and self.correction.per == "sequence"
        return by_sequence and any(team.gather(len(self.policy.slices(rollout)) > 1))

    def __call__(
        self, batch: Batch, *, limit: Limit, tally: Tally, watch: Stopwatch, spare: Spare | None = None
    ) -> Tensor:
        """Add the gradient of a batch to the parameters'; returns the loss, a scalar on the device.

        Nothing in here waits for the device.

        Args:
            batch: the rows of one optimizer step.
            limit: the most that a micro-batch holds.
            tally: collects statistics of the decisions.
            watch: measures the phases "logprobs" and "backward".
            spare: makes as many passes as the process with the most, where passes gather sharded weights.
        """
        total = torch.zeros((), dtype=torch.float64, device=batch.weights.device)
        tally.decided += int(batch.rollout.host_mask.numpy().sum())
        cuts = [cut for cut in self.policy.cuts(batch.rollout, limit) if cut.slices]
        more = spare.lacking(len(cuts)) if spare else 0
        for cut in cuts:
            micro_batch = batch.select(cut.rows)
            tally.scored += cut.positions
            slices: Sequence[slice] = cut.slices
            if spare and len(slices) < spare.slices:
                slices = self.policy.slices(micro_batch.rollout)
            total += self._micro_batch(micro_batch, slices, tally, watch)
        for _ in range(more):
            assert spare is not None
            self._micro_batch(spare.row, self.policy.slices(spare.row.rollout), Tally(), watch)
        return total

    def _micro_batch(self, batch: Batch, slices: Sequence[slice], tally: Tally, watch: Stopwatch) -> Tensor:
        """Add the gradient of one micro-batch; returns its loss."""
        if self.objective.whole_sequence and len(slices) > 1:
            return self._whole_sequences(batch, slices, tally, watch)
        total = torch.zeros((), dtype=torch.float64, device=batch.weights.device)
        for decisions in slices:
            with watch("logprobs"):
                reference = self._reference(batch, [decisions], decisions)
                ask = replace(self._ask(), slope=self._slope(batch, decisions, reference))
                new = self.policy.logprobs(batch.rollout, decisions, ask, grad=True)
                value, loss = self._loss(batch, new, decisions, reference)
                self._count(tally, batch, new, decisions, loss)
            with watch("backward"):
                self.backward(value)
            total += value.detach()
        return total

    def _whole_sequences(self, batch: Batch, slices: Sequence[slice], tally: Tally, watch: Stopwatch) -> Tensor:
        """The loss of whole sequences, with a policy that scores slice by slice."""
        columns = torch.cat([torch.arange(s.start, s.stop) for s in slices])
        columns = columns.to(batch.weights.device, non_blocking=True)
        with watch("logprobs"):
            parts = [self.policy.logprobs(batch.rollout, s, self._ask(), grad=False) for s in slices]
            detached = _requiring_grad(joined(parts, dim=1))
            reference = self._reference(batch, slices, columns)
            value, loss = self._loss(batch, detached, columns, reference)
            self._count(tally, batch, detached, columns, loss)
        gradients = _gradients(value, detached)
        ask = Ask(entropy="grad" if "entropy" in gradients else "no", moments="mean" in gradients)
        start = 0
        for decisions in slices:
            stop = start + decisions.stop - decisions.start
            with watch("logprobs"):
                new = self.policy.logprobs(batch.rollout, decisions, ask, grad=True)
                terms = [(gradient[:, start:stop] * getattr(new, name)).sum() for name, gradient in gradients.items()]
                weighted = torch.stack(terms).sum()
            with watch("backward"):
                self.backward(weighted)
            start = stop
        return value.detach()

    def _reference(self, batch: Batch, slices: Sequence[slice], columns: slice | Tensor) -> Decisions | None:
        """The reference's view of some slices, which together are `columns`."""
        if self.objective.needs_reference_moments and batch.reference is None:
            ask = Ask(entropy="no", moments=True)
            with self.policy.reference():
                return joined([self.policy.logprobs(batch.rollout, s, ask, grad=False) for s in slices], dim=1)
        return batch.reference and batch.reference.select(decisions=columns)

    def _ask(self) -> Ask:
        """What the loss reads of the new decisions."""
        entropy: Literal["grad", "value"] = "grad" if self.objective.entropy_coef != 0 else "value"
        return Ask(entropy=entropy, moments=self.objective.needs_moments)

    def _slope(
        self, batch: Batch, columns: slice, reference: Decisions | None
    ) -> Callable[[Tensor, slice], Tensor] | None:
        """The derivative of the loss by log-probs, for `Ask.slope`: None if the loss reads moments, or on a GPU.

        There nobody has measured yet that it pays.
        """
        if batch.weights.device.type != "cpu" or self.objective.needs_moments:
            return None

        def slope(logprobs: Tensor, rows: slice) -> Tensor:
            detached = logprobs.detach()
            leaf = detached.to(torch.promote_types(detached.dtype, torch.float32)).requires_grad_()
            entropy = torch.zeros_like(detached) if self.objective.entropy_coef != 0 else None  # has its own gradient
            with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                value, _ = self._loss(batch, Decisions(logprobs=leaf, entropy=entropy), columns, reference, rows=rows)
            return torch.autograd.grad(value, leaf)[0].to(logprobs)

        return slope

    def _loss(
        self,
        batch: Batch,
        new: Decisions,
        columns: slice | Tensor,
        reference: Decisions | None,
        *,
        rows: slice = slice(None),
    ) -> tuple[Tensor, Loss]:
        """The objective on some decisions of some rows of a batch: its weighted sum, a scalar, and each decision's."""
        old = batch.old.select(rows, columns) if batch.old else new.detach()
        advantages = batch.advantages[rows] if batch.advantages.ndim == 1 else batch.advantages[rows, columns]
        loss = self.objective(
            new,
            old,
            advantages,
            batch.rollout.mask[rows, columns],
            reference and reference.select(rows),
            correction=self._correction(batch, old, columns, rows),
        )
        return (loss.value * batch.weights[rows, columns].to(loss.value)).sum(), loss

    def _correction(self, batch: Batch, old: Decisions, columns: slice | Tensor, rows: slice) -> Tensor | None:
        """The factors of some decisions' surrogate: [b', t]."""
        if self.correction is None:
            return None
        sampled, mask = batch.rollout.old.logprobs[rows], batch.rollout.mask[rows]
        if batch.old is None:  # `old` has all decisions of its rows, or a weight is one decision's own
            return correction_weights(self.correction, old.logprobs, sampled[:, columns], mask[:, columns])
        return correction_weights(self.correction, batch.old.logprobs[rows], sampled, mask)[:, columns]

    def _count(self, tally: Tally, batch: Batch, new: Decisions, columns: slice | Tensor, loss: Loss) -> None:
        """Add the statistics of some decisions."""
        mask = batch.rollout.mask[:, columns]
        for name, values in loss.stats.items():
            tally.add(name, values, mask)
        if batch.fresh:
            difference = new.logprobs.detach() - batch.rollout.old.logprobs[:, columns]
            ratio = torch.where(mask, difference, 0.0).clamp(-20.0, 20.0).exp()
            tally.add("logprob_diff", difference.abs(), mask)
            tally.add("logprob_diff_signed", difference, mask)
            tally.add("sampler_ratio", ratio, mask)
            tally.add("sampler_ratio_square", ratio.square(), mask)


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
