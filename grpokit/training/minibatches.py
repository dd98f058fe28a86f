"""The rows that an optimizer step learns from, with what their loss needs.

An optimizer step takes whole groups. Which ones is decided on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpokit.errors import RunError
from grpokit.objectives import reduction_weights
from grpokit.processes.team import Team
from grpokit.sampling import STREAMS, permutation
from grpokit.settings import Reduction
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.rollout_parts import AllRows
from grpokit.types import Decisions, Rollout


def minibatch_rows(groups: Tensor, count: int, *, key: Sequence[int]) -> list[Tensor]:
    """The rows of each of the `count` optimizer steps of one pass: groups [B] shuffled by seed, step and pass."""
    ids = groups.unique()  # ascending
    if count > 1:
        order = permutation(len(ids), STREAMS["minibatch"], *key)
        ids = ids[torch.tensor(order)]
    steps = ids.split(len(ids) // count)
    return [torch.isin(groups, step).nonzero()[:, 0] for step in steps]


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What each of the B rows of a step teaches, in all processes; on the CPU.

    Attributes:
        advantages: [B], or [B, T] with one for each decision.
        weights: [B] factors of the rows' losses. A row of weight 0 is left out: no pass with gradient scores it, and no
            normaliser counts it.
        kl_weights: [B] factors of the rows' KL.
    """

    advantages: Tensor
    weights: Tensor
    kl_weights: Tensor

    @classmethod
    def of(cls, advantages: Tensor) -> Signal:
        """The signal of rows that all count the same."""
        ones = torch.ones(len(advantages), dtype=torch.float64)
        return cls(advantages=advantages, weights=ones, kl_weights=ones.clone())


@dataclass(frozen=True, kw_only=True)
class FixedLogprobs:
    """What passes without gradient say of a rollout's decisions, as far as it is needed; no update changes it.

    Attributes:
        old: [b, T] log-probs; None: those of the first pass with gradient, detached.
        reference: [b, T] log-probs; None: not needed, or scored beside each slice.
        entropy: [b, T] of the decisions, if a modifier needs it.
    """

    old: Decisions | None = None
    reference: Decisions | None = None
    entropy: Tensor | None = None

    def select(self, index: Tensor) -> FixedLogprobs:
        """The same of some rows."""
        return FixedLogprobs(**_select(self, index))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of an optimizer step, or of a micro-batch, with what their loss needs.

    Attributes:
        rollout: of b rows and T decisions.
        numbers: [b] int64 on the CPU, the rows' places in the `Signal` of the step.
        mask: [b, T] bool, the decisions that count.
        advantages: [b] or [b, T].
        weights: [b, T] factors of the decisions' losses, normalised over the optimizer step that the rows belong to.
        kl_weights: [b] factors of the rows' KL.
        old: [b, T] log-probs; None: those of the first pass, detached.
        reference: [b, T] log-probs; None: not needed, or scored beside each slice.
        entropy: [b, T] of the decisions before any update, if a modifier needs it.
        before_updates: no weight has changed since the step began.
        filler: a row that changes nothing, where all processes must make the same passes.
    """

    rollout: Rollout
    numbers: Tensor
    mask: Tensor
    advantages: Tensor
    weights: Tensor
    kl_weights: Tensor
    old: Decisions | None
    reference: Decisions | None
    entropy: Tensor | None
    before_updates: bool
    filler: Batch | None

    def select(self, rows: Tensor) -> Batch:
        """The batch of some of its rows (int64 indices on the CPU)."""
        index = rows.to(self.weights.device, non_blocking=True)
        return replace(
            self,
            rollout=self.rollout.select(rows),
            numbers=self.numbers[rows],
            mask=self.mask[index],
            advantages=self.advantages[index],
            weights=self.weights[index],
            kl_weights=self.kl_weights[index],
            **_select(self, index),
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on `device`; its numbers stay on the CPU."""
        moved: dict[str, Any] = {}
        for name, x in vars(self).items():
            if isinstance(x, Tensor | Decisions | Rollout) and name != "numbers":
                moved[name] = x.to(device)
        return replace(self, **moved)


def _select(fixed: FixedLogprobs | Batch, index: Tensor) -> dict[str, Any]:
    """The fields of `FixedLogprobs`, of some rows."""
    return {
        "old": fixed.old and fixed.old.select(index),
        "reference": fixed.reference and fixed.reference.select(index),
        "entropy": None if fixed.entropy is None else fixed.entropy[index],
    }


def minibatch(
    rollout: Rollout,
    fixed: FixedLogprobs,
    signal: Signal,
    rows: Tensor,
    all_rows: AllRows,
    *,
    reduction: Reduction,
    before_updates: bool,
    filler: Batch | None,
) -> Batch:
    """This process's part of an optimizer step, with weights that are fixed before any cutting.

    `rollout` and `fixed` are of this process's rows, `signal` and `all_rows` of those of all processes, whose places in
    the optimizer step are `rows`.
    """
    share = all_rows.share
    rows = rows[signal.weights[rows] != 0]
    own = rows[(rows >= share.start) & (rows < share.stop)]
    scores = rollout.old.logprobs
    if len(own) < rollout.rows:
        local = own - share.start
        rollout, fixed = rollout.select(local), fixed.select(local.to(scores.device, non_blocking=True))
    weights = reduction_weights(
        rollout.mask,
        reduction,
        rows=len(rows),
        decisions=int(all_rows.decided[rows].sum()),
        max_decisions=rollout.max_decisions,
    )
    factors = signal.weights[own].to(weights.device, non_blocking=True)[:, None]  # [b] -> [b, 1]
    advantages = signal.advantages[own]
    if advantages.ndim == 2:
        advantages = advantages[:, : rollout.mask.shape[1]]
    return Batch(
        rollout=rollout,
        numbers=own,
        mask=rollout.mask,
        advantages=advantages.to(scores, non_blocking=True),
        weights=weights * factors,
        kl_weights=signal.kl_weights[own].to(scores, non_blocking=True),
        **vars(fixed),
        before_updates=before_updates,
        filler=filler,
    )


def filler_for(rollout: Rollout, fixed: FixedLogprobs, policy: CheckedPolicy, team: Team) -> Batch | None:
    """A filler for processes that must make the same passes: a short row of any of them; None if none has a pass."""
    filler = _shortest_row(rollout, fixed)
    has_row = team.gather(filler is not None)
    if not any(has_row):  # no row decides anything
        return None
    if not all(has_row):
        giver = has_row.index(True)
        own = filler.to("cpu") if filler is not None and team.rank == giver else None
        offers = team.gather(own)  # which all processes call
        filler = filler or offers[giver]
    assert filler is not None
    filler = filler.to(rollout.mask.device)
    counts = team.gather(len(policy.slices(filler.rollout)))
    if len(set(counts)) > 1:
        raise RunError(
            "run.sharding needs a policy with as many slices() in every process, and here they depend on the rows. "
            "Leave run.sharding out."
        )
    return filler


def _shortest_row(rollout: Rollout, fixed: FixedLogprobs) -> Batch | None:
    """The row with the fewest decisions above none, without weight, output and target; None without such a row."""
    decided = rollout.decided
    if not decided.any():
        return None
    lengths = torch.where(decided > 0, decided, decided.max() + 1)
    row = lengths.argmin()[None]
    rollout, fixed = rollout.select(row), fixed.select(row.to(rollout.mask.device))
    scores = rollout.old.logprobs
    (sample,) = rollout.samples
    prompt = replace(sample.prompt, target=None)
    bare = replace(sample, prompt=prompt, output=None, info={})
    return Batch(
        rollout=replace(rollout, samples=[bare]),
        numbers=torch.zeros(1, dtype=torch.int64),
        mask=torch.zeros_like(rollout.mask),
        advantages=scores.new_zeros(1),
        weights=torch.zeros_like(scores, dtype=torch.float64),
        kl_weights=scores.new_ones(1),
        old=fixed.old,
        reference=fixed.reference,
        entropy=None,
        before_updates=False,
        filler=None,
    )
