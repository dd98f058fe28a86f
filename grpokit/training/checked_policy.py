"""The policy as the trainer calls it: under one autocast, and with every answer held against the contract.

Log-probs of the wrong shape would broadcast, a slice left out would lose its gradient, groups in another order would
meet other rewards: all of it without an error. Here each of them stops the run and says what came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpokit.errors import RunError
from grpokit.policy import Policy
from grpokit.training.devices import autocast
from grpokit.training.micro_batches import micro_batches
from grpokit.training.rollout_calls import calls, concatenate_rollouts
from grpokit.types import Decisions, Prompt, Rollout, Seeds

LOW_PRECISION = (torch.bfloat16, torch.float16)


class CheckedPolicy:
    """Calls a policy.

    Its `low_precision` says whether some weights have less than fp32, so that sampling and scoring disagree in their
    last digits.

    Args:
        policy: what is called.
        mixed_precision: "no", "bf16" or "fp16": the autocast around rollout, logprobs and reference.
        entropy_grad: whether the entropy's gradient is wanted; if not, its graph is let go at once.
    """

    def __init__(self, policy: Policy, *, mixed_precision: str = "no", entropy_grad: bool = False) -> None:
        self.policy, self.mixed_precision, self.entropy_grad = policy, mixed_precision, entropy_grad
        dtypes = {p.dtype for module in policy.modules().values() for p in module.parameters()}
        self.low_precision = mixed_precision != "no" or any(dtype in LOW_PRECISION for dtype in dtypes)

    @property
    def device(self) -> torch.device:
        """Where the policy's parameters are."""
        parameters = (p for module in self.policy.modules().values() for p in module.parameters())
        return next((p.device for p in parameters), torch.device("cpu"))

    def rollouts(
        self, prompts: Sequence[Prompt], group_size: int, seeds: Seeds, *, at_once: int, evaluate: bool = False
    ) -> Iterator[Rollout]:
        """Draw samples without gradient, at most `at_once` rows in a call; yields what each call drew.

        Training, evaluation, `grpokit sample` and `grpokit redraw` all draw here.

        Args:
            prompts: P prompts.
            group_size: G.
            seeds: of the B = P * G samples.
            at_once: the most rows of a call.
            evaluate: with the policy's own settings for evaluation.

        Raises:
            RunError: see `check_rollout`.
        """
        for call in calls(seeds, group_size, at_once):
            chosen = prompts[call.prompts]
            with torch.no_grad(), self._autocast():
                rollout = self.policy.rollout(
                    chosen, call.group_size, seeds=call.seeds.to(self.device), evaluate=evaluate
                )
            check_rollout(rollout, chosen, call.group_size, call.seeds, first_row=call.first_row)
            yield replace(rollout, old=_upcast(rollout.old))

    def rollout(self, prompts: Sequence[Prompt], group_size: int, seeds: Seeds, *, at_once: int) -> Rollout:
        """What `rollouts` draws, as one rollout.

        Raises:
            RunError: see `check_rollout`, or the calls' traces do not fit together.
        """
        return concatenate_rollouts(list(self.rollouts(prompts, group_size, seeds, at_once=at_once)))

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.device, self.mixed_precision)

    def reference(self) -> AbstractContextManager[Any]:
        """The policy's own: inside, `logprobs` uses the frozen reference."""
        return self.policy.reference()

    def slices(self, rollout: Rollout) -> list[slice]:
        """The policy's slices of decisions as plain numbers.

        Raises:
            RunError: they leave decisions out, or repeat some, or go backwards.
        """
        count = rollout.mask.shape[1]
        slices = [slice(*s.indices(count)) for s in self.policy.slices(rollout)]
        starts, stops = [s.start for s in slices], [s.stop for s in slices]
        if [*starts, count] != [0, *stops] or any(s.step != 1 for s in slices):
            raise RunError(
                f"The policy's slices are {list(zip(starts, stops, strict=True))}; expected slices that follow "
                f"each other from 0 to {count}. Decisions that are not trained are masked out, not left out."
            )
        return slices

    def logprobs(self, rollout: Rollout, decisions: slice, *, grad: bool) -> Decisions:
        """Score stored decisions again, in fp32 or better.

        Raises:
            RunError: the answer's shape is not [rows, decisions of the slice].
        """
        with torch.set_grad_enabled(grad), self._autocast():
            scored = self.policy.logprobs(rollout, decisions)
        expected = tuple(rollout.mask[:, decisions].shape)
        for name, x in vars(scored).items():
            if x is not None and tuple(x.shape[:2]) != expected:
                raise RunError(
                    f"The policy's logprobs of the decisions {decisions.start} to {decisions.stop} of {rollout.rows} "
                    f"rows gave {name} of shape {tuple(x.shape)}; expected {expected} in front: rows, then decisions."
                )
        if scored.entropy is not None and not self.entropy_grad:
            scored = replace(scored, entropy=scored.entropy.detach())
        return _upcast(scored)

    def all_logprobs(
        self,
        rollout: Rollout,
        micro_batch_size: int,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Decisions:
        """Score all decisions without gradient, inside `context`, in the micro-batches of training: [B, T]."""
        logprobs = torch.zeros_like(rollout.old.logprobs)
        with context():
            for rows in micro_batches(rollout.groups, micro_batch_size):
                micro_batch = rollout.select(rows)
                for decisions in self.slices(micro_batch):
                    if bool(micro_batch.mask[:, decisions].any()):
                        scored = self.logprobs(micro_batch, decisions, grad=False)
                        logprobs[rows, decisions] = scored.logprobs.to(logprobs)
        return Decisions(logprobs=logprobs)


def check_rollout(
    rollout: Rollout, prompts: Sequence[Prompt], group_size: int, seeds: Seeds, *, first_row: int = 0
) -> None:
    """Hold a rollout against what was asked for.

    Args:
        rollout: the answer of one call.
        prompts: for which it was asked.
        group_size: samples per prompt.
        seeds: of the call.
        first_row: the number of its first row, for messages.

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
                f"{first_row + row}; expected group {group}, prompt {prompt.text!r}. Row p * {group_size} + i is "
                "sample i of prompt p, else its reward counts for another row; and Sample.prompt is the prompt that "
                "the policy was given."
            )
    rows = torch.arange(first_row, first_row + rollout.rows)
    wrong = not_finite(rollout, rollout.old.logprobs, rows)
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


def _upcast(decisions: Decisions) -> Decisions:
    """Log-probs and entropy in fp32 or better: what autocast makes of them has too few digits for ratios."""

    def up(x: Tensor) -> Tensor:
        return x.to(torch.promote_types(x.dtype, torch.float32))

    entropy = None if decisions.entropy is None else up(decisions.entropy)
    return replace(decisions, logprobs=up(decisions.logprobs), entropy=entropy)
