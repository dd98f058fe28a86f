"""The checks that every objective passes, on toy batches of three kinds: tokens, Gaussian steps, copies with a target.

An objective gets what it declares to need, as in training. A kind that it refuses with a `UsageError` is left out. All
is in fp64, and the decisions are functions of weights, which stand for a policy's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpokit.errors import UsageError, brief
from grpokit.flow import gaussian_logprobs
from grpokit.objectives import Loss, Objective
from grpokit.types import Decisions
from grpokit_check.check import (
    Check,
    attempt,
    checks_of,
    expect,
    expect_unchanged,
    expect_untouched,
    random_states,
)

_LENGTHS = (5, 3, 4, 2)
_ADVANTAGES = (1.3, -0.8, 3.1, -2.6)
_GROUPS = (0, 0, 1, 1)
_DIMENSIONS = 3


def objective_checks(objective: Objective, *, module: str | None = None) -> Iterator[Check]:
    """Yield the checks of an objective.

    Args:
        objective: with its parameters.
        module: the plugin's module behind the entry point, which must import nothing heavy.

    Raises:
        UsageError: it is no objective, or with its parameters it takes no kind of decision.
    """
    if not isinstance(objective, Objective):
        raise UsageError(f"The checks of an objective need a grpokit.Objective, got {brief(objective)}.")
    answers = {kind: attempt(_try, objective, kind) for kind in _KINDS}
    kinds = [kind for kind, answer in answers.items() if not isinstance(answer, UsageError)]
    if not kinds:
        raise answers["copies"]
    case = _Case(objective=objective, kinds=kinds)
    learning = (sign, zero_advantage) if objective.needs_advantages else (without_advantages,)
    yield from checks_of((finite, *learning, *_CHECKS), case, module)


def _tokens(weights: Tensor) -> Decisions:
    """The choice of the first of three tokens: logits [b, t, 3] -> [b, t]."""
    logprobs = weights.log_softmax(-1)
    return Decisions(logprobs=logprobs[..., 0], entropy=-(logprobs.exp() * logprobs).sum(-1))


def _steps(weights: Tensor) -> Decisions:
    """Steps of a flow: means [b, t, 3] -> [b, t]."""
    std = torch.full_like(weights[..., :1], 0.7)
    logprobs = gaussian_logprobs(_values(weights), weights, std)
    return Decisions(logprobs=logprobs, mean=weights, std=std, v_coef=torch.full_like(std, -0.2))


def _copies(weights: Tensor) -> Decisions:
    """Noised copies of a finished sample: predictions of it [b, t, 3] -> minus the velocity's error [b, t]."""
    target = _values(weights)
    v_coef = torch.full_like(weights[..., :1], -0.5)
    score = -((weights - target) / v_coef).square().mean(-1)
    return Decisions(logprobs=score, mean=weights, v_coef=v_coef, target=target)


def _values(weights: Tensor) -> Tensor:
    return torch.linspace(-0.5, 0.8, _DIMENSIONS, dtype=weights.dtype).expand_as(weights)


_KINDS: Mapping[str, Callable[[Tensor], Decisions]] = {"tokens": _tokens, "steps": _steps, "copies": _copies}


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """What an objective reads: [b, t], of four rows with ragged ends."""

    kind: str
    objective: Objective
    weights: Tensor  # [b, t, 3], a leaf
    new: Decisions
    old: Decisions
    reference: Decisions | None
    advantages: Tensor  # [b] or [b, t]
    mask: Tensor  # [b, t]
    groups: Tensor  # [b]
    factors: Tensor  # [b, t], what a reduction makes of the decisions

    def loss(self, *, factor: float | None = None) -> Loss:
        """The loss of each decision, its policy loss times a factor."""
        correction = None if factor is None else torch.full_like(self.new.logprobs, factor).detach()
        return self.objective(
            self.new, self.old, self.advantages, self.mask, self.reference, correction=correction, groups=self.groups
        )

    def policy_loss(self) -> Tensor:
        """The loss without KL and entropy, [b, t]."""
        return self.loss(factor=1.0).value - self.loss(factor=0.0).value

    def select(self, rows: slice = slice(None), decisions: slice = slice(None)) -> _Batch:
        """Some rows, and some of their decisions."""
        advantages = self.advantages[rows]
        return replace(
            self,
            new=self.new.select(rows, decisions),
            old=self.old.select(rows, decisions),
            reference=self.reference and self.reference.select(rows, decisions),
            advantages=advantages if advantages.ndim == 1 else advantages[:, decisions],
            mask=self.mask[rows, decisions],
            groups=self.groups[rows],
            factors=self.factors[rows, decisions],
        )

    def gradient(self, value: Tensor) -> Tensor:
        """The derivative of the sum of a loss [b, t] by the weights, [b, t, 3]."""
        if not value.requires_grad:
            return torch.zeros_like(self.weights)
        (gradient,) = torch.autograd.grad((value * self.factors).sum(), self.weights, retain_graph=True)
        return gradient


@dataclass(frozen=True, kw_only=True)
class _Case:
    """An objective, and the kinds of decision that it takes."""

    objective: Objective
    kinds: Sequence[str]

    def batches(self, *, away: float = 0.0) -> list[_Batch]:
        """A batch of each kind; log-probs of the new and the old policy differ by about `away`."""
        return [_batch(self.objective, kind, away) for kind in self.kinds]


def _try(objective: Objective, kind: str) -> None:
    objective.check_action_dims(1 if kind == "tokens" else _DIMENSIONS)
    _batch(objective, kind, 0.0).loss()


def _batch(objective: Objective, kind: str, away: float) -> _Batch:
    generator = torch.Generator().manual_seed(3)
    shape = (len(_LENGTHS), max(_LENGTHS), _DIMENSIONS)
    weights, before, reference = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    weights.requires_grad_()
    read = _KINDS[kind]
    old, held_to = read(weights.detach() + away * before), read(weights.detach() + 0.1 * reference)
    return _Batch(
        kind=kind,
        objective=objective,
        weights=weights,
        new=read(weights) if objective.needs_moments else _without_moments(read(weights)),
        old=replace(old, target=None) if objective.needs_old_moments else _without_moments(old),
        reference=_reference(objective, held_to),
        advantages=torch.tensor(_ADVANTAGES, dtype=torch.float64),
        mask=torch.arange(max(_LENGTHS)) < torch.tensor(_LENGTHS)[:, None],
        groups=torch.tensor(_GROUPS),
        factors=torch.linspace(0.5, 1.5, 20, dtype=torch.float64).reshape(4, 5),
    )


def _reference(objective: Objective, view: Decisions) -> Decisions | None:
    if not objective.needs_reference:
        return None
    return view if objective.needs_reference_moments else _without_moments(view)


def _without_moments(view: Decisions) -> Decisions:
    return Decisions(logprobs=view.logprobs, entropy=view.entropy)


def finite(case: _Case) -> None:
    """Loss and gradient are finite: at a ratio of 1, and where the policies are far apart."""
    for away in (0.0, 0.3, 30.0):
        for batch in case.batches(away=away):
            value, where = batch.loss().value, f"for {batch.kind}, {'far from' if away else 'at'} a ratio of 1"
            shape = tuple(batch.mask.shape)
            expect(tuple(value.shape) == shape, f"a loss for each decision, {shape}", f"{tuple(value.shape)} {where}",
                   "a loss that is averaged already; the trainer reduces it")  # fmt: skip
            gradient = batch.gradient(value)
            expect(value.isfinite().all(), "a finite loss", f"{_numbers(value[~value.isfinite()])} {where}",
                   "a ratio whose logarithm has no bound; see grpokit.divergence.bound_log_ratio")  # fmt: skip
            expect(gradient.isfinite().all(), "a finite gradient", f"NaN or infinity in it {where}",
                   "the root or the logarithm of 0, whose derivative is infinite")  # fmt: skip


def sign(case: _Case) -> None:
    """A gradient step raises the log-prob of a row with an advantage above 0, and lowers that of one below 0.

    Away from a ratio of 1, an objective of whole groups may move a row towards the others.
    """
    for batch in case.batches():
        rises = _rises(batch)
        expect(any(rises), "a gradient of the policy loss", f"none for {batch.kind}",
               "log-probs that are detached, or a ratio that nothing depends on")  # fmt: skip
        expect(min(rises[0], rises[2]) > 0, "a step that raises log-probs where the advantage is above 0",
               f"changes of {rises[0]:.2g} and {rises[2]:.2g} nats ({batch.kind})",
               "a missing minus: the optimizer minimises the loss, as in -ratio * advantages")  # fmt: skip
        _expect_right(batch, rises, "at a ratio of 1")
    for away in () if case.objective.whole_groups else (0.1, 0.3):
        for batch in case.batches(away=away):
            _expect_right(batch, _rises(batch), "away from a ratio of 1")


def _rises(batch: _Batch) -> list[float]:
    """What a gradient step adds to the log-prob of each row."""
    gradient = batch.gradient(batch.policy_loss())
    moved = batch.weights.detach() - 1e-4 * gradient / gradient.abs().max().clamp(min=1e-300)
    difference = _KINDS[batch.kind](moved).logprobs - batch.new.logprobs.detach()
    return (difference * batch.mask).sum(1).tolist()


def _expect_right(batch: _Batch, rises: Sequence[float], where: str) -> None:
    """No row is moved against its advantage; clipping may leave one where it is."""
    for advantage, rise in zip(_ADVANTAGES, rises, strict=True):
        expect(rise * advantage >= 0, "a step that raises log-probs where the advantage is above 0, and lowers them "
               "below", f"a change of {rise:.2g} nats at an advantage of {advantage} {where} ({batch.kind})",
               "a minus that is missing, or missing on one side of a clip")  # fmt: skip


def zero_advantage(case: _Case) -> None:
    """The policy loss is 0 where the advantage is 0."""
    for batch in case.batches(away=0.3):
        advantages = batch.advantages[:, None].repeat(1, max(_LENGTHS))
        advantages[:, 1::2] = 0.0
        loss = replace(batch, advantages=advantages).policy_loss()
        largest = float(loss[batch.mask & (advantages == 0)].detach().abs().max())
        expect(largest < 1e-12, "a policy loss of 0 where the advantage is 0", f"{largest:.3g} for {batch.kind}",
               "a term without the advantage as a factor; filters leave decisions out by a 0")  # fmt: skip


def without_advantages(case: _Case) -> None:
    """Where rewards do not teach, the advantages change nothing, and the loss has a gradient."""
    for batch in case.batches(away=0.3):
        value = batch.loss().value
        other = replace(batch, advantages=-2 * batch.advantages).loss().value
        expect(torch.equal(value, other), "the same loss for all advantages, since `needs_advantages` is False",
               f"{_numbers(other)} for {_numbers(value)} ({batch.kind})", "a loss that reads them")  # fmt: skip
        gradient = batch.gradient(value)
        expect(gradient.any(), "a gradient of the loss", f"none for {batch.kind}", "a loss of constants")  # fmt: skip


def mask(case: _Case) -> None:
    """What stands under the mask, NaN too, changes neither the loss nor its gradient."""
    for batch in case.batches(away=0.3):
        expected = batch.loss().value
        new = _spoilt(batch.new, batch.mask)
        leaves = [x.requires_grad_() for x in vars(new).values() if x is not None]
        spoilt = replace(
            batch,
            new=new,
            old=_spoilt(batch.old, batch.mask),
            reference=batch.reference and _spoilt(batch.reference, batch.mask),
            advantages=torch.where(batch.mask, batch.advantages[:, None], torch.nan),
        )
        value = spoilt.loss().value
        same = torch.equal(value, torch.where(batch.mask, expected, 0.0))
        expect(same, "the same loss with NaN under the mask, and 0 there",
               f"{_numbers(value)} for {_numbers(expected)} ({batch.kind})",
               "arithmetic before the mask; replace what is masked first, by torch.where")  # fmt: skip
        gradients = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        clean = all(gradient is None or bool(gradient.isfinite().all()) for gradient in gradients)
        expect(clean, "a finite gradient with NaN under the mask", f"another one for {batch.kind}",
               "a loss that is masked at its end: NaN times 0 is NaN, so replace the inputs")  # fmt: skip


def _spoilt(view: Decisions, mask: Tensor) -> Decisions:
    """The decisions, without gradient, with NaN under the mask."""
    fields = {name: x.detach().clone() for name, x in vars(view).items() if x is not None}
    for x in fields.values():
        x[~mask] = torch.nan
    return Decisions(**fields)


def additive(case: _Case) -> None:
    """The gradients of micro-batches, and of slices of decisions, add up to that of the whole."""
    border = 2 if case.objective.whole_groups else 1  # of two groups, or inside the first one
    rows = [slice(0, border), slice(border, 4)]
    decisions = [slice(0, 2), slice(2, 5)]
    for batch in case.batches(away=0.3):
        whole = batch.gradient(batch.loss().value)
        _expect_sum(batch, whole, [batch.select(rows=part) for part in rows], "micro-batches of rows",
                    "a mean or a maximum over rows; over those of a group `whole_groups` must be True")  # fmt: skip
        if not case.objective.whole_sequence:
            _expect_sum(batch, whole, [batch.select(decisions=part) for part in decisions], "slices of decisions",
                        "a sum over a row's decisions; then `whole_sequence` must be True")  # fmt: skip


def _expect_sum(batch: _Batch, whole: Tensor, parts: Sequence[_Batch], what: str, cause: str) -> None:
    total = torch.stack([part.gradient(part.loss().value) for part in parts]).sum(0)
    error = float((total - whole).abs().max() / whole.abs().max().clamp(min=1e-9))
    expect(error < 1e-12, f"{what} whose gradients add up to that of the whole batch, to 1e-12",
           f"a difference of {error:.2g} of the largest ({batch.kind})", cause)  # fmt: skip


def statistics(case: _Case) -> None:
    """Statistics are finite numbers for each decision, without gradient."""
    for batch in case.batches(away=0.3):
        for name, values in batch.loss().stats.items():
            shape = tuple(batch.mask.shape)
            right = tuple(values.shape) == shape and not values.requires_grad
            gradient = " with gradient" if values.requires_grad else ""
            expect(right, f"the statistic '{name}' for each decision, {shape}, without gradient",
                   f"{tuple(values.shape)}{gradient}", "a mean, or a missing detach()")  # fmt: skip
            expect(values[batch.mask].isfinite().all(), f"finite values of the statistic '{name}'", "others",
                   "a division by 0")  # fmt: skip


def pure(case: _Case) -> None:
    """The same decisions give the same loss, nothing is changed in place, and no global random state is touched."""
    for batch in case.batches(away=0.3):
        tensors = {f"{part}.{name}": x for part in ("new", "old") for name, x in vars(getattr(batch, part)).items()}
        tensors |= {"advantages": batch.advantages, "mask": batch.mask}
        states = random_states()
        with expect_unchanged(tensors, "advantages *= 2"):
            first, second = batch.loss().value, batch.loss().value
        expect_untouched(states, "an objective")
        expect(torch.equal(first, second), "the same loss for the same decisions", "another one in a second call",
               "noise, or a state that each call changes")  # fmt: skip


def _numbers(x: Tensor) -> str:
    return str([round(value, 4) for value in x.flatten().tolist()])


_CHECKS: Sequence[Callable[[_Case], None]] = (
    mask,
    additive,
    statistics,
    pure,
)
