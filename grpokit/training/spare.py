"""What a process does while others have more micro-batches: with sharded weights all must make the same passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from grpokit.errors import RunError
from grpokit.processes.team import Team
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.micro_batches import Batch
from grpokit.training.rollout_calls import on
from grpokit.types import Decisions, Rollout, Sample


@dataclass(frozen=True, kw_only=True)
class Spare:
    """A micro-batch that changes nothing.

    Attributes:
        row: of any sample, with weights of zero.
        slices: of its decisions; every micro-batch is scored in so many passes.
        team: the processes.
    """

    row: Batch
    slices: int
    team: Team

    def lacking(self, own: int) -> int:
        """How many micro-batches the process with the most has besides `own`, this one's; all processes must ask."""
        return max(self.team.gather(own)) - own


def spare(
    rollout: Rollout, policy: CheckedPolicy, team: Team, *, old: Decisions | None, reference: Decisions | None
) -> Spare | None:
    """One for a step, of a short row; a process whose rows decide nothing is sent one. None if no row decides anything.

    Args:
        rollout: of the step, this process's rows.
        policy: the policy.
        team: the processes, which all call this.
        old: the old log-probs of the rows, if they are known before the updates.
        reference: likewise the reference's.

    Raises:
        RunError: the processes have different numbers of slices.
    """
    row = _shortest_row(rollout, old, reference)
    has_row = team.gather(row is not None)
    if not any(has_row):
        return None
    if not all(has_row):
        giver = has_row.index(True)
        given = team.gather(_moved(row, "cpu") if row is not None and team.rank == giver else None)[giver]
        row = row or given
    assert row is not None
    row = _moved(row, rollout.old.logprobs.device)
    slices = len(policy.slices(row.rollout))
    if len(set(team.gather(slices))) > 1:
        raise RunError(
            "run.sharding needs a policy with as many slices() in every process, and here they depend on the rows. "
            "Leave run.sharding out."
        )
    return Spare(row=row, slices=slices, team=team)


def _shortest_row(rollout: Rollout, old: Decisions | None, reference: Decisions | None) -> Batch | None:
    """The row with the fewest decisions above none, without its output and its target; None without such a row."""
    decided = rollout.host_mask.sum(-1)
    if not decided.any():
        return None
    rows = torch.where(decided > 0, decided, decided.max() + 1).argmin()[None]
    here = rows.to(rollout.old.logprobs.device)
    short = rollout.select(rows)
    (sample,) = short.samples
    bare = Sample(prompt=replace(sample.prompt, target=None), output=None, group=sample.group)
    return Batch(
        rollout=replace(short, samples=[bare]),
        old=old and old.select(here),
        reference=reference and reference.select(here),
        advantages=short.old.logprobs.new_zeros(1),
        weights=torch.zeros_like(short.old.logprobs),
        fresh=False,
    )


def _moved(batch: Batch, device: torch.device | str) -> Batch:
    """The same batch on a device."""
    return replace(
        batch,
        rollout=on(batch.rollout, device),
        old=batch.old and batch.old.to(device),
        reference=batch.reference and batch.reference.to(device),
        advantages=batch.advantages.to(device),
        weights=batch.weights.to(device),
    )
