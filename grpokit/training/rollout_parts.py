"""The parts of a rollout: it is drawn in several calls of a policy, and each process has some of its rows.

A call draws whole groups if they fit, else a part of one group. Every row has its own seed, so the draws do not depend
on the calls. Shorter parts are padded under the mask. Of the rows of other processes, each knows how many decisions
they have and how their texts ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from grpokit.errors import RunError
from grpokit.processes.team import Team
from grpokit.tracking.step_report import StepReport
from grpokit.types import Decisions, Prompt, Rollout, Seeds, Trace

End: TypeAlias = "tuple[str, int | None]"  # "stop" or "length", and how many tokens the text has, if known


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a policy."""

    prompts: slice  # of the rollout's prompts
    group_size: int  # samples per prompt
    seeds: Seeds


def call_at(row: int, seeds: Seeds, group_size: int, size: int) -> Call:
    """The call that draws a rollout from the row `row` on, in at most `size` rows."""
    prompt, first = divmod(row, group_size)
    if first or size < group_size:
        count, some = min(size, group_size - first), slice(prompt, prompt + 1)
    else:
        end_prompt = min(prompt + size // group_size, len(seeds.group))
        count, some = group_size, slice(prompt, end_prompt)
    end = row + count * (some.stop - some.start)
    share = replace(
        seeds,
        row=seeds.row[row:end],
        group=seeds.group[some],
        group_ids=seeds.group_ids[some],
    )
    return Call(prompts=some, group_size=count, seeds=share)


def concatenate_rollouts(parts: Sequence[Rollout]) -> Rollout:
    """The rollouts of several calls as one, in the order of the parts.

    Of a group in several parts, the first one's entry in `trace.per_group` is used. A part without rows tells what
    holds for all rows, such as the most decisions.
    """
    if len(parts) == 1:
        return parts[0]
    versions = [part.version for part in parts if part.version is not None]
    together: dict[str, Any] = {
        "max_decisions": max(part.max_decisions for part in parts),
        "exact": all(part.exact for part in parts),
        "version": min(versions, default=None),
        "averaged": any(part.averaged for part in parts),
    }
    parts = [part for part in parts if part.rows] or parts[:1]
    if len(parts) == 1:
        return replace(parts[0], **together)
    ids = [group for part in parts for group in part.groups.unique().tolist()]  # in the order of their per_group
    first = [ids.index(group) for group in sorted(set(ids))]
    per_group = _stacked([part.trace.per_group for part in parts], "trace.per_group['{}']")
    fields = ("mask", "weights", "decision_rewards")
    tensors: dict[str, Any] = _stacked([{name: getattr(part, name) for name in fields} for part in parts], "{}")
    return Rollout(
        samples=[*itertools.chain.from_iterable(part.samples for part in parts)],
        groups=torch.cat([part.groups for part in parts]),
        old=Decisions(**_stacked([vars(part.old) for part in parts], "old.{}")),
        action_dims=parts[0].action_dims,
        **together,
        **tensors,
        trace=Trace(
            per_row=_stacked([part.trace.per_row for part in parts], "trace.per_row['{}']"),
            per_group={name: x[first] for name, x in per_group.items()},
        ),
    )


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
        empty = rollout.select(none).to("cpu")
        facts = rollout.groups, rollout.decided, rollout.mask.shape[1], ends, empty
    all_groups, all_decided, widths, all_ends, empties = zip(*team.gather(facts), strict=True)
    parts = [rollout] if rollout else []
    parts += [empty.to(device) for empty in empties if empty is not None]
    whole = concatenate_rollouts(parts)
    start = sum(map(len, all_groups[: team.rank]))
    rows = AllRows(
        groups=torch.cat(all_groups),
        decided=torch.cat(all_decided),
        width=max(widths),
        ends=[*itertools.chain.from_iterable(all_ends)],
        share=slice(start, start + whole.rows),
    )
    return whole, rows


def whole_report(report: StepReport, team: Team, train_prompts: Sequence[Prompt]) -> StepReport:
    """The report with the rows of all processes, in process 0; the others keep theirs."""
    if team.size == 1:
        return report
    no_prompt = Prompt(text="")
    bare = [replace(sample, prompt=no_prompt) for sample in report.rollout.samples]
    parts = team.gather_in_first(replace(report.rollout.to("cpu"), samples=bare))
    if not parts:
        return report
    whole = concatenate_rollouts(parts)
    prompts = [train_prompts[i] for i in report.prompts]
    size = whole.rows // len(prompts)
    samples = []
    for row, sample in enumerate(whole.samples):
        samples.append(replace(sample, prompt=prompts[row // size]))
    return replace(report, rollout=replace(whole, samples=samples))


def _stacked(parts: Sequence[Mapping[str, Any]], label: str) -> dict[str, Tensor]:
    """Each tensor of the first part with those of the others; messages call it by the `label`."""
    names = [name for name, x in parts[0].items() if x is not None]
    return {name: _stack([part[name] for part in parts], label.format(name)) for name in names}


def _stack(parts: Sequence[Tensor], name: str) -> Tensor:
    """Concatenate along rows; a shorter axis 1 is padded with zeros."""
    if len({x.shape[1:] for x in parts}) > 1:
        other_axes = {(x.ndim, *x.shape[2:]) for x in parts}
        if len(other_axes) > 1 or parts[0].ndim < 2:
            raise RunError(
                f"The rollouts of several calls cannot be concatenated: {name} has the shapes "
                f"{', '.join(str(tuple(x.shape)) for x in parts)}; only axis 1, the decisions, may differ. Pad it to "
                "one size in the policy, or raise trainer.rollout_batch_size."
            )
        longest = max(x.shape[1] for x in parts)
        padded = []
        for x in parts:
            padding = x.new_zeros(len(x), longest - x.shape[1], *x.shape[2:])
            padded.append(torch.cat([x, padding], dim=1))
        parts = padded
    return torch.cat(list(parts))
