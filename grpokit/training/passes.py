"""The passes of a policy over the rows of a rollout, in micro-batches of rows and slices of decisions.

Weights are fixed before any cutting (see `grpokit.training.batch`), so the parts of a gradient add up to that of the
whole batch. The reference is scored inside its context, which is left before any backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from grpokit.divergence import correction_weights
from grpokit.errors import RunError
from grpokit.objectives import Loss, Objective
from grpokit.policy import joined
from grpokit.processes.forks import forks_ended
from grpokit.processes.team import Team
from grpokit.settings import Correction
from grpokit.training.batch import Batch
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.memory import Sizes, explained
from grpokit.training.metrics import Notes, Tally
from grpokit.training.micro_batches import Cut, Limit
from grpokit.types import Ask, Decisions, Rollout

_MOMENTS = ("mean", "std", "v_coef")


def with_filler(batch: Batch, policy: CheckedPolicy, team: Team) -> Batch:
    """The batch with a filler, for processes that must make the same passes: a short row of any of them."""
    filler = _shortest_row(batch)
    has_row = team.gather(filler is not None)
    if not any(has_row):  # no row decides anything, so there is no pass
        return batch
    if not all(has_row):
        giver = has_row.index(True)
        own = filler.to("cpu") if filler is not None and team.rank == giver else None
        offers = team.gather(own)  # which all processes call
        filler = filler or offers[giver]
    assert filler is not None
    filler = filler.to(batch.weights.device)
    counts = team.gather(len(policy.slices(filler.rollout)))
    if len(set(counts)) > 1:
        raise RunError(
            "run.sharding needs a policy with as many slices() in every process, and here they depend on the rows. "
            "Leave run.sharding out."
        )
    return replace(batch, filler=filler)


def _shortest_row(batch: Batch) -> Batch | None:
    """The row with the fewest decisions above none, without weight, output and target; None without such a row."""
    decided = batch.rollout.host_mask.sum(-1)
    if not decided.any():
        return None
    lengths = torch.where(decided > 0, decided, decided.max() + 1)
    row = batch.select(lengths.argmin()[None])
    (sample,) = row.rollout.samples
    prompt = replace(sample.prompt, target=None)
    bare = replace(sample, prompt=prompt, output=None, info={})
    return replace(
        Batch.of(replace(row.rollout, samples=[bare])),
        mask=torch.zeros_like(row.mask),
        old=row.old,
        reference=row.reference,
        before_updates=False,
    )


def all_logprobs(
    policy: CheckedPolicy,
    rollout: Rollout,
    limit: Limit,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    *,
    ask: Ask = Ask(entropy="no"),
) -> Decisions:
    """Score all decisions [B, T] without gradient, inside `context`, in the micro-batches of training.

    The result has what `ask` names, if the policy gives it.
    """
    whole = {"logprobs": torch.zeros_like(rollout.old.logprobs)}
    wanted = ["logprobs"]
    if ask.entropy != "no":
        wanted.append("entropy")
    if ask.moments:
        wanted += _MOMENTS
    device = whole["logprobs"].device
    with context():
        for cut in policy.cuts(rollout, limit):
            part = rollout.select(cut.rows)
            rows = cut.rows.to(device, non_blocking=True)
            for decisions in cut.slices:
                view = policy.logprobs(part, decisions, ask, grad=False)
                for name in wanted:
                    x = getattr(view, name)
                    if x is None:
                        continue
                    if name not in whole:
                        shape = (*rollout.mask.shape, *x.shape[2:])
                        whole[name] = x.new_zeros(shape, device=device)
                    whole[name][rows, decisions] = x.to(whole[name])
    return Decisions(**whole)


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

    def __call__(self, new: Decisions) -> tuple[Tensor, Tensor]:
        """A scalar to be differentiated, and its part in the batch's loss; the decisions [b, t] are counted."""
        value, loss = self._loss(new)
        mask = self.batch.mask[:, self.decisions]
        for name, values in loss.stats.items():
            self.tally.add(name, values, mask)
        if self.batch.before_updates:
            sampled = self.batch.rollout.old.logprobs[:, self.decisions]
            self.tally.add_differences(new.logprobs.detach() - sampled, mask)
        return value, value.detach()

    @property
    def ask(self) -> Ask:
        """What it reads of the new decisions."""
        return _ask(self.objective)

    def _loss(self, new: Decisions, *, rows: slice = slice(None)) -> tuple[Tensor, Loss]:
        """The objective on some rows: its weighted sum, a scalar, and each decision's."""
        batch, decisions = self.batch, self.decisions
        old = batch.old.select(rows, decisions) if batch.old else new.detach()
        advantages = batch.advantages[rows]
        if advantages.ndim == 2:
            advantages = advantages[:, decisions]
        reference = self._reference and self._reference.select(rows)
        with forks_ended():
            loss = self.objective(
                new,
                old,
                advantages,
                batch.mask[rows, decisions],
                reference,
                correction=self._factors(old, rows),
                kl_weights=batch.kl_weights[rows],
            )
        weights = batch.weights[rows, decisions].to(loss.value)
        return (loss.value * weights).sum(), loss

    @cached_property
    def _reference(self) -> Decisions | None:
        """The reference's view of the decisions."""
        batch = self.batch
        if not self.objective.needs_reference_moments or batch.reference is not None:
            return batch.reference and batch.reference.select(decisions=self.decisions)
        ask = Ask(entropy="no", moments=True)
        with self.policy.reference():
            parts = [self.policy.logprobs(batch.rollout, s, ask, grad=False) for s in self.slices]
        return joined(parts, dim=1)

    def _factors(self, old: Decisions, rows: slice) -> Tensor | None:
        """The factors of some rows' surrogate: [b', t], of the rollout and of the correction."""
        correction, weights = self._correction(old, rows), self.batch.rollout.weights
        if weights is None:
            return correction
        own = weights[rows, self.decisions]
        return own if correction is None else own * correction

    def _correction(self, old: Decisions, rows: slice) -> Tensor | None:
        """The importance weights: [b', t]."""
        if self.correction is None:
            return None
        batch = self.batch
        sampled, mask = batch.rollout.old.logprobs[rows], batch.mask[rows]
        if batch.old is None:  # `old` has all decisions of its rows, or a weight is one decision's own
            decisions = self.decisions
            sampled, mask = sampled[:, decisions], mask[:, decisions]
            return correction_weights(self.correction, old.logprobs, sampled, mask)
        weights = correction_weights(self.correction, batch.old.logprobs[rows], sampled, mask)
        return weights[:, self.decisions]


@dataclass(frozen=True, kw_only=True)
class LinearTerm:
    """A loss that is linear in the decisions of a slice, which were counted in the first pass."""

    decisions: slice
    gradients: Mapping[str, Tensor]  # name -> [b, t, ...], the derivative of the loss by that field of the decisions
    total: Tensor  # its part in the batch's loss

    def __call__(self, new: Decisions) -> tuple[Tensor, Tensor]:
        """As `Term`."""
        products = [(x * getattr(new, name)).sum() for name, x in self.gradients.items()]
        return torch.stack(products).sum(), self.total

    @property
    def ask(self) -> Ask:
        """What it reads of the new decisions."""
        return Ask(entropy="grad" if "entropy" in self.gradients else "no", moments="mean" in self.gradients)


@dataclass(eq=False, kw_only=True)
class Gradient:
    """Adds up the gradient of one optimizer step over micro-batches and slices."""

    policy: CheckedPolicy
    correction: Correction | None
    sizes: Sizes
    team: Team
    optimizer: torch.optim.Optimizer  # whose gradients are set to zero before
    backward: Callable[[Tensor], None]  # in place of `Tensor.backward`, to scale the loss

    def __call__(self, batch: Batch, objective: Objective, notes: Notes) -> tuple[Sequence[float], Tally]:
        """Add up the gradient in this process; returns the loss of each process, and the statistics of all."""

        def attempt(limit: Limit) -> tuple[float, Tally]:
            loss, tally = self._attempt(batch, objective, limit, notes)
            return float(loss), tally

        if batch.filler is not None:  # all processes make the same passes, so none can repeat its own with fewer rows
            with (
                self.team.failing_together(passes=True),
                explained("training", remedies="a smaller trainer.micro_batch_size"),
            ):
                loss, tally = attempt(self.sizes.limit)
        else:
            cuts = partial(self.policy.cuts, batch.rollout)
            loss, tally = self.sizes.score(attempt, cuts, notes.warn)
        own = loss, tally.on_cpu()
        losses, tallies = zip(*self.team.gather(own), strict=True)
        return losses, Tally.merged(tallies)

    def _attempt(self, batch: Batch, objective: Objective, limit: Limit, notes: Notes) -> tuple[Tensor, Tally]:
        """Nothing inside waits for the device."""
        self.optimizer.zero_grad()  # a failed attempt or step may have left gradients
        total = torch.zeros((), dtype=torch.float64, device=batch.weights.device)
        tally = Tally()
        tally.decided = int(batch.rollout.host_mask.numpy().sum())
        for piece, cut in self._pieces(batch, limit):
            tally.scored += sum(cut.passes)
            with notes.time("logprobs"):
                terms = self._terms(objective, piece, cut.slices, tally)
            for term in terms:
                with notes.time("logprobs"):
                    new = self.policy.logprobs(piece.rollout, term.decisions, term.ask, grad=True)
                    value, part = term(new)
                with notes.time("backward"):
                    self.backward(value)
                total += part
                del new, value  # before the next forward pass: with them goes what their graph still holds
        return total, tally

    def _pieces(self, batch: Batch, limit: Limit) -> Iterator[tuple[Batch, Cut]]:
        """The micro-batches of a batch, each with its slices; with a filler, as many in all processes."""
        cuts = [cut for cut in self.policy.cuts(batch.rollout, limit) if cut.slices]
        if batch.filler is None:
            yield from ((batch.select(cut.rows), cut) for cut in cuts)
            return
        lacking = max(self.team.gather(len(cuts))) - len(cuts)
        slices = tuple(self.policy.slices(batch.filler.rollout))
        for cut in cuts:
            piece = batch.select(cut.rows)
            if len(cut.slices) != len(slices):
                cut = replace(cut, slices=tuple(self.policy.slices(piece.rollout)))
            yield piece, cut
        filling = Cut(rows=batch.filler.numbers, slices=slices, passes=())
        yield from [(batch.filler, filling)] * lacking

    def _terms(
        self, objective: Objective, batch: Batch, slices: Sequence[slice], tally: Tally
    ) -> Sequence[Term | LinearTerm]:
        """The loss of a micro-batch as a sum over its slices.

        A loss of whole sequences takes two passes. The first one, without the policy's graph, gives the derivative of
        the loss by each decision. These are the constant weights of the second one's decisions.
        """
        term = partial(
            Term, policy=self.policy, objective=objective, correction=self.correction, batch=batch, tally=tally
        )
        if not objective.whole_sequence or len(slices) == 1:
            return [term(slices=[decisions]) for decisions in slices]
        ask = _ask(objective)
        parts = [self.policy.logprobs(batch.rollout, s, ask, grad=False) for s in slices]
        new = joined(parts, dim=1).detach()
        inputs = {name: x.requires_grad_() for name, x in vars(new).items() if x is not None}
        value, total = term(slices=slices)(new)
        derivatives = torch.autograd.grad(value, list(inputs.values()), allow_unused=True)
        widths = [s.stop - s.start for s in slices]
        gradients = {}
        for name, derivative in zip(inputs, derivatives, strict=True):
            if derivative is not None:
                gradients[name] = derivative.split(widths, dim=1)
        return [
            LinearTerm(
                decisions=decisions,
                gradients={name: parts[i] for name, parts in gradients.items()},
                total=torch.zeros_like(total) if i else total,
            )
            for i, decisions in enumerate(slices)
        ]


def _ask(objective: Objective) -> Ask:
    """What a loss reads of the new decisions."""
    return Ask(entropy="grad" if objective.entropy_coef != 0 else "value", moments=objective.needs_moments)
