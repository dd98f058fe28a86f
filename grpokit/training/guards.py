"""Guards: what is measured while a run goes on, and stops it where training would be silently wrong.

Each says the measured figure, the usual causes and the remedy. The checks of shapes, groups and slices stand in
`checked_policy`, those of memory in `out_of_memory`, those of rewards in `grpokit.rewards`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.errors import RunError
from grpokit.rewards.scoring import Scores
from grpokit.training.checked_policy import CheckedPolicy, not_finite
from grpokit.training.parts import State
from grpokit.types import Rollout


@dataclass(frozen=True, kw_only=True)
class LogprobDiffLimit:
    """How far, in nats, two scorings of the same decisions may lie apart.

    In fp32 a sampler with a key-value cache and a full forward pass of a 12-layer transformer with random weights
    (8,192 tokens) differ by up to 8.5e-6 in the mean and 4.1e-5 at most; the smallest of the usual mistakes that was
    tried (a temperature of 0.9 in one of the two) by 0.07 and 0.25. In bf16 the same two passes differ by 0.005 to
    0.08 in the mean, so there only gross mistakes can be told apart (dropout left on: 0.3 to 6).

    Attributes:
        mean: over the decisions of a step.
        largest: of one decision; infinite in low precision, where rare tokens may be far off.
    """

    mean: float
    largest: float

    @classmethod
    def of(cls, given: float | None, *, low_precision: bool) -> LogprobDiffLimit:
        """The limit of a precision, or the given mean with the ratio of the two kept."""
        if low_precision:
            return cls(mean=0.1 if given is None else given, largest=math.inf)
        mean = 1e-4 if given is None else given
        return cls(mean=mean, largest=10 * mean)

    def exceeded(self, mean: float, largest: float) -> bool:
        """Whether measured differences are too large; NaN, where nothing was measured, is not."""
        return mean > self.mean or largest > self.largest

    def __str__(self) -> str:
        if self.largest == math.inf:
            return f"{self.mean:g} in the mean in low precision"
        return f"{self.mean:g} in the mean and {self.largest:g} at most in fp32"


def check_logprob_diff(mean: float, largest: float, limit: LogprobDiffLimit, *, step: int) -> None:
    """Stop where the first log-probs of training are not those of the rollout: the ratio would not be 1.

    Raises:
        RunError: with the measured difference.
    """
    if limit.exceeded(mean, largest):
        raise RunError(
            f"In step {step} logprobs() gives other log-probs than the rollout, before any update: they differ by "
            f"{mean:.3g} in the mean and {largest:.3g} at most; the limit is {limit}. The ratio would not start at 1. "
            "Usual causes: temperature, top-k, top-p or guidance in one of the two only, dropout left on, prompt or "
            "padding tokens scored, weights that the sampler does not share. `grpokit check` finds which; a sampler "
            "that is known to be less exact gets a larger trainer.max_logprob_diff."
        )


def check_finite(
    loss: float, policy: CheckedPolicy, rollout: Rollout, size: int, *, rows: Tensor, step: int, update: int
) -> None:
    """Stop before an update whose loss is no number, and find the row that it comes from.

    Args:
        loss: of the update.
        policy: scores the rows again, to find the cause.
        rollout: the rows of the update.
        size: rows at a time.
        rows: their numbers in the step.
        step: number of the step.
        update: number of the update in it.

    Raises:
        RunError: with the row, its prompt and the decision.
    """
    if math.isfinite(loss):
        return
    found = not_finite(rollout, policy.all_logprobs(rollout, size).logprobs, rows)
    cause = (
        f"logprobs() gives {found}"
        if found
        else "the new log-probs are finite, so it comes from the objective, the reference or the advantages"
    )
    raise RunError(
        f"The loss is {loss} in step {step}, update {update}; this update was not made: {cause}. Usual causes: a "
        "learning rate that is too high, or an overflow in low precision."
    )


def check_advantages(advantages: Tensor, rollout: Rollout) -> None:
    """Stop where the advantage function gave other than finite numbers, one per row or one per decision.

    Raises:
        RunError: with what it gave.
    """
    shapes = ((rollout.rows,), tuple(rollout.mask.shape))
    if tuple(advantages.shape) not in shapes or not bool(advantages.isfinite().all()):
        raise RunError(
            f"The advantage function gave {tuple(advantages.shape)} values, "
            f"{int((~advantages.isfinite()).sum())} of them not finite; expected finite numbers, one per row "
            f"{shapes[0]} or one per decision {shapes[1]}."
        )


class ZeroStd:
    """Watches for steps with zero-std groups alone: every advantage is 0, since each group's totals are equal.

    After too many in a row there are two cases. Where the reward is at least as high as in any step with spread, the
    policy has converged, and `converged` says so; else something is wrong, and `look` raises.

    Args:
        most: how many in a row are too many; None for any number.
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.best = self.streak_best = -math.inf  # mean rewards, of steps with spread and of those being counted
        self.count, self.warned, self.converged = 0, False, ""

    def look(self, scores: Scores, advantages: Tensor, *, step: int) -> list[str]:
        """Take in a step; returns warnings.

        Args:
            scores: of the step's B rows, without monitors.
            advantages: [B] or [B, T].
            step: its number, for messages.

        Raises:
            RunError: nothing to learn from for too long.
        """
        reward = float(scores.totals.nanmean())
        if bool(advantages.any()):
            self.count, self.streak_best = 0, -math.inf
            self.best = max(self.best, reward) if reward == reward else self.best
            return []
        self.count += 1
        self.streak_best = max(self.streak_best, reward) if reward == reward else self.streak_best
        columns = zip(scores.names, scores.matrix.T, strict=True)
        spread = "; ".join(_spread(name, column, scores.groups) for name, column in columns)
        if self.most is not None and self.count >= self.most:
            stretch = (
                f"For {self.count} steps in a row all samples of every group got the same rewards, so there was "
                f"nothing to learn from. In step {step}: {spread}."
            )
            if math.isfinite(self.best) and self.streak_best >= self.best:
                self.converged = (
                    f"{stretch} No step had a higher mean reward, so the policy has converged. Raise "
                    "trainer.max_zero_std_steps to go on all the same."
                )
                return [self.converged]
            raise RunError(
                f"{stretch} Usual causes: a task too hard for any sample; a reward that cannot tell these samples "
                "apart; a temperature too low for samples to differ. Change the prompts or the rewards, or raise "
                "trainer.max_zero_std_steps (null never stops)."
            )
        if self.warned:
            return []
        self.warned = True
        limit = "" if self.most is None else f" If this goes on for {self.most} steps, the run stops."
        return [
            f"In step {step} all samples of every group got the same rewards, so there was nothing to learn from: "
            f"{spread}.{limit}"
        ]

    def state(self) -> State:
        """What a resumed run counts on from."""
        bests = {"best": self.best, "streak_best": self.streak_best}
        finite = {name: value if math.isfinite(value) else None for name, value in bests.items()}
        return {"most": self.most, "count": self.count, "warned": self.warned, "converged": self.converged, **finite}

    def restore(self, state: State) -> None:
        """Read what `state` gave; a run with another limit has not converged by it."""
        self.count, self.warned = int(state.get("count", 0)), bool(state.get("warned", False))
        self.best, self.streak_best = (
            -math.inf if state.get(name) is None else float(state[name]) for name in ("best", "streak_best")
        )
        self.converged = str(state.get("converged", "")) if state.get("most") == self.most else ""


def _spread(name: str, column: Tensor, groups: Tensor) -> str:
    known = column[~column.isnan()]
    if not len(known):
        return f"'{name}' scored no row"
    low, high = float(known.min()), float(known.max())
    if low == high:
        return f"'{name}' gave {low:g} to all {len(known)} rows that it scored"
    scored = [column[(groups == group) & ~column.isnan()] for group in groups.unique()]
    same = all(len(part.unique()) < 2 for part in scored)
    return f"'{name}' gave {low:g} to {high:g}" + (", the same inside each group" if same else ", which did not count")


def check_gradient(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Stop where no parameter got a gradient.

    Raises:
        RunError: with the usual causes.
    """
    if all(p.grad is None for p in parameters):
        raise RunError(
            "No trainable parameter got a gradient. Usual causes: the policy's modules() are not the ones that "
            "logprobs() uses, logprobs() runs under no_grad, or every decision is masked."
        )


def check_norm(norm: float, *, step: int, update: int) -> None:
    """Stop before an update whose gradient is no number, though its loss was one.

    Raises:
        RunError: with the norm.
    """
    if not math.isfinite(norm):
        raise RunError(
            f"The gradient's norm is {norm} in step {step}, update {update}, though the loss is finite; this update "
            "was not made. Usual causes: an infinite slope in the policy or the objective (the root or the logarithm "
            "of 0), or an overflow in low precision."
        )


class SkippedUpdates:
    """Counts the updates in a row that a loss scaler skipped, because the gradient was not finite at its scale."""

    MOST = 20

    def __init__(self) -> None:
        self.count = 0

    def look(self, *, skipped: bool, scale: float) -> None:
        """Take in an update.

        Args:
            skipped: whether it was.
            scale: the scaler's after it.

        Raises:
            RunError: too many in a row.
        """
        self.count = self.count + 1 if skipped else 0
        if self.count >= self.MOST:
            raise RunError(
                f"The loss scaler skipped {self.count} updates in a row, and its scale fell to {scale:.3g}: the "
                "gradient is not finite at any scale. Use mixed_precision: bf16, or a lower learning rate."
            )

    def state(self) -> State:
        """How many in a row."""
        return {"count": self.count}

    def restore(self, state: State) -> None:
        """Read what `state` gave."""
        self.count = int(state.get("count", 0))


class NoUpdate:
    """Watches that the first update with a gradient moves some weight.

    Args:
        parameters: what the optimizer should hold.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.seen = False

    @contextmanager
    def watch(self, *, norm: float, rate: float) -> Iterator[None]:
        """Around an update.

        Args:
            norm: of its gradient.
            rate: its learning rate.

        Raises:
            RunError: no weight changed.
        """
        if self.seen or norm == 0 or rate == 0:
            yield
            return
        before = self._sums()
        yield
        if torch.equal(before, self._sums()):
            raise RunError(
                f"No weight changed in the first update, though the gradient's norm is {norm:.3g} and the learning "
                f"rate {rate:.3g}. Usual causes: the rate is too small for the weights' precision, or the optimizer "
                "holds other parameters than the policy."
            )
        self.seen = True

    def _sums(self) -> Tensor:
        """Two sums per parameter in fp64, [n, 2]: any real update changes some of them."""
        with torch.no_grad():
            return torch.stack(
                [
                    torch.stack([p.sum(dtype=torch.float64), torch.linalg.vector_norm(p, dtype=torch.float64)])
                    for p in self.parameters
                ]
            )
