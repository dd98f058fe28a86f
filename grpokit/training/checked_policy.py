"""Calls a policy for the trainer: under one autocast, and with every result checked against the contract.

Without these checks, log-probs of a wrong shape would broadcast, a missing slice would lose its gradient, and groups in
another order would get other rewards, all without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, get_args

import torch
from torch import Tensor

from grpokit.errors import RunError, UsageError
from grpokit.policy import CutBy, Policy, Work, optional
from grpokit.processes.forks import forks_ended
from grpokit.processes.fsdp2 import any_shards, gathered
from grpokit.processes.team import is_sharded
from grpokit.training.contract import scorer
from grpokit.training.devices import any_low_precision, autocast
from grpokit.training.micro_batches import Cut, Limit, cuts
from grpokit.training.rollout_parts import call_at
from grpokit.types import Ask, Decisions, PendingRollout, Prompt, Rollout, Seeds

Fit: TypeAlias = Callable[[Callable[[int], Rollout]], Rollout]
"""Calls a function with the most rows that it may draw, and again with fewer if memory runs out."""

_MOMENTS = ("mean", "std", "v_coef")


class CheckedPolicy:
    """A policy whose results are checked.

    `mixed_precision` is that of the autocast around rollout, logprobs and reference: "no", "bf16" or "fp16".
    """

    def __init__(self, policy: Policy, *, mixed_precision: str = "no") -> None:
        self.policy, self.mixed_precision = policy, mixed_precision
        self._scorer = scorer(policy)
        self._begin: Callable[..., PendingRollout | None] = optional(policy, "begin")
        self.version = 0  # of the weights, as `updated` counts them
        self.reference_moves: bool = optional(policy, "reference_moves")
        self._cut_by: CutBy = optional(policy, "cut_by")
        if self._cut_by not in get_args(CutBy):
            known = " or ".join(map(repr, get_args(CutBy)))
            raise UsageError(f"A policy's cut_by must be {known}, got {self._cut_by!r}.")
        self._packs: bool = optional(policy, "packs")
        self.low_precision = mixed_precision != "no" or any_low_precision(policy.modules())

    @contextmanager
    def during(self, work: Work) -> Iterator[None]:
        """The policy's context for a stretch of work; all processes enter it where weights are sharded."""
        with forks_ended(), nullcontext() if work == "train" else gathered(), optional(self.policy, "during")(work):
            yield

    def updated(self, version: int) -> None:
        """Tell the policy of new weights."""
        self.version = version
        with forks_ended():
            optional(self.policy, "updated")(version)

    @property
    def device(self) -> torch.device:
        """The device of the policy's parameters."""
        parameters = [p for module in self.policy.modules().values() for p in module.parameters()]
        parameters.sort(key=is_sharded)  # parts may wait elsewhere
        return next((p.device for p in parameters), torch.device("cpu"))

    def rollouts(
        self, prompts: Sequence[Prompt], group_size: int, seeds: Seeds, *, fit: Fit, evaluate: bool = False
    ) -> Iterator[Rollout]:
        """Draw samples without gradient, in calls that fit into memory; yields each call's rollout.

        Training, evaluation, `grpokit sample` and `grpokit replay` all draw here. Where memory runs out, only the call
        that failed is repeated: `fit` decides how many rows a call has at most.
        """
        with self.during("rollout"):
            row = 0
            while row < len(seeds.row):
                rollout = fit(partial(self._draw, row, prompts, group_size, seeds, evaluate))
                row += rollout.rows
                yield rollout

    def _draw(
        self, row: int, prompts: Sequence[Prompt], group_size: int, seeds: Seeds, evaluate: bool, size: int
    ) -> Rollout:
        """The rollout of one call, of at most `size` rows from `row` on."""
        call = call_at(row, seeds, group_size, size)
        part = prompts[call.prompts]
        with forks_ended(), torch.no_grad(), self._autocast():
            rollout = self.policy.rollout(part, call.group_size, seeds=call.seeds.to(self.device), evaluate=evaluate)
        return self._checked(rollout, part, call.group_size, call.seeds, row)

    def _checked(
        self, rollout: Rollout, prompts: Sequence[Prompt], group_size: int, seeds: Seeds, first_row: int = 0
    ) -> Rollout:
        _check(rollout, prompts, group_size, seeds, first_row)
        version = self.version if rollout.version is None else rollout.version
        return replace(rollout, old=_upcast(rollout.old), version=version)

    def begin(self, prompts: Sequence[Prompt], group_size: int, seeds: Seeds) -> PendingRollout | None:
        """Begin to draw samples elsewhere, with these weights; None if this process draws."""
        with forks_ended(), torch.no_grad():
            return self._begin(prompts, group_size, seeds=seeds.to(self.device))

    def finish(self, begun: PendingRollout, prompts: Sequence[Prompt], group_size: int, seeds: Seeds) -> Rollout:
        """Wait for what `begin` began, with the same arguments."""
        with forks_ended(), torch.no_grad(), self._autocast():
            rollout = begun.result()
        return self._checked(rollout, prompts, group_size, seeds)

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.device, self.mixed_precision, keep=not any_shards())

    def reference(self) -> AbstractContextManager[Any]:
        """The policy's context in which `logprobs` uses the frozen reference."""
        return self.policy.reference()

    def slices(self, rollout: Rollout) -> list[slice]:
        """The policy's slices of decisions, with plain numbers."""
        count = rollout.mask.shape[1]
        if not rollout.rows:
            return []
        slices = [slice(*s.indices(count)) for s in self.policy.slices(rollout)]
        starts, stops = [s.start for s in slices], [s.stop for s in slices]
        without_gaps = all(s.step == 1 for s in slices)
        if [*starts, count] != [0, *stops] or not without_gaps:
            raise RunError(
                f"The policy's slices are {list(zip(starts, stops, strict=True))}; expected slices that follow "
                f"each other from 0 to {count}. Mask decisions that are not to be trained; do not leave them out."
            )
        return slices

    def cuts(self, rollout: Rollout, limit: Limit) -> list[Cut]:
        """Cut a rollout into micro-batches; one without rows has none."""
        slices = self.slices(rollout)
        return cuts(rollout.groups, rollout.host_mask, slices, limit, by=self._cut_by, packed=self._packs)

    def logprobs(self, rollout: Rollout, decisions: slice, ask: Ask, *, grad: bool) -> Decisions:
        """Score stored decisions again, in fp32 or better; an entropy has a gradient only if that is asked for."""
        with forks_ended(), torch.set_grad_enabled(grad), self._autocast():
            view = self._scorer(rollout, decisions, ask)
        expected = tuple(rollout.mask[:, decisions].shape)
        for name, x in vars(view).items():
            if x is not None and tuple(x.shape[:2]) != expected:
                raise RunError(
                    f"The policy's logprobs() for the decisions {decisions.start} to {decisions.stop} of "
                    f"{rollout.rows} rows gave {name} of shape {tuple(x.shape)}; expected a shape that begins with "
                    f"{expected}: rows, then decisions."
                )
        if view.entropy is not None and ask.entropy != "grad":
            view = replace(view, entropy=view.entropy.detach())
        return _upcast(view)

    def all_logprobs(
        self,
        rollout: Rollout,
        limit: Limit,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        ask: Ask = Ask(entropy="no"),
    ) -> Decisions:
        """Score all decisions [B, T] without gradient, inside `context`, in the micro-batches of training.

        The result has what `ask` names, if the policy gives it.
        """
        with context():
            return assemble_decisions(self._views(rollout, limit, ask), like=rollout.old.logprobs)

    def _views(self, rollout: Rollout, limit: Limit, ask: Ask) -> Iterator[tuple[Tensor, slice, Decisions]]:
        """What `ask` names of the decisions, by micro-batch and slice."""
        unread = ["target"]
        if not ask.moments:
            unread += _MOMENTS
        if ask.entropy == "no":
            unread.append("entropy")
        if not ask.distribution:
            unread.append("distribution")
        nothing: dict[str, Any] = dict.fromkeys(unread)
        for cut in self.cuts(rollout, limit):
            part = rollout.select(cut.rows)
            for decisions in cut.slices:
                view = self.logprobs(part, decisions, ask, grad=False)
                yield cut.rows, decisions, replace(view, **nothing)


def assemble_decisions(parts: Iterable[tuple[Tensor, slice, Decisions]], *, like: Tensor) -> Decisions:
    """Views of some rows (int64 indices) and a slice each, as one of all decisions.

    Args:
        parts: rows [b], their slice, and its view [b, t].
        like: [B, T], log-probs of all decisions; the result has its type and device, and 0 where there is no view.
    """
    whole = {"logprobs": torch.zeros_like(like)}
    for rows, decisions, view in parts:
        index = rows.to(like.device, non_blocking=True)
        for name, x in vars(view).items():
            if x is None:
                continue
            if name not in whole:
                shape = (*like.shape, *x.shape[2:])
                whole[name] = x.new_zeros(shape, device=like.device)
            whole[name][index, decisions] = x.to(whole[name])
    return Decisions(**whole)


def _check(rollout: Rollout, prompts: Sequence[Prompt], group_size: int, seeds: Seeds, first_row: int) -> None:
    """Check the rollout of one call of a policy; messages count its rows from `first_row`."""
    expected = seeds.group_ids.repeat_interleave(group_size).tolist()
    if rollout.groups.tolist() != expected:
        raise RunError(
            f"The policy's rollout has the groups {rollout.groups.tolist()}; expected {expected}: "
            "`seeds.group_ids`, each repeated for its samples."
        )
    for row, sample in enumerate(rollout.samples):
        group, prompt = expected[row], prompts[row // group_size]
        other_prompt = sample.prompt is not prompt and sample.prompt.text != prompt.text
        if sample.group != group or other_prompt:
            raise RunError(
                f"The policy's rollout has a sample of group {sample.group}, prompt {sample.prompt.text!r}, in row "
                f"{first_row + row}; expected group {group}, prompt {prompt.text!r}. Row p * {group_size} + i must be "
                "sample i of prompt p, or its reward counts for another row. Sample.prompt must be the prompt from the "
                "argument of rollout()."
            )
    rows = torch.arange(first_row, first_row + rollout.rows)
    place = not_finite(rollout, rollout.old.logprobs, rows)
    if place:
        raise RunError(
            f"The policy's rollout gave {place}. Usual causes: weights that are not finite, or an overflow in "
            "low precision."
        )


def not_finite(rollout: Rollout, logprobs: Tensor, rows: Tensor) -> str:
    """Describe the first of `logprobs` [B, T] that is not finite and not masked, by the rows' numbers; else empty."""
    places = (rollout.mask & ~logprobs.isfinite()).nonzero()
    if not len(places):
        return ""
    row, decision = places[0].tolist()
    return (
        f"the log-prob {float(logprobs[row, decision])} for decision {decision} of row {int(rows[row])} "
        f"(prompt {rollout.samples[row].prompt.text!r}; {len(places[:, 0].unique())} of {rollout.rows} "
        "rows are affected)"
    )


def _upcast(decisions: Decisions) -> Decisions:
    """Log-probs and entropy in fp32 or better: under autocast they have too few digits for ratios."""

    def up(x: Tensor) -> Tensor:
        return x.to(torch.promote_types(x.dtype, torch.float32))

    entropy = None if decisions.entropy is None else up(decisions.entropy)
    return replace(decisions, logprobs=up(decisions.logprobs), entropy=entropy)
