"""What each process knows of the rows of all: how many decisions each has, and how texts ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from torch import Tensor

from grpokit.training.rollout_calls import concatenate_rollouts, on
from grpokit.training.step_report import StepReport
from grpokit.training.world import World
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

    @classmethod
    def of(cls, rollout: Rollout, world: World) -> AllRows:
        """Those of the rollouts of all processes.

        Args:
            rollout: this process's rows.
            world: the processes.
        """
        own = (
            rollout.groups.tolist(),
            rollout.host_mask.sum(-1).tolist(),
            rollout.mask.shape[1],
            [_end(sample.info) for sample in rollout.samples if sample.info.get("finish") in ("stop", "length")],
        )
        groups, decided, widths, ends = zip(*world.each(lambda: own), strict=True)
        before = sum(map(len, groups[: world.rank]))
        return cls(
            groups=[*chain.from_iterable(groups)],
            decided=[*chain.from_iterable(decided)],
            width=max(widths),
            ends=[*chain.from_iterable(ends)],
            start=before,
            stop=before + rollout.rows,
            columns=rollout.mask.shape[1],
        )

    def own(self, x: Tensor) -> Tensor:
        """The rows of this process: [B] or [B, T] -> [b] or [b, t]."""
        return x[self.start : self.stop] if x.ndim == 1 else x[self.start : self.stop, : self.columns]

    def own_groups(self, per_group: Sequence[int]) -> Sequence[int]:
        """What belongs to the groups of this process, of something that every group has."""
        size = max(1, len(self.groups) // len(per_group))
        return per_group[self.start // size : self.stop // size]


def whole_report(report: StepReport, world: World, train_prompts: Sequence[Prompt]) -> StepReport:
    """The report with the rows of all processes, in process 0; the others keep theirs.

    Args:
        report: of the latest step. Its samples go from process to process without their prompts, on the CPU.
        world: the processes, which all call this.
        train_prompts: of the run.
    """
    if world.size == 1:
        return report
    rollout = report.rollout

    def part() -> Rollout:
        bare = [replace(sample, prompt=Prompt(text="")) for sample in rollout.samples]
        return replace(on(rollout, "cpu"), samples=bare)

    gathered = [part for part in world.to_first(part) if part.rows]
    if not gathered:
        return report
    joined = concatenate_rollouts(gathered)
    prompts = [train_prompts[i] for i in report.prompts]
    size = joined.rows // len(prompts)
    samples = [replace(sample, prompt=prompts[row // size]) for row, sample in enumerate(joined.samples)]
    return replace(report, rollout=replace(joined, samples=samples))


def _end(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: info[name] for name in ("finish", "tokens") if name in info}
