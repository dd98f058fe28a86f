"""What each process knows of the rows of all: how many decisions each has, and how texts ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor

from grpokit.processes.team import Team
from grpokit.tracking.step_report import StepReport
from grpokit.training.rollout_calls import concatenate_rollouts, on
from grpokit.types import Prompt, Rollout

End: TypeAlias = "tuple[str, int | None]"  # "stop" or "length", and how many tokens the text has, if known


@dataclass(frozen=True, kw_only=True)
class AllRows:
    """Facts about the B rows of a step in all processes, in the order of their groups."""

    groups: Tensor  # [B] int64 group ids
    decided: Tensor  # [B] int64 numbers of decisions
    width: int  # T, the most columns of a process's rollout
    ends: Sequence[End]  # of the texts whose policy tells how they ended
    share: slice  # this process's rows


def gather_rows(rollout: Rollout | None, team: Team, device: torch.device) -> tuple[Rollout, AllRows]:
    """This process's rollout as a part of that of all processes, and the facts about all rows.

    Where it has drawn none, its part is a rollout without rows, on `device`.
    """
    none = torch.zeros(0, dtype=torch.int64)
    facts: tuple[Tensor, Tensor, int, list[End], Rollout | None] = none, none, 0, [], None
    if rollout is not None:
        infos = [sample.info for sample in rollout.samples]
        ended = [info for info in infos if info.get("finish") in ("stop", "length")]
        ends = [(info["finish"], info.get("tokens")) for info in ended]
        decided = rollout.host_mask.sum(-1)
        empty = on(rollout.select(none), "cpu")
        facts = rollout.groups, decided, rollout.mask.shape[1], ends, empty
    all_groups, all_decided, widths, all_ends, empties = zip(*team.gather(facts), strict=True)
    parts = [rollout] if rollout else []
    parts += [on(empty, device) for empty in empties if empty is not None]
    whole = concatenate_rollouts(parts)
    start = sum(map(len, all_groups[: team.rank]))
    rows = AllRows(
        groups=torch.cat(all_groups),
        decided=torch.cat(all_decided),
        width=max(widths),
        ends=[*chain.from_iterable(all_ends)],
        share=slice(start, start + whole.rows),
    )
    return whole, rows


def whole_report(report: StepReport, team: Team, train_prompts: Sequence[Prompt]) -> StepReport:
    """The report with the rows of all processes, in process 0; the others keep theirs."""
    if team.size == 1:
        return report
    no_prompt = Prompt(text="")
    bare = [replace(sample, prompt=no_prompt) for sample in report.rollout.samples]
    parts = team.gather_in_first(replace(on(report.rollout, "cpu"), samples=bare))
    if not parts:
        return report
    whole = concatenate_rollouts(parts)
    prompts = [train_prompts[i] for i in report.prompts]
    size = whole.rows // len(prompts)
    samples = []
    for row, sample in enumerate(whole.samples):
        samples.append(replace(sample, prompt=prompts[row // size]))
    return replace(report, rollout=replace(whole, samples=samples))
