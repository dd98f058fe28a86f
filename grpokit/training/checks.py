"""What is checked around a rollout, the advantages and an optimizer step, where a wrong value goes unseen.

Each message has the measured number, the usual causes and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from grpokit.errors import RunError, brief
from grpokit.objectives import Objective
from grpokit.training.minibatches import Batch, Signal

_error = partial(RunError, page="guards#while-it-runs")
_LARGEST = 1e100  # of `grpokit.run_folder.rows`


def check_advantages(advantages: Tensor, rows: int, decisions: int | None = None) -> None:
    """Stop unless the advantages of all rows are finite: [B], or [B, T] of any T where that is not known yet."""
    if decisions is None and advantages.ndim == 2:
        decisions = advantages.shape[-1]
    shapes = ((rows,), (rows, decisions))
    finite = advantages.isfinite()
    if tuple(advantages.shape) not in shapes or not bool(finite.all()):
        raise _error(
            f"The advantage function gave {tuple(advantages.shape)} values, {int((~finite).sum())} of them not "
            f"finite; expected finite numbers, one per row {shapes[0]} or one per decision {shapes[1]}.",
        )


def check_signal(signal: object, rows: int, decisions: int, *, modifier: str) -> None:
    """Stop unless a modifier gave a `Signal` with advantages [B] or [B, T], and with weights that can be used."""
    source = f"rows() of the modifier {modifier}"
    if not isinstance(signal, Signal):
        raise _error(f"{source} gave {brief(signal)}; expected a grpokit.Signal.")
    shapes: Mapping[str, list[tuple[int, ...]]] = {
        "advantages": [(rows,), (rows, decisions)],
        "weights": [(rows,)],
        "kl_weights": [(rows,)],
    }
    for name, possible in shapes.items():
        values = getattr(signal, name)
        _check_values(source, name, values, possible)
        finite = values.isfinite()
        if not bool(finite.all()):
            raise _error(f"{source} gave {name}, {int((~finite).sum())} of them not finite; expected finite numbers.")


def check_minibatch(answer: object, batch: Batch, *, modifier: str) -> None:
    """Stop unless a modifier gave the same rows of an optimizer step, with an advantage for each."""
    source = f"minibatch() of the modifier {modifier}"
    if not isinstance(answer, Batch):
        raise _error(f"{source} gave {brief(answer)}; expected a grpokit.Batch.")
    by_decision = tuple(batch.mask.shape)
    by_row = by_decision[:1]
    shapes = {"advantages": [by_row, by_decision], "weights": [by_decision], "kl_weights": [by_row]}
    for name, before in vars(batch).items():
        values = getattr(answer, name)
        if values is before:
            continue
        if name not in shapes:
            raise _error(
                f"{source} gave another {name}. It may change advantages, weights and kl_weights alone. To leave rows "
                "out, return a weight of 0 in rows()."
            )
        _check_values(source, name, values, shapes[name])


def _check_values(source: str, name: str, values: object, shapes: Sequence[tuple[int, ...]]) -> None:
    """Stop unless a modifier's advantages or weights are numbers that can be used, of one of the shapes."""
    is_weight = name != "advantages"
    if not isinstance(values, Tensor):
        given = brief(values)
    elif tuple(values.shape) not in shapes:
        given = f"of the shape {tuple(values.shape)}"
    elif values.requires_grad:
        given = "with a gradient"
    elif is_weight and bool((values < 0).any()):
        given = "below 0"
    else:
        return
    raise _error(
        f"{source} gave {name} {given}; expected numbers{' of at least 0' * is_weight}, without a gradient, of the "
        f"shape {' or '.join(map(str, shapes))}."
    )


def check_objective(answer: object, objective: Objective, *, modifier: str) -> None:
    """Stop unless a modifier gave an objective with the same reduction, and without a KL that was not there before."""
    if not isinstance(answer, Objective):
        raise _error(f"objective() of the modifier {modifier} gave {brief(answer)}; expected a grpokit.Objective.")
    if answer.reduction != objective.reduction:
        raise _error(
            f"objective() of the modifier {modifier} changed the reduction to '{answer.reduction}', after "
            f"'{objective.reduction}' was applied. Set trainer.reduction."
        )
    if answer.needs_reference and not objective.needs_reference:
        raise _error(
            f"objective() of the modifier {modifier} raised kl_coef from 0 to {answer.kl_coef:g}, but nothing was "
            "scored under the reference. Set trainer.kl_coef above 0."
        )


def check_own_metrics(metrics: Any, *, modifier: str) -> None:
    """Stop unless a modifier gave numbers by names, such as a run's files can hold."""
    if not isinstance(metrics, Mapping):
        raise _error(f"metrics() of the modifier {modifier} gave {brief(metrics)}; expected numbers by names.")
    for name, value in metrics.items():
        is_number = isinstance(value, Real)
        if not is_number or abs(value) > _LARGEST:
            raise _error(
                f"metrics() of the modifier {modifier} gave {brief(value)} for '{name}'; expected NaN or a number "
                f"between {-_LARGEST:g} and {_LARGEST:g}."
            )


def check_metrics(further: Mapping[str, float], metrics: Mapping[str, float]) -> None:
    """Stop at a metric of a modifier or a reward that would stand in place of the trainer's own."""
    for name in further:
        if name in metrics or name in ("phase", "phase_step"):
            raise _error(f"A metric of a modifier or a reward is called '{name}', as one of the trainer's. Rename it.")


def check_policy_lag(drawn: int | None, version: int, max_policy_lag: int) -> None:
    """Stop at a rollout whose weights are more than `max_policy_lag` optimizer steps behind."""
    if drawn is not None and not 0 <= version - drawn <= max_policy_lag:
        raise _error(
            f"The rollout was drawn with the weights of version {drawn}, and the policy has version {version} "
            f"(optimizer steps): the limit is trainer.max_policy_lag={max_policy_lag}. Usual causes: an engine that "
            "did not take over the weights in updated(), or a Rollout.version that counts something else.",
        )


def check_gradient(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Stop if no parameter got a gradient."""
    if all(p.grad is None for p in parameters):
        raise _error(
            "No trainable parameter got a gradient. Usual causes: logprobs() uses other modules than the policy's "
            "modules(), or logprobs() runs under no_grad.",
        )


def check_norm(norm: float, *, step: int, update: int) -> None:
    """Stop before an update with a gradient that is not finite, although the loss is."""
    if not math.isfinite(norm):
        raise _error(
            f"The gradient's norm is {norm} in step {step}, update {update}, though the loss is finite; this update "
            "was not made. Usual causes: an infinite derivative in the policy or the objective (the root or the "
            "logarithm of 0), or an overflow in low precision.",
        )


def check_change(changed: bool, *, norm: float, rate: float) -> None:
    """Stop if an update with a gradient of this norm, at this learning rate, changed no weight."""
    if not changed:
        raise _error(
            f"No weight changed in the first update, though the gradient's norm is {norm:.3g} and the learning "
            f"rate {rate:.3g}. Usual causes: the rate is too small for the weights' precision, or the optimizer "
            "holds other parameters than the policy.",
        )


def check_skipped(count: int, *, scale: float) -> None:
    """Stop if the loss scaler, whose scale has fallen to `scale`, has skipped too many updates in a row."""
    if count >= 20:
        raise _error(
            f"The loss scaler skipped {count} updates in a row, and its scale fell to {scale:.3g}: the gradient is not "
            "finite at any scale. Use mixed_precision: bf16, or a lower learning rate.",
        )


@dataclass(frozen=True, kw_only=True)
class LogprobDiffLimit:
    """The largest allowed difference, in nats, between two log-probs of the same decisions.

    Measured with a 12-layer transformer with random weights (8,192 tokens), between a sampler with a key-value cache
    and a full forward pass. In fp32 they differ by up to 8.5e-6 on average and 4.1e-5 at most. The smallest of the
    usual mistakes (a temperature of 0.9 in one of the two) makes 0.07 and 0.25. In bf16 the two passes differ by 0.005
    to 0.08 on average, so only gross mistakes can be noticed there (dropout left on: 0.3 to 6).
    """

    mean: float  # over the decisions of a step
    largest: float  # of a single one; infinite in low precision, where rare tokens may differ a lot

    @classmethod
    def of(cls, mean: float | None, *, low_precision: bool) -> LogprobDiffLimit:
        """The limits for a mean; None stands for the usual mean of the precision."""
        if low_precision:
            return cls(mean=0.1 if mean is None else mean, largest=math.inf)
        mean = 1e-4 if mean is None else mean
        return cls(mean=mean, largest=10 * mean)

    def exceeded(self, mean: float, largest: float) -> bool:
        """Whether measured differences are too large; NaN means that nothing was measured, and is not too large."""
        return mean > self.mean or largest > self.largest

    def __str__(self) -> str:
        if self.largest == math.inf:
            return f"{self.mean:g} on average in low precision"
        return f"{self.mean:g} on average and {self.largest:g} at most in fp32"


def check_logprob_diff(mean: float, largest: float, limit: LogprobDiffLimit, *, step: int, exact: bool = True) -> None:
    """Stop if the first log-probs of training differ from the rollout's: the importance ratio would not be 1.

    `exact` is False for an engine, which is not meant to compute as the policy does.
    """
    if not limit.exceeded(mean, largest):
        return
    if not exact:
        raise RunError(
            f"In step {step} the sampler states other log-probs than the policy has for the same decisions: they "
            f"differ by {mean:.3g} on average and {largest:.3g} at most; the limit is {limit}. Usual causes: an "
            "engine with another base model or another quantisation, or one that states log-probs from before "
            "sampling. If it is known to be less exact, raise trainer.max_logprob_diff, with a correction."
        )
    raise RunError(
        f"In step {step} logprobs() gives other log-probs than the rollout, before any update: they differ by "
        f"{mean:.3g} on average and {largest:.3g} at most; the limit is {limit}. The importance ratio would not "
        "start at 1. Usual causes: temperature, top-k, top-p or guidance in only one of the two, dropout left on, "
        "prompt or padding tokens scored, weights that the sampler does not share. `grpokit check` finds the "
        "cause. For a sampler that is known to be less exact, raise trainer.max_logprob_diff."
    )
