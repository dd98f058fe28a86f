"""What a process does while others have more micro-batches: with sharded weights all must make the same passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grpokit.errors import RunError
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.micro_batches import Batch
from grpokit.training.rollout_calls import on, shortest_row
from grpokit.training.world import World
from grpokit.types import Rollout


@dataclass(frozen=True, kw_only=True)
class Spare:
    """A micro-batch that changes nothing.

    Attributes:
        passes: the micro-batches of the process with the most, from the number of the own; all processes must ask.
        row: of any sample, with weights of zero.
        slices: of its decisions; every micro-batch is scored in so many passes.
    """

    passes: Callable[[int], int]
    row: Batch
    slices: int


def spare(rollout: Rollout, policy: CheckedPolicy, world: World, *, old: bool, reference: bool) -> Spare | None:
    """One for a step, of a short row; a process whose rows decide nothing is sent one. None if no row decides anything.

    Args:
        rollout: of the step, this process's rows.
        policy: the policy.
        world: the processes, which all call this.
        old: whether the old log-probs are known before the updates.
        reference: whether the reference's are.

    Raises:
        RunError: the processes have different numbers of slices.
    """
    row = shortest_row(rollout)
    has_row = world.each(lambda: row is not None)
    if not any(has_row):
        return None
    if not all(has_row):
        giver = has_row.index(True)
        given = world.each(lambda: on(row, "cpu") if row is not None and world.rank == giver else None)[giver]
        row = row or given
    assert row is not None
    row = on(row, rollout.old.logprobs.device)
    slices = len(policy.slices(row))
    if len(set(world.each(lambda: slices))) > 1:
        raise RunError(
            "run.sharding needs a policy with as many slices() in every process, and here they depend on the rows. "
            "Leave run.sharding out."
        )
    batch = Batch(
        rollout=row,
        old=row.old if old else None,
        fresh=False,
        advantages=row.old.logprobs.new_zeros(1),
        reference=row.old if reference else None,
        weights=torch.zeros_like(row.old.logprobs),
    )
    return Spare(passes=lambda own: max(world.each(lambda: own)), row=batch, slices=slices)
