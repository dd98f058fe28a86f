"""Draws a step of a run again, and compares it with what the run kept.

Every random draw is a function of the seed and the step's number, so the weights before the step are all that is
needed: those of the nearest checkpoint, from which the steps between are repeated in memory. Nothing in the run folder
is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpokit.config import presets
from grpokit.config.schema import RunConfig, differences
from grpokit.errors import UsageError
from grpokit.files import read_json
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.rewards.terms import RewardTerm
from grpokit.run_folder import rollout_record
from grpokit.run_folder.header import versions
from grpokit.run_folder.journal import journal_row
from grpokit.run_folder.names import CHECKPOINTS, METRICS, VERSIONS, check_run_folder
from grpokit.run_folder.reader import read_rows
from grpokit.run_folder.rollout_record import Recorded
from grpokit.runs import build
from grpokit.tracking.step_report import StepReport
from grpokit.training import checkpoint

_MEASURED = ("time", "step_time", "memory")  # metrics of the clock and the machine, not of the run
_BUILT = "the policy that the config builds"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of thing that was compared.

    Attributes:
        name: such as "log-probs".
        differing: how many of them differ in at least one bit.
        of: how many there are.
        note: which ones, and by how much; empty where none differs.
    """

    name: str
    differing: int
    of: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Redrawn:
    """A step that was drawn again.

    Attributes:
        step: its number.
        rows: its samples.
        start: the checkpoint that it was drawn from, or None: the policy as the config builds it.
        recorded: whether the run had recorded the step; if not, only its metrics could be compared.
        parts: what was compared.
        changes: (what, then, now) for versions and devices that have changed.
    """

    step: int
    rows: int
    start: Path | None
    recorded: bool
    parts: Sequence[Part]
    changes: Sequence[tuple[str, Any, Any]]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not any(part.differing for part in self.parts)

    def lines(self) -> Iterator[str]:
        """The result as lines of text."""
        start = self.start or _BUILT
        names = [part.name for part in self.parts]
        if not self.recorded:
            yield f"The run has no record of step {self.step}, so only the metrics can be compared."
        if self.equal:
            equal = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
            yield f"step {self.step}: {self.rows} samples drawn again; {equal} are equal to the bit"
            yield f"start: {start}"
            return
        yield f"step {self.step}: {self.rows} samples drawn again; they differ from those of the run"
        for part in self.parts:
            yield f"  {part.name}: " + (
                f"{part.differing} of {part.of} differ ({part.note})" if part.differing else "equal to the bit"
            )
        yield f"start: {start}"
        if self.changes:
            changed = ", ".join(f"{what} {then} -> {now}" for what, then, now in self.changes)
            if any(what == "processes" for what, _, _ in self.changes):
                yield f"Changed since then: {changed}. What several processes have drawn is drawn again in one, where"
                yield "the last digits may differ."
            else:
                yield f"Changed since then: {changed}. Draw the step again under the former conditions."
        else:
            yield "Versions, device and threads are the same as in the run. Other possible causes:"
            yield "  - the record, the checkpoint, the prompts or the targets were changed after the run"
            yield "  - the config was changed with --force after this step, or a step in between was interrupted"
            yield "  - a reward or the policy draws random numbers of its own, or the GPU adds in no fixed order"


def redraw(run: Path, step: int, *, say: Callable[[str], None] = lambda line: None) -> Redrawn:
    """Draw a step of a run again and compare it, bit by bit.

    With a record: decisions (the mask and all that the policy traced), log-probs, outputs, rewards, advantages. The
    step's metrics in any case, except times and memory.

    Args:
        run: a run folder.
        step: from 1.
        say: gets a line about the steps that are repeated first.

    Raises:
        UsageError: no such run, or the run kept nothing of this step.
        RunError: the record is damaged, or training stops on the way to the step.
    """
    check_run_folder(run)
    rows = {int(row["step"]): row for row in read_rows(run / METRICS)[0]}
    record_steps = rollout_record.steps(run)
    if step not in rows and step not in record_steps:
        completed = f"the steps 1 to {max(rows)}" if rows else "no step yet"
        raise UsageError(f"The run {run} has no step {step} to compare with: it has completed {completed}.")
    if step in record_steps:
        rollout_record.require()
    record = rollout_record.read(run, step) if step in record_steps else None
    trace = rollout_record.read_trace(run, step) if step in record_steps else {}
    config = presets.read_config(run)[0]
    with build.all_rewards(config) as (terms, own_terms):
        trainer, start = _trainer(run, config, terms, own_terms, step)
        if trainer.completed < step - 1:
            first = trainer.completed + 1
            before = f"step {first}" if first == step - 1 else f"steps {first} to {step - 1}"
            say(f"Repeating {before} first, from {start or _BUILT}.")
        report = trainer.step()
        while report.step < step:
            report = trainer.step()
    device = trainer.current.trainer.torch_device
    parts = [] if record is None else list(_parts(record, trace, report))
    if step in rows:
        parts.append(_metrics(rows[step], journal_row(report)))
    return Redrawn(
        step=step,
        rows=report.rollout.rows,
        start=start,
        recorded=record is not None,
        parts=parts,
        changes=[(what, *pair) for what, pair in _changes(run, config, record, device).items()],
    )


def _trainer(
    run: Path, config: RunConfig, terms: list[RewardTerm], own_terms: Mapping[str, list[RewardTerm]], step: int
) -> tuple[PhasedTrainer, Path | None]:
    """The run's trainer as it was some steps before `step`, as few as its checkpoints allow."""
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    prompts, _ = build.prompts(config)
    policies = build.policies(config)
    trainer = build.trainer(config, policies, terms, prompts, own_rewards=own_terms)
    start = None
    for place in checkpoint.steps(run / CHECKPOINTS):
        state = checkpoint.read_state(place)
        if state["step"] < step and not checkpoint.broken_off(state):  # else it was saved in the middle of a step
            start = place
    if start is not None:
        trainer.load(start)
    return trainer, start


def _parts(record: Recorded, trace: Mapping[str, Tensor], report: StepReport) -> Iterator[Part]:
    again = rollout_record.tensors(report)
    ours = [name for name in {**trace, **again} if name in ("mask", "groups") or name.startswith("per_")]
    yield _tensors("decisions", ours, trace, again)
    views = [name for name in {**trace, **again} if name.startswith("old.")]
    part = _tensors("log-probs", views, trace, again)
    then, now = trace.get("old.logprobs"), again["old.logprobs"]
    if part.differing and then is not None and then.shape == now.shape:
        gap = float((then.double() - now.double()).abs().nan_to_num(nan=math.inf, posinf=math.inf).max())
        part = Part(name=part.name, differing=part.differing, of=part.of, note=f"{part.note}; largest gap {gap:.3g}")
    yield part
    texts = [sample.prompt.text for sample in report.rollout.samples]
    outputs = [sample.output for sample in report.rollout.samples]
    yield _listed("prompts", record.texts, texts)
    yield _listed(
        "outputs", [rollout_record.identity(x) for x in record.outputs], [rollout_record.identity(x) for x in outputs]
    )
    rewards = [[repr(x) for x in row] for row in report.rewards.double().tolist()]  # as text: NaN equals NaN
    same = list(record.reward_names) == list(report.reward_names)
    yield _listed("rewards", [[repr(x) for x in row] for row in record.rewards.tolist()] if same else [], rewards)
    yield _tensors("advantages", ["advantages"], trace, again)


def _tensors(part: str, names: Sequence[str], then: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> Part:
    """Compare the tensors `names`, each along its first axis; the longest of these counts as the number of things."""
    worst, of, notes = 0, 0, []
    for name in names:
        a, b = then.get(name), now.get(name)
        if a is None or b is None:
            worst, of = max(worst, 1), max(of, 1)
            notes.append(f"{name} is {'new' if a is None else 'gone'}")
            continue
        of = max(of, len(a))
        if a.shape != b.shape or a.dtype != b.dtype:
            worst = max(worst, len(a), 1)
            notes.append(f"{name} is {b.dtype} {list(b.shape)}, was {a.dtype} {list(a.shape)}")
            continue
        rows = [i for i in range(len(a)) if not torch.equal(_bits(a[i]), _bits(b[i]))]
        if rows:
            worst = max(worst, len(rows))
            notes.append(f"{name} in {_few(rows)}")
    return Part(name=part, differing=worst, of=of, note="; ".join(notes))


def _listed(part: str, then: Sequence[Any], now: Sequence[Any]) -> Part:
    if len(then) != len(now):
        return Part(name=part, differing=len(now), of=len(now), note="the run had others")
    rows = [i for i, (a, b) in enumerate(zip(then, now, strict=True)) if a != b]
    return Part(name=part, differing=len(rows), of=len(now), note=_few(rows) if rows else "")


def _metrics(then: Mapping[str, Any], now: Mapping[str, Any]) -> Part:
    names = [name for name in {**then, **now} if not name.startswith(_MEASURED) and not name.endswith("/seconds")]
    notes = []
    for name in names:
        a, b = then.get(name), now.get(name)
        if a != b:
            notes.append(f"{name} {a} -> {b}")
    more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
    return Part(name="metrics", differing=len(notes), of=len(names), note=", ".join(notes[:3]) + more)


def _bits(x: Tensor) -> Tensor:
    """One row as bytes: NaN equals NaN, and 0 is not -0."""
    return x.reshape(-1).contiguous().view(torch.uint8)


def _few(rows: Sequence[int]) -> str:
    numbers = ", ".join(map(str, rows[:5]))
    return f"row{'s' * (len(rows) > 1)} {numbers}" + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")


def _changes(run: Path, config: RunConfig, record: Recorded | None, device: torch.device) -> dict[str, tuple[Any, Any]]:
    """Versions and devices that are not what they were: what -> (then, now)."""
    try:
        before = read_json(run / VERSIONS)
    except (OSError, ValueError):
        before = versions(config)
    changes = {what: (then, now) for what, then, now in differences(before, versions(config))}
    if record is not None:  # a resume may have rewritten that file; a record has the step's own
        here = rollout_record.conditions(device)
        changes |= {what: (then, here.get(what)) for what, then in record.conditions.items() if here.get(what) != then}
    return changes
