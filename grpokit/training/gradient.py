"""The gradient of an optimizer step, added up over micro-batches of rows and slices of decisions.

Weights are fixed before any cutting (see `grpokit.training.minibatches`), so the parts add up to the gradient of the
whole batch. The reference is scored inside its context, which is left before any backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from grpokit.divergence import correction_weights
from grpokit.objectives import Objective, check_density
from grpokit.policy import join_decisions
from grpokit.processes.forks import forks_ended
from grpokit.processes.team import Team
from grpokit.settings import Correction
from grpokit.training.checked_policy import CheckedPolicy, assemble_decisions
from grpokit.training.metrics import StepLog, Tally
from grpokit.training.micro_batches import Cut, Limit
from grpokit.training.minibatches import Batch
from grpokit.training.out_of_memory import Sizes, explain_memory
from grpokit.training.updates import Updates
from grpokit.types import Ask, Decisions


@dataclass(frozen=True, kw_only=True)
class Term:
    """The loss of some slices of a micro-batch, whose decisions a tally counts."""

    policy: CheckedPolicy
    objective: Objective
    correction: Correction | None
    batch: Batch
    slices: Sequence[slice]
    tally: Tally

    @cached_property
    def decisions(self) -> Any:
        """The slice, or the columns of several."""
        if len(self.slices) == 1:
            return self.slices[0]
        ranges = [torch.arange(s.start, s.stop) for s in self.slices]
        columns = torch.cat(ranges)
        return columns.to(self.batch.weights.device, non_blocking=True)

    @property
    def ask(self) -> Ask:
        """What it reads of the new decisions."""
        entropy = self.objective.entropy_coef != 0
        reference = self.batch.reference
        against = None
        if self.objective.compares_distributions and reference is not None:
            against = reference.select(decisions=self.decisions).distribution
        return Ask(
            entropy="grad" if entropy else "value",
            moments=self.objective.needs_moments,
            against=against,
        )

    def __call__(self, new: Decisions) -> tuple[Tensor, Tensor]:
        """A scalar to be differentiated, and its part in the batch's loss; the decisions [b, t] are counted."""
        batch, decisions = self.batch, self.decisions
        mask = batch.mask[:, decisions]
        old = batch.old.select(decisions=decisions) if batch.old else new.detach()
        advantages = batch.advantages if batch.advantages.ndim == 1 else batch.advantages[:, decisions]
        reference, factors = self._reference(), self._factors(old)
        groups = batch.rollout.group_index.to(mask.device, non_blocking=True)
        with forks_ended():
            loss = self.objective(
                new,
                old,
                advantages,
                mask,
                reference,
                correction=factors,
                kl_weights=batch.kl_weights,
                groups=groups,
            )
        for name, values in loss.stats.items():
            self.tally.add(name, values, mask)
        if batch.before_updates and not batch.rollout.averaged:
            sampled = batch.rollout.old.logprobs[:, decisions]
            self.tally.add_differences(new.logprobs.detach() - sampled, mask)
        weights = batch.weights[:, decisions].to(loss.value)
        value = (loss.value * weights).sum()
        return value, value.detach()

    def _reference(self) -> Decisions | None:
        """The reference's view of the decisions."""
        batch = self.batch
        if not self.objective.needs_reference_moments or batch.reference is not None:
            return batch.reference and batch.reference.select(decisions=self.decisions)
        ask = Ask(entropy="no", moments=True)
        with self.policy.reference():
            parts = [self.policy.logprobs(batch.rollout, s, ask, grad=False) for s in self.slices]
        return join_decisions(parts, dim=1)

    def _factors(self, old: Decisions) -> Tensor | None:
        """The factors of the surrogate: [b, t], of the rollout and of the correction."""
        correction, weights = self._correction(old), self.batch.rollout.weights
        if weights is None:
            return correction
        own = weights[:, self.decisions]
        return own if correction is None else own * correction

    def _correction(self, old: Decisions) -> Tensor | None:
        """The importance weights: [b, t]."""
        if self.correction is None:
            return None
        batch, decisions = self.batch, self.decisions
        sampled, mask = batch.rollout.old.logprobs, batch.mask
        if batch.old is None:  # `old` has all decisions of its rows, or a weight is one decision's own
            return correction_weights(self.correction, old.logprobs, sampled[:, decisions], mask[:, decisions])
        return correction_weights(self.correction, batch.old.logprobs, sampled, mask)[:, decisions]


@dataclass(frozen=True, kw_only=True)
class LinearTerm:
    """A loss that is linear in the decisions of a slice, which were counted in the first pass."""

    decisions: slice
    gradients: Mapping[str, Tensor]  # name -> [b, t, ...], the derivative of the loss by that field of the decisions
    total: Tensor  # its part in the batch's loss

    def __call__(self, new: Decisions) -> tuple[Tensor, Tensor]:
        """As `Term`."""
        if "logprobs" in self.gradients:
            check_density(new)
        products = [(x * getattr(new, name)).sum() for name, x in self.gradients.items()]
        return torch.stack(products).sum(), self.total

    @property
    def ask(self) -> Ask:
        """What it reads of the new decisions."""
        return Ask(entropy="grad" if "entropy" in self.gradients else "no", moments="mean" in self.gradients)


def gradient(
    batch: Batch,
    objective: Objective,
    *,
    policy: CheckedPolicy,
    updates: Updates,
    correction: Correction | None,
    sizes: Sizes,
    team: Team,
    log: StepLog,
) -> tuple[Sequence[float], Tally]:
    """Add up the gradient of one optimizer step in this process, over micro-batches and slices.

    Returns:
        The loss of each process, and the statistics of all.
    """

    def attempt(limit: Limit) -> tuple[float, Tally]:
        tally = Tally(decided=int(batch.rollout.decided.sum()))
        term = Term(policy=policy, objective=objective, correction=correction, batch=batch, slices=(), tally=tally)
        loss = _add_up(term, _pieces(batch, limit, policy, team), updates, log)
        return float(loss), tally

    if batch.filler is not None:  # all processes make the same passes, so none can repeat its own with fewer rows
        with (
            team.failing_together(passes=True),
            explain_memory("training", remedies="a smaller trainer.micro_batch_size"),
        ):
            loss, tally = attempt(sizes.limit)
    else:
        loss, tally = sizes.score(attempt, partial(policy.cuts, batch.rollout), log.warn)
    own = loss, tally.on_cpu()
    losses, tallies = zip(*team.gather(own), strict=True)
    return losses, Tally.merged(tallies)


def _add_up(term: Term, pieces: Iterable[tuple[Batch, Cut]], updates: Updates, log: StepLog) -> Tensor:
    """Add up the gradient of some micro-batches; returns their loss. Nothing inside waits for the device."""
    updates.optimizer.zero_grad()  # a failed attempt or step may have left gradients
    total = torch.zeros((), dtype=torch.float64, device=updates.device)
    whole = None
    if term.objective.whole_groups:
        pieces = list(pieces)
        with log.time("logprobs"):
            whole = _loss_of_groups(term, pieces)
        total += whole.total
    for batch, cut in pieces:
        own = replace(term, batch=batch, slices=cut.slices)
        own.tally.scored += sum(cut.passes)
        with log.time("logprobs"):
            terms = _terms(own) if whole is None or batch is term.batch.filler else whole.terms(cut)
        for each in terms:
            with log.time("logprobs"):
                new = term.policy.logprobs(batch.rollout, each.decisions, each.ask, grad=True)
                value, part = each(new)
            with log.time("backward"):
                updates.backward(value)
            total += part
            del new, value  # before the next forward pass: with them goes what their graph still holds
    return total


def _pieces(batch: Batch, limit: Limit, policy: CheckedPolicy, team: Team) -> Iterator[tuple[Batch, Cut]]:
    """The micro-batches of a batch, each with its slices; with a filler, as many in all processes."""
    cuts = [cut for cut in policy.cuts(batch.rollout, limit) if cut.slices]
    if batch.filler is None:
        yield from ((batch.select(cut.rows), cut) for cut in cuts)
        return
    lacking = max(team.gather(len(cuts))) - len(cuts)
    slices = tuple(policy.slices(batch.filler.rollout))
    for cut in cuts:
        piece = batch.select(cut.rows)
        if len(cut.slices) != len(slices):
            cut = replace(cut, slices=tuple(policy.slices(piece.rollout)))
        yield piece, cut
    filling = Cut(rows=batch.filler.numbers, slices=slices, passes=())
    yield from [(batch.filler, filling)] * lacking


@dataclass(frozen=True, kw_only=True)
class LinearLoss:
    """The loss of whole rows, as a sum of constants times their decisions.

    Attributes:
        gradients: name -> [b, T, ...], the derivative of the loss by that field of the decisions.
        total: the loss.
    """

    gradients: Mapping[str, Tensor]
    total: Tensor

    @classmethod
    def of(cls, term: Term, new: Decisions) -> LinearLoss:
        """That of a term at decisions that were scored without gradient, which are counted here."""
        fields = vars(new.detach())
        inputs = {name: x.requires_grad_() for name, x in fields.items() if x is not None}
        value, total = term(Decisions(**inputs))
        derivatives = torch.autograd.grad(value, list(inputs.values()), allow_unused=True)
        gradients = {name: x for name, x in zip(inputs, derivatives, strict=True) if x is not None}
        return cls(gradients=gradients, total=total)

    def terms(self, cut: Cut) -> list[LinearTerm]:
        """The terms of a micro-batch of these rows."""
        nothing = torch.zeros_like(self.total)
        return [
            LinearTerm(decisions=decisions, gradients=self._part(cut.rows, decisions), total=nothing)
            for decisions in cut.slices
        ]

    def _part(self, rows: Tensor, decisions: slice) -> dict[str, Tensor]:
        index = rows.to(self.total.device, non_blocking=True)
        return {name: x[index, decisions] for name, x in self.gradients.items()}


def _loss_of_groups(term: Term, pieces: Sequence[tuple[Batch, Cut]]) -> LinearLoss:
    """The loss of all rows of an optimizer step, from a first pass over its micro-batches."""
    batch = term.batch
    views = []
    for piece, cut in pieces:
        for decisions in cut.slices:
            view = term.policy.logprobs(piece.rollout, decisions, term.ask, grad=False)
            if piece is not batch.filler:
                views.append((cut.rows, decisions, view))
    if not views:  # this process has no row of the step
        return LinearLoss(gradients={}, total=batch.weights.new_zeros(()))
    new = assemble_decisions(views, like=batch.rollout.old.logprobs)
    whole = replace(term, slices=[slice(0, batch.mask.shape[1])])
    return LinearLoss.of(whole, new)


def _terms(whole: Term) -> Sequence[Term | LinearTerm]:
    """The loss of a micro-batch as a sum over its slices.

    A loss of whole sequences takes two passes. The first one, without the policy's graph, gives the derivative of the
    loss by each decision. These are the constant weights of the second one's decisions.
    """
    slices, objective = whole.slices, whole.objective
    if not objective.whole_sequence or objective.whole_groups or len(slices) == 1:
        return [replace(whole, slices=[decisions]) for decisions in slices]
    parts = [whole.policy.logprobs(whole.batch.rollout, s, whole.ask, grad=False) for s in slices]
    loss = LinearLoss.of(whole, join_decisions(parts, dim=1))
    widths = [s.stop - s.start for s in slices]
    gradients = {name: x.split(widths, dim=1) for name, x in loss.gradients.items()}
    return [
        LinearTerm(
            decisions=decisions,
            gradients={name: parts[i] for name, parts in gradients.items()},
            total=torch.zeros_like(loss.total) if i else loss.total,
        )
        for i, decisions in enumerate(slices)
    ]
