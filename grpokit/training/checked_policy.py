"""The policy as the trainer calls it: under one autocast, and with every answer held against the contract.

Log-probs of the wrong shape would broadcast, a slice left out would lose its gradient, groups in another order would
meet other rewards: all of it without an error. Here each of them stops the run and says what came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpokit.errors import RunError
from grpokit.policy import Policy
from grpokit.training.micro_batches import micro_batches
from grpokit.training.rollout_calls import draws, join
from grpokit.types import Decisions, Prompt, Rollout, Seeds

LOW_PRECISION = (torch.bfloat16, torch.float16)


class CheckedPolicy:
    """Calls a policy.

    Its `low_precision` says whether some weights have less than fp32, so that sampling and scoring disagree in their
    last digits.

    Args:
        policy: what is called.
        autocast: makes the context for rollout, logprobs and reference.
        entropy_grad: whether the entropy's gradient is wanted; if not, its graph is let go at once.
    """

    def __init__(
        self, policy: Policy, *, autocast: Callable[[], AbstractContextManager[Any]], entropy_grad: bool
    ) -> None:
        self.policy = policy
        self.autocast = autocast
        self.entropy_grad = entropy_grad
        self.low_precision = any(p.dtype in LOW_PRECISION for m in policy.modules().values() for p in m.parameters())

    def rollout(self, prompts: Sequence[Prompt], group_size: int, seeds: Seeds, *, at_once: int) -> Rollout:
        """Draw samples without gradient, at most `at_once` rows in a call.

        Raises:
            RunError: see `check_rollout`.
        """
        parts = []
        for draw in draws(seeds, group_size, at_once):
            with torch.no_grad(), self.autocast():
                parts.append(self.policy.rollout(prompts[draw.prompts], draw.group_size, seeds=draw.seeds))
        rollout = join(parts)
        check_rollout(rollout, prompts, group_size, seeds)
        return replace(rollout, old=_upcast(rollout.old))

    def reference(self) -> AbstractContextManager[Any]:
        """The policy's own: inside, `logprobs` uses the frozen reference."""
        return self.policy.reference()

    def slices(self, rollout: Rollout) -> list[slice]:
        """The policy's step slices as plain numbers.

        Raises:
            RunError: they leave decisions out, or repeat some, or go backwards.
        """
        steps = rollout.mask.shape[1]
        slices = [slice(*s.indices(steps)) for s in self.policy.slices(rollout)]
        starts, stops = [s.start for s in slices], [s.stop for s in slices]
        if [*starts, steps] != [0, *stops] or any(s.step != 1 for s in slices):
            raise RunError(
                f"The policy's slices are {list(zip(starts, stops, strict=True))}; expected slices that follow "
                f"each other from 0 to {steps}. Decisions that are not trained are masked out, not left out."
            )
        return slices

    def logprobs(self, rollout: Rollout, steps: slice, *, grad: bool) -> Decisions:
        """Score stored decisions again, in fp32 or better.

        Raises:
            RunError: the answer's shape is not [rows, decisions of the slice].
        """
        with torch.set_grad_enabled(grad), self.autocast():
            found = self.policy.logprobs(rollout, steps)
        expected = tuple(rollout.mask[:, steps].shape)
        for name in ("logprobs", "entropy", "mean", "std"):
            x = getattr(found, name)
            if x is not None and tuple(x.shape[:2]) != expected:
                raise RunError(
                    f"The policy's logprobs of the decisions {steps.start} to {steps.stop} of {rollout.rows} rows "
                    f"gave {name} of shape {tuple(x.shape)}; expected {expected} in front: rows, then decisions."
                )
        if found.entropy is not None and not self.entropy_grad:
            found = replace(found, entropy=found.entropy.detach())
        return _upcast(found)

    def all_logprobs(
        self,
        rollout: Rollout,
        micro_batch_size: int,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Decisions:
        """Score all decisions without gradient, inside `context`, in the same pieces as training: [B, T]."""
        logprobs = torch.zeros_like(rollout.old.logprobs)
        with context():
            for rows in micro_batches(rollout.groups, micro_batch_size):
                piece = rollout.select(rows)
                for steps in self.slices(piece):
                    if bool(piece.mask[:, steps].any()):
                        logprobs[rows, steps] = self.logprobs(piece, steps, grad=False).logprobs.to(logprobs)
        return Decisions(logprobs=logprobs)


def check_rollout(rollout: Rollout, prompts: Sequence[Prompt], group_size: int, seeds: Seeds) -> None:
    """Hold a rollout against what was asked for.

    Raises:
        RunError: groups or samples are not those of the seeds and the prompts, or a log-prob is not a number.
    """
    expected = seeds.group_ids.repeat_interleave(group_size).tolist()
    if rollout.groups.tolist() != expected:
        raise RunError(
            f"The policy's rollout has the groups {rollout.groups.tolist()}; expected {expected}: "
            "`seeds.group_ids`, each repeated for its samples."
        )
    for row, (sample, group) in enumerate(zip(rollout.samples, expected, strict=True)):
        prompt = prompts[row // group_size]
        if sample.group != group or (sample.prompt is not prompt and sample.prompt.text != prompt.text):
            raise RunError(
                f"The policy's rollout has a sample of group {sample.group}, prompt {sample.prompt.text!r}, in row "
                f"{row}; expected group {group}, prompt {prompt.text!r}. Row p * {group_size} + i is sample i of "
                "prompt p, else its reward counts for another row; and Sample.prompt is the prompt as it was given."
            )
    wrong = not_finite(rollout, rollout.old.logprobs)
    if wrong:
        raise RunError(
            f"The policy's rollout gave {wrong}. Usual causes: weights that are not finite, or an overflow in "
            "low precision."
        )


def not_finite(rollout: Rollout, logprobs: Tensor, rows: Tensor | None = None) -> str:
    """Where the first of `logprobs` [B, T] that is no number stands, in words; empty if all real ones are finite.

    Args:
        rollout: with the mask.
        logprobs: of all decisions.
        rows: the rows' numbers, where they are not 0 to B - 1.
    """
    wrong = (rollout.mask & ~logprobs.isfinite()).nonzero()
    if not len(wrong):
        return ""
    row, decision = wrong[0].tolist()
    number = row if rows is None else int(rows[row])
    return (
        f"the log-prob {float(logprobs[row, decision])} for decision {decision} of row {number} "
        f"(prompt {rollout.samples[row].prompt.text!r}; {len(wrong[:, 0].unique())} of {rollout.rows} "
        "rows have such)"
    )


def _upcast(steps: Decisions) -> Decisions:
    """Log-probs and entropy in fp32 or better: what autocast makes of them has too few digits for ratios."""

    def up(x: Tensor) -> Tensor:
        return x.to(torch.promote_types(x.dtype, torch.float32))

    return replace(steps, logprobs=up(steps.logprobs), entropy=None if steps.entropy is None else up(steps.entropy))
