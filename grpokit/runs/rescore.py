"""Scores a recorded run with another reward, and says how its rankings would have changed.

GRPO learns from rankings inside groups alone, so that is where two rewards are compared: Kendall's tau-b, the best
sample of each group, the signs of the advantages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpokit import advantages, registry
from grpokit.config import presets
from grpokit.errors import DataError, UsageError, counted
from grpokit.rewards.scoring import score
from grpokit.rewards.terms import RewardTerm
from grpokit.run_folder import rollout_record
from grpokit.run_folder.names import check_run_folder
from grpokit.run_folder.rollout_record import Described, Recorded
from grpokit.runs import build, resuming
from grpokit.types import Prompt, Sample


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """One reward over a run, and how the new one's rankings agree with it.

    Attributes:
        first: its mean over the first third of the recorded steps.
        last: its mean over the last third.
        tau: mean of Kendall's tau-b over the compared groups; NaN where there is none.
        best_changed: share of the compared groups in which none of the best samples stays among the best.
        compared: groups in which both rewards tell samples apart.
        groups: all groups.
    """

    first: float
    last: float
    tau: float = math.nan
    best_changed: float = math.nan
    compared: int = 0
    groups: int = 0


@dataclass(frozen=True, kw_only=True)
class Rescored:
    """What another reward says about a recorded run.

    Attributes:
        steps: recorded steps.
        scores: [N] of all samples in them; NaN where it could not score.
        flipped: rows whose advantage would have had the other sign under the new reward alone.
        new: the new reward itself.
        rankings: the recorded rewards by name, and their weighted sum, "reward".
    """

    steps: int
    scores: Tensor
    flipped: int
    new: Ranking
    rankings: Mapping[str, Ranking]


def rescore(
    run: Path,
    name: str,
    params: Mapping[str, Any] | None = None,
    *,
    write: Callable[[Mapping[str, Any]], None] = lambda row: None,
) -> Rescored:
    """Score all recorded steps of a run with another reward.

    Args:
        run: a run folder with a record.
        name: of the reward, as in a config.
        params: its parameters.
        write: gets a mapping for each sample: step, row, group, prompt_index, prompt and score.

    Raises:
        UsageError: no such run, no record, an unknown reward, outputs that were kept as text only, or prompts, targets
            or source pictures that have changed since.
        RewardError: the reward failed.
        RunError: the record is damaged.
    """
    check_run_folder(run)
    term = RewardTerm(name=name.rpartition(":")[2], reward=registry.create("reward", name, params))
    numbers = rollout_record.steps(run)
    if not numbers:
        raise UsageError(f"{run} holds no record of its rollouts. A run keeps one with run.record=true.")
    config, _ = presets.read_config(run)
    kind = build.output_kind(config)
    if kind is not None:
        registry.check_accepts(name, kind, what=f"the policy '{config.policy.use}' makes")
    prompts, _ = build.prompts(config)
    now, sequences = resuming.digests(prompts, None), {"train": prompts, "held_out": None}
    changes, _ = resuming.changed_prompts(run, now, sequences)  # held-out prompts are none of the record
    if "train" in changes:
        raise DataError(f"{run} was started with other {changes['train']}. Restore the data of the run.")
    new: dict[int, Tensor] = {}  # step -> [B] of each
    old: dict[str, dict[int, Tensor]] = {}  # in phases a reward may miss in some steps
    groups: dict[int, Tensor] = {}
    flipped = 0
    for number in numbers:  # one by one, so that memory does not grow with their outputs
        step = rollout_record.read(run, number)
        scores = score([term], _samples(step, prompts)).matrix  # [B, 1]
        for row, value in enumerate(scores[:, 0].tolist()):
            place = {"step": number, "row": row, "group": int(step.groups[row]), "prompt_index": step.prompts[row]}
            write({**place, "prompt": step.texts[row], "score": None if math.isnan(value) else value})
        new[number], groups[number] = scores[:, 0], step.groups
        for column, recorded in zip([*step.reward_names, "reward"], [*step.rewards.T, step.total], strict=True):
            old.setdefault(column, {})[number] = recorded
        flipped += int((advantages.group(scores, torch.ones(1), step.groups) * step.advantages < 0).sum())
    third = max(1, len(numbers) // 3)
    thirds = numbers[:third], numbers[-third:]
    first, last = _means(new, thirds)
    return Rescored(
        steps=len(numbers),
        scores=torch.cat([*new.values()]),
        flipped=flipped,
        new=Ranking(first=first, last=last),
        rankings={column: _ranking(recorded, new, groups, thirds) for column, recorded in old.items()},
    )


def _means(scores: Mapping[int, Tensor], thirds: Sequence[Sequence[int]]) -> list[float]:
    empty = torch.empty(0, dtype=torch.float64)
    return [float(torch.cat([empty, *(scores[i] for i in third if i in scores)]).nanmean()) for third in thirds]


def _ranking(
    old: Mapping[int, Tensor], new: Mapping[int, Tensor], groups: Mapping[int, Tensor], thirds: Sequence[Sequence[int]]
) -> Ranking:
    """Compare two rewards inside each group of each step, over the rows that both could score."""
    taus: list[float] = []
    changed = count = 0
    for number, before in old.items():
        for group in groups[number].unique():
            both = (groups[number] == group) & ~before.isnan() & ~new[number].isnan()
            x, y = before[both], new[number][both]
            count += 1
            if not math.isnan(tau := kendall_tau(x, y)):
                taus.append(tau)
                changed += not bool(((x == x.max()) & (y == y.max())).any())
    compared = len(taus)
    tau, best = (sum(taus) / compared, changed / compared) if taus else (math.nan, math.nan)
    first, last = _means(old, thirds)
    return Ranking(first=first, last=last, tau=tau, best_changed=best, compared=compared, groups=count)


HEADINGS = ("tau", "other best", "groups", "first third", "last third")


def table(result: Rescored, name: str) -> Iterator[tuple[str, ...]]:
    """Rows of `HEADINGS` behind a name: the new reward, then the recorded ones, the weighted sum last."""
    yield f"{name} (new)", "", "", "", _mean(result.new.first), _mean(result.new.last)
    for column, ranking in sorted(result.rankings.items(), key=lambda pair: pair[0] == "reward"):
        tau, best = (f"{ranking.tau:+.3f}", f"{ranking.best_changed:.1%}") if ranking.compared else ("-", "-")
        of = f"{ranking.compared} of {ranking.groups}"
        yield column, tau, best, of, _mean(ranking.first), _mean(ranking.last)


def _mean(mean: float) -> str:
    """A dash where nothing was scored: in phases a reward may miss in a third of the run."""
    return "-" if math.isnan(mean) else f"{mean:.3f}"


def lines(result: Rescored) -> Iterator[str]:
    """The lines below the table."""
    rows, unscored = len(result.scores), int(result.scores.isnan().sum())
    again = f"{counted(rows, 'sample')} of {counted(result.steps, 'step')} scored again"
    yield f"{again}, {unscored} of them could not be scored"
    yield f"{result.flipped} of {rows} advantages ({result.flipped / rows:.1%}) would have had the other sign"
    yield "tau: mean of Kendall's tau-b with the new reward, over the groups in which both tell samples apart"


def kendall_tau(x: Tensor, y: Tensor) -> float:
    """Kendall's tau-b of two rankings [n]: 1 where they agree on every pair, -1 where they disagree on every one.

    Pairs that are tied in one of them count for neither side and shrink the scale (Kendall, 1945). NaN where one of
    the two ties all.

    >>> kendall_tau(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 40.0]))
    1.0
    >>> kendall_tau(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 3.0, 2.0]))  # 2 pairs agree, 1 does not
    0.3333333333333333
    """
    a, b = (torch.sign(v.double()[:, None] - v.double()[None]) for v in (x, y))  # [n] -> [n, n]
    untied = float(a.square().sum()) * float(b.square().sum())
    return float((a * b).sum()) / math.sqrt(untied) if untied else math.nan


def _samples(step: Recorded, prompts: Sequence[Prompt]) -> list[Sample]:
    """The samples of a recorded step, with whole prompts: images, targets and all."""
    whole: dict[int, Prompt] = {}
    samples = []
    for row, (index, text) in enumerate(zip(step.prompts, step.texts, strict=True)):
        if index not in whole:
            whole[index] = prompts[index] if index < len(prompts) else Prompt(text="")
            if whole[index].text != text:
                few = f"there {'is' if len(prompts) == 1 else 'are'} only {counted(len(prompts), 'prompt')} now"
                now = f"that is now {whole[index].text!r}" if index < len(prompts) else few
                raise DataError(
                    f"The run's prompts have changed: step {step.step} was drawn for {text!r} as prompt {index} "
                    f"(counted from 0), but {now}. Restore the data of the run."
                )
        output = step.outputs[row]
        if isinstance(output, Described):
            raise UsageError(
                f"The outputs of step {step.step} cannot be scored again: row {row} is recorded only as "
                f"{output.text[:80]!r}. A record keeps texts, pictures and numbers, and only describes other objects."
            )
        group = int(step.groups[row])
        samples.append(Sample(prompt=whole[index], output=output, group=group, info=step.infos[row]))
    return samples
