"""Guards: measurements during a run that stop it where training would be silently wrong.

Each message has the measured number, the usual causes and the remedy. Other modules check shapes, groups and slices
(`checked_policy`), memory (`memory`) and rewards (`grpokit.rewards`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from grpokit.errors import RunError, UsageError, shown
from grpokit.processes.team import Team, local
from grpokit.rewards.needs import lacking
from grpokit.rewards.scoring import Scores
from grpokit.rewards.terms import RewardTerm
from grpokit.training.batch import Batch, Limit
from grpokit.training.checked_policy import CheckedPolicy, not_finite
from grpokit.training.passes import all_logprobs
from grpokit.training.state import State
from grpokit.types import Prompt, Rollout


def check_finite(loss: float, policy: CheckedPolicy, batch: Batch, limit: Limit, *, step: int, update: int) -> None:
    """Stop before an update with a loss that is not finite, and find the row behind it.

    Args:
        loss: of the update.
        policy: scores the rows again, to find the cause.
        batch: the rows of the update.
        limit: the most that a micro-batch holds.
        step: number of the step.
        update: number of the update in the step.

    Raises:
        RunError: with the row, its prompt and the decision.
    """
    if math.isfinite(loss):
        return
    logprobs = all_logprobs(policy, batch.rollout, limit).logprobs
    place = not_finite(batch.rollout, logprobs, batch.numbers)
    cause = (
        f"logprobs() gives {place}"
        if place
        else "the new log-probs are finite, so it comes from the objective, the reference or the advantages"
    )
    raise RunError(
        f"The loss is {loss} in step {step}, update {update}; this update was not made: {cause}. Usual causes: a "
        "learning rate that is too high, or an overflow in low precision.",
        page="guards#while-it-runs",
    )


def check_scored(scores: Scores, terms: Sequence[RewardTerm], prompts: Sequence[Prompt]) -> None:
    """Stop if a reward could score no sample of the first step, and did not fail: the data lack what it needs.

    Args:
        scores: of the first step's B rows.
        terms: the rewards.
        prompts: of the step. Where a reward knows that it cannot score any of them, other steps have others.

    Raises:
        UsageError: with the probable cause.
    """
    for i, term in enumerate(terms):
        if term.monitor or scores.failed[i] or not bool(scores.matrix[:, i].isnan().all()):
            continue
        if term.unscorable is not None and all(map(term.unscorable, prompts)):
            continue
        targets, images = any(p.target is not None for p in prompts), any(p.images for p in prompts)
        where = shown(prompts[0].text)
        lacks = [lacking(role, prompts) for role, there in (("target", targets), ("image", images)) if not there]
        raise UsageError(
            f"The reward '{term.name}' could score no sample of the first step, so it would train nothing. Of its "
            f"prompts, first {where}: {' and '.join(lacks) or 'they have targets and source pictures'}. "
            "Give the prompts what it reads, or take it out (weight: 0 only measures it). One that can score some "
            "prompts only says so with `unscorable`.",
            page="guards#before-the-first-step",
        )


def check_advantages(advantages: Tensor, rows: int, decisions: int | None = None) -> None:
    """Stop unless the advantage function gave finite numbers, one per row or one per decision.

    Args:
        advantages: of all rows.
        rows: B.
        decisions: T, or None where it does not matter yet.

    Raises:
        RunError: with the shape and the number of bad values.
    """
    shapes = ((rows,), (rows, advantages.shape[-1] if decisions is None and advantages.ndim == 2 else decisions))
    if tuple(advantages.shape) not in shapes or not bool(advantages.isfinite().all()):
        raise RunError(
            f"The advantage function gave {tuple(advantages.shape)} values, "
            f"{int((~advantages.isfinite()).sum())} of them not finite; expected finite numbers, one per row "
            f"{shapes[0]} or one per decision {shapes[1]}.",
            page="guards#while-it-runs",
        )


def check_age(rollout: Rollout, version: int, max_age: int) -> None:
    """Stop at a rollout of weights that are too old.

    Args:
        rollout: with the version of its weights.
        version: of the weights now, in optimizer steps.
        max_age: how many of these the rollout may be behind.

    Raises:
        RunError: with both versions.
    """
    drawn = version if rollout.version is None else rollout.version
    if not 0 <= version - drawn <= max_age:
        raise RunError(
            f"The rollout was drawn with the weights of version {drawn}, and the policy has version {version} "
            f"(optimizer steps): the limit is trainer.max_age={max_age}. Usual causes: an engine that did not take "
            "over the weights in updated(), or a Rollout.version that counts something else.",
            page="guards#while-it-runs",
        )


class ZeroStd:
    """Watches for steps with only zero-std groups: each group's totals are equal, so every advantage is 0.

    After `most` such steps in a row there are two cases. If the reward is at least as high as in any step with spread,
    the policy has converged, and `converged` says so. Otherwise something is wrong, and `look` raises.

    A single reward that has never told the samples of a group apart in `FLAT` steps is said once, too.

    Args:
        most: how many steps in a row end the training; None for no limit.
    """

    FLAT = 3

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.flat: dict[str, int | None] = {}  # reward -> steps in which others taught alone; None: it is settled
        self.best = self.streak_best = -math.inf  # mean reward, of steps with spread and of the current streak
        self.count, self.warned, self.converged = 0, False, ""

    def look(self, scores: Scores, advantages: Tensor, *, step: int) -> list[str]:
        """Count a step; returns warnings.

        Args:
            scores: of the step's B rows, without monitors.
            advantages: [B] or [B, T].
            step: its number, for messages.

        Raises:
            RunError: too many such steps in a row, without convergence.
        """
        reward = float(scores.totals.nanmean())
        if bool(advantages.any()):
            self.count, self.streak_best = 0, -math.inf
            self.best = max(self.best, reward) if reward == reward else self.best
            return self._flat(scores, step)
        self.count += 1
        self.streak_best = max(self.streak_best, reward) if reward == reward else self.streak_best
        columns = zip(scores.names, scores.matrix.T, strict=True)
        spread = "; ".join(_spread(name, column, scores.groups) for name, column in columns)
        if self.most is not None and self.count >= self.most:
            stretch = (
                f"For {self.count} steps in a row, all samples of every group got the same rewards, so there was "
                f"nothing to learn from. In step {step}: {spread}."
            )
            if math.isfinite(self.best) and self.streak_best >= self.best:
                self.converged = (
                    f"{stretch} No step had a higher mean reward, so the policy has converged. Raise "
                    "trainer.max_zero_std_steps to continue anyway."
                )
                return [self.converged]
            raise RunError(
                f"{stretch} Usual causes: the task is too hard for every sample; the reward gives all these samples "
                "the same score; the temperature is too low for samples to differ. Change the prompts or the rewards, "
                "or raise trainer.max_zero_std_steps (null never stops).",
                page="guards#while-it-runs",
            )
        if self.warned:
            return []
        self.warned = True
        limit = "" if self.most is None else f" If this goes on for {self.most} steps, the run stops."
        return [
            f"In step {step} all samples of every group got the same rewards, so there was nothing to learn from: "
            f"{spread}.{limit}"
        ]

    def _flat(self, scores: Scores, step: int) -> list[str]:
        warnings = []
        for name, column in zip(scores.names, scores.matrix.T, strict=True):
            steps = self.flat.get(name, 0)
            self.flat[name] = steps = None if steps is None or not _is_flat(column, scores.groups) else steps + 1
            if steps == self.FLAT:
                self.flat[name] = None
                warnings.append(
                    f"In {self.FLAT} steps the reward '{name}' has not told the samples of any group apart, so it "
                    f"taught nothing; the others did. In step {step}: {_spread(name, column, scores.groups)}. Usual "
                    "causes: the prompts lack what it reads, or it is too hard or too easy for every sample."
                )
        return warnings

    def state_dict(self) -> State:
        """The counts and the best rewards."""
        bests = {"best": self.best, "streak_best": self.streak_best}
        finite = {name: value if math.isfinite(value) else None for name, value in bests.items()}
        return {
            "most": self.most,
            "count": self.count,
            "warned": self.warned,
            "converged": self.converged,
            "flat": {**self.flat},
            **finite,
        }

    def load_state_dict(self, state: State) -> None:
        """Take over a result of `state_dict`; under another limit the run counts as not converged."""
        self.count, self.warned = int(state.get("count", 0)), bool(state.get("warned", False))
        self.best, self.streak_best = (
            -math.inf if state.get(name) is None else float(state[name]) for name in ("best", "streak_best")
        )
        self.flat = {**state.get("flat", {})}
        self.converged = str(state.get("converged", "")) if state.get("most") == self.most else ""


def _spread(name: str, column: Tensor, groups: Tensor) -> str:
    values = column[~column.isnan()]
    if not len(values):
        return f"'{name}' scored no row"
    low, high = float(values.min()), float(values.max())
    if low == high:
        return f"'{name}' gave {low:g} to all {len(values)} rows that it scored"
    reason = "the same inside each group" if _is_flat(column, groups) else "which did not count"
    return f"'{name}' gave {low:g} to {high:g}, {reason}"


def _is_flat(column: Tensor, groups: Tensor) -> bool:
    """Whether a reward gave all rows of each group that it scored the same."""
    per_group = [column[(groups == group) & ~column.isnan()] for group in groups.unique()]
    return all(len(part.unique()) < 2 for part in per_group)


def check_gradient(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Stop if no parameter got a gradient.

    Raises:
        RunError: with the usual causes.
    """
    if all(p.grad is None for p in parameters):
        raise RunError(
            "No trainable parameter got a gradient. Usual causes: logprobs() uses other modules than the policy's "
            "modules(), or logprobs() runs under no_grad.",
            page="guards#while-it-runs",
        )


def check_norm(norm: float, *, step: int, update: int) -> None:
    """Stop before an update with a gradient that is not finite, although the loss is.

    Raises:
        RunError: with the norm.
    """
    if not math.isfinite(norm):
        raise RunError(
            f"The gradient's norm is {norm} in step {step}, update {update}, though the loss is finite; this update "
            "was not made. Usual causes: an infinite derivative in the policy or the objective (the root or the "
            "logarithm of 0), or an overflow in low precision.",
            page="guards#while-it-runs",
        )


class SkippedUpdates:
    """Counts consecutive updates that the loss scaler skipped because the gradient was not finite."""

    MOST = 20

    def __init__(self) -> None:
        self.count = 0

    def look(self, *, skipped: bool, scale: float) -> None:
        """Count an update.

        Args:
            skipped: whether the scaler skipped it.
            scale: the scaler's scale after it.

        Raises:
            RunError: too many in a row.
        """
        self.count = self.count + 1 if skipped else 0
        if self.count >= self.MOST:
            raise RunError(
                f"The loss scaler skipped {self.count} updates in a row, and its scale fell to {scale:.3g}: the "
                "gradient is not finite at any scale. Use mixed_precision: bf16, or a lower learning rate.",
                page="guards#while-it-runs",
            )

    def state_dict(self) -> State:
        """The count."""
        return {"count": self.count}

    def load_state_dict(self, state: State) -> None:
        """Take over a result of `state_dict`."""
        self.count = int(state.get("count", 0))


class NoUpdate:
    """Checks that the first update with a gradient changes some weight.

    Args:
        parameters: the trainable parameters.
        team: the processes, of which each may have a part of them.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], team: Team) -> None:
        self.parameters, self.team = parameters, team
        self.seen = False

    @contextmanager
    def watch(self, *, norm: float, rate: float) -> Iterator[None]:
        """Wrap an update.

        Args:
            norm: of the update's gradient.
            rate: the update's learning rate.

        Raises:
            RunError: no weight changed.
        """
        if self.seen or norm == 0 or rate == 0:
            yield
            return
        before = self._sums()
        yield
        if all(self.team.gather(torch.equal(before, self._sums()))):
            raise RunError(
                f"No weight changed in the first update, though the gradient's norm is {norm:.3g} and the learning "
                f"rate {rate:.3g}. Usual causes: the rate is too small for the weights' precision, or the optimizer "
                "holds other parameters than the policy.",
                page="guards#while-it-runs",
            )
        self.seen = True

    def _sums(self) -> Tensor:
        """The sum and the norm of each parameter in fp64, [n, 2]; any real update changes some of them."""
        with torch.no_grad():
            return torch.stack(
                [
                    torch.stack([p.sum(dtype=torch.float64), torch.linalg.vector_norm(p, dtype=torch.float64)]).cpu()
                    for p in map(local, self.parameters)  # offloaded ones are on the CPU, the others on the device
                ]
            )
