"""What each process knows of the rows of all: how many decisions each has, and how texts ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from grpokit.processes.team import Team
from grpokit.tracking.step_report import StepReport
from grpokit.training.rollout_calls import concatenate_rollouts, on
from grpokit.types import Prompt, Rollout


@dataclass(frozen=True, kw_only=True)
class AllRows:
    """Facts about the B rows of a step in all processes, in the order of their groups.

    Attributes:
        groups: B group ids.
        decided: B numbers of decisions.
        width: T, the most columns of a process's rollout.
        ends: `Sample.info` of the texts whose policy tells how they ended.
        start: the first of this process's rows.
        stop: the row behind its last one.
        columns: of this process's rollout.
    """

    groups: Sequence[int]
    decided: Sequence[int]
    width: int
    ends: Sequence[Mapping[str, Any]]
    start: int
    stop: int
    columns: int

    def own(self, x: Tensor) -> Tensor:
        """The rows of this process: [B] or [B, T] -> [b] or [b, t]."""
        return x[self.start : self.stop] if x.ndim == 1 else x[self.start : self.stop, : self.columns]

    def own_groups(self, per_group: Sequence[int]) -> Sequence[int]:
        """What belongs to the groups of this process, of something that every group has."""
        size = max(1, len(self.groups) // len(per_group))
        return per_group[self.start // size : self.stop // size]


def gather_rows(rollout: Rollout | None, team: Team, device: torch.device) -> tuple[Rollout, AllRows]:
    """This process's rollout as a part of that of all processes, and the facts about all rows.

    Args:
        rollout: this process's rows; None where it has drawn none, and then the result has no row.
        team: the processes.
        device: of the rollout that has no row.
    """
    facts = ([], [], 0, []) if rollout is None else _facts(rollout)
    no_row = torch.zeros(0, dtype=torch.int64)
    parts = team.gather((facts, None if rollout is None or team.size == 1 else on(rollout.select(no_row), "cpu")))
    groups, decided, widths, ends = zip(*(facts for facts, _ in parts), strict=True)
    before = sum(map(len, groups[: team.rank]))
    whole = concatenate_rollouts(
        [*([] if rollout is None else [rollout]), *(on(empty, device) for _, empty in parts if empty is not None)]
    )
    rows = AllRows(
        groups=[*chain.from_iterable(groups)],
        decided=[*chain.from_iterable(decided)],
        width=max(widths),
        ends=[*chain.from_iterable(ends)],
        start=before,
        stop=before + whole.rows,
        columns=whole.mask.shape[1],
    )
    return whole, rows


def whole_report(report: StepReport, team: Team, train_prompts: Sequence[Prompt]) -> StepReport:
    """The report with the rows of all processes, in process 0; the others keep theirs.

    Args:
        report: of the latest step. Its samples go from process to process without their prompts, on the CPU.
        team: the processes, which all call this.
        train_prompts: of the run.
    """
    if team.size == 1:
        return report
    bare = [replace(sample, prompt=Prompt(text="")) for sample in report.rollout.samples]
    parts = team.gather_in_first(replace(on(report.rollout, "cpu"), samples=bare))
    if not parts:
        return report
    joined = concatenate_rollouts(parts)
    prompts = [train_prompts[i] for i in report.prompts]
    size = joined.rows // len(prompts)
    samples = [replace(sample, prompt=prompts[row // size]) for row, sample in enumerate(joined.samples)]
    return replace(report, rollout=replace(joined, samples=samples))


def _facts(rollout: Rollout) -> tuple[list[int], list[int], int, list[dict[str, Any]]]:
    """Of its rows: groups, numbers of decisions, columns, and how texts ended."""
    infos = (sample.info for sample in rollout.samples if sample.info.get("finish") in ("stop", "length"))
    ends = [{name: info[name] for name in ("finish", "tokens") if name in info} for info in infos]
    return rollout.groups.tolist(), rollout.host_mask.sum(-1).tolist(), rollout.mask.shape[1], ends
