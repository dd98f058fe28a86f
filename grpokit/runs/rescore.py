"""Scores a recorded run with another reward, and says how its rankings would have changed.

GRPO learns from rankings inside groups alone, so that is where two rewards are compared: Kendall's tau-b, the best
sample of each group, the signs of the advantages. Steps are read one by one, so memory does not grow with the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpokit import advantages, registry
from grpokit.config import presets
from grpokit.errors import DataError, RunError, UsageError, counted
from grpokit.files import replacing
from grpokit.rewards.scoring import score
from grpokit.rewards.terms import RewardTerm
from grpokit.run_folder import rollout_record
from grpokit.run_folder.names import check_run_folder
from grpokit.run_folder.rollout_record import Described, Recorded
from grpokit.runs import build, resuming
from grpokit.types import Prompt, Sample

TOTAL = "reward"  # the weighted sum that the run was trained on


@dataclass(kw_only=True)
class Ranking:
    """One reward over a run, and how the new one's rankings agree with it.

    Attributes:
        name: the recorded reward, or "reward" for the weighted sum; in `Rescored.new` the new one.
        first: its mean over the first third of the recorded steps.
        last: its mean over the last third.
        tau: mean of Kendall's tau-b over the compared groups; NaN where there is none.
        best_changed: share of the compared groups in which none of the best samples stays among the best.
        compared: groups in which both rewards tell samples apart.
        skipped: the other groups.
    """

    name: str
    first: float = math.nan
    last: float = math.nan
    tau: float = math.nan
    best_changed: float = math.nan
    compared: int = 0
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class Rescored:
    """What another reward says about a recorded run.

    Attributes:
        steps: recorded steps.
        rows: samples in them.
        unscored: rows that the new reward could not score.
        flipped: rows whose advantage would have had the other sign under the new reward alone.
        new: the new reward itself.
        rankings: the recorded rewards and their weighted sum.
    """

    steps: int
    rows: int
    unscored: int
    flipped: int
    new: Ranking
    rankings: Sequence[Ranking]


def rescore(run: Path, name: str, params: Mapping[str, Any] | None = None, *, out: Path | None = None) -> Rescored:
    """Score all recorded steps of a run with another reward.

    Args:
        run: a run folder with a record.
        name: of the reward, as in a config.
        params: its parameters.
        out: a Parquet file for the new scores; it must not be there yet.

    Raises:
        UsageError: no such run, no record, an unknown reward, `out` in use, outputs that were kept as text only, or
            prompts, targets or source pictures that have changed since.
        RewardError: the reward failed.
        RunError: the record is damaged, or `out` cannot be written.
    """
    check_run_folder(run)
    rollout_record.require()
    term = RewardTerm(name=name.rpartition(":")[2], reward=registry.create("reward", name, params))
    if not rollout_record.steps(run):
        raise UsageError(f"{run} holds no record of its rollouts. A run keeps one with run.record=true.")
    if out is not None and (out.exists() or not out.parent.is_dir()):
        why = "already exists" if out.exists() else f"cannot be made: there is no folder {out.parent}"
        raise UsageError(f"{out} {why}. Choose another file with --out.")
    config, _ = presets.read_config(run)
    kind = build.output_kind(config)
    if kind is not None:
        registry.check_accepts(name, kind, what=f"the policy '{config.policy.use}' makes")
    prompts, _ = build.prompts(config)
    now, sequences = resuming.digests(prompts, None), {"train": prompts, "held_out": None}
    changes, _ = resuming.changed_prompts(run, now, sequences)  # held-out prompts are none of the record
    if "train" in changes:
        raise DataError(f"{run} was started with other {changes['train']}. Restore the data of the run.")
    numbers = rollout_record.steps(run)
    third = max(1, len(numbers) // 3)
    tallies: dict[str, _Tally] = {}
    new = _Tally()
    unscored = flipped = rows = 0
    with _writer(out) as write:
        for i, number in enumerate(numbers):
            step = rollout_record.read(run, number)
            scores = score([term], _samples(step, prompts)).matrix  # [B, 1]
            write(step, scores[:, 0])
            ends = (i < third, i >= len(numbers) - third)
            new.see(scores[:, 0], ends)
            rows += len(scores)
            unscored += int(scores.isnan().sum())
            new_advantages = advantages.group(scores, torch.ones(1), step.groups)
            flipped += int((new_advantages * step.advantages < 0).sum())
            for column, recorded in zip([*step.reward_names, TOTAL], [*step.rewards.T, step.total], strict=True):
                tally = tallies.setdefault(column, _Tally())
                tally.see(recorded, ends)
                tally.compare(recorded, scores[:, 0], step.groups)
    return Rescored(
        steps=len(numbers),
        rows=rows,
        unscored=unscored,
        flipped=flipped,
        new=new.ranking(term.name),
        rankings=[tally.ranking(column) for column, tally in tallies.items()],
    )


HEADINGS = ("tau", "other best", "groups", "first third", "last third")


def table(result: Rescored) -> Iterator[tuple[str, ...]]:
    """Rows of `HEADINGS` behind a name: the new reward, then the recorded ones, the weighted sum last."""
    yield f"{result.new.name} (new)", "", "", "", _mean(result.new.first), _mean(result.new.last)
    for ranking in sorted(result.rankings, key=lambda r: r.name == TOTAL):
        tau, best = "-", "-"
        if ranking.compared:
            tau, best = f"{ranking.tau:+.3f}", f"{ranking.best_changed:.1%}"
        of = f"{ranking.compared} of {ranking.compared + ranking.skipped}"
        yield ranking.name, tau, best, of, _mean(ranking.first), _mean(ranking.last)


def _mean(mean: float) -> str:
    """A dash where nothing was scored: in phases a reward may miss in a third of the run."""
    return "-" if math.isnan(mean) else f"{mean:.3f}"


def lines(result: Rescored) -> Iterator[str]:
    """The lines below the table."""
    again = f"{counted(result.rows, 'sample')} of {counted(result.steps, 'step')} scored again"
    yield f"{again}, {result.unscored} of them could not be scored"
    share = result.flipped / result.rows
    yield f"{result.flipped} of {result.rows} advantages ({share:.1%}) would have had the other sign"
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


@dataclass(kw_only=True)
class _Tally:
    """Sums over the steps seen so far, for one reward."""

    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])  # over the first and the last third
    counts: list[int] = field(default_factory=lambda: [0, 0])
    tau: float = 0.0
    changed: int = 0
    compared: int = 0
    skipped: int = 0

    def see(self, scores: Tensor, ends: tuple[bool, bool]) -> None:
        """Count a step's scores [B] into the thirds of the run that it belongs to."""
        finite = scores[~scores.isnan()]
        for third, belongs in enumerate(ends):
            if belongs:
                self.sums[third] += float(finite.sum())
                self.counts[third] += len(finite)

    def compare(self, old: Tensor, new: Tensor, groups: Tensor) -> None:
        """Compare rankings [B] inside each group, over the rows that both rewards could score."""
        for group in groups.unique():
            both = (groups == group) & ~old.isnan() & ~new.isnan()
            x, y = old[both], new[both]
            tau = kendall_tau(x, y)
            if math.isnan(tau):
                self.skipped += 1
                continue
            self.compared += 1
            self.tau += tau
            self.changed += not bool(((x == x.max()) & (y == y.max())).any())

    def ranking(self, name: str) -> Ranking:
        """The means of what was seen."""
        first, last = (s / n if n else math.nan for s, n in zip(self.sums, self.counts, strict=True))
        ranking = Ranking(name=name, first=first, last=last, compared=self.compared, skipped=self.skipped)
        if self.compared:
            ranking.tau, ranking.best_changed = self.tau / self.compared, self.changed / self.compared
        return ranking


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


@contextmanager
def _writer(out: Path | None) -> Iterator[Any]:
    """Gives a function that appends a step's new scores; the file gets its name once all of them are there."""
    if out is None:
        yield lambda step, scores: None
        return
    import pyarrow
    import pyarrow.parquet

    kinds = {"step": "int32", "row": "int32", "group": "int64", "prompt_index": "int64", "score": "float64"}
    schema = pyarrow.schema(list(kinds.items()))

    @contextmanager
    def write_errors() -> Iterator[None]:
        try:
            yield
        except (OSError, pyarrow.ArrowException) as error:
            raise RunError(f"{out} cannot be written: {error}.") from error

    def write(step: Recorded, scores: Tensor) -> None:
        columns = {
            "step": [step.step] * len(scores),
            "row": list(range(len(scores))),
            "group": step.groups.tolist(),
            "prompt_index": list(step.prompts),
            "score": [None if math.isnan(x) else x for x in scores.tolist()],
        }
        with write_errors():
            writer.write_table(pyarrow.table(columns, schema=schema))

    with write_errors(), replacing(out) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        yield write
