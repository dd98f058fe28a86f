"""Draws a step of a run again, and compares it bit by bit with what the run kept.

Every random draw is a function of the seed and the step's number. So the step is repeated from the nearest checkpoint
before it, in memory; nothing in the run folder is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from grpokit.config import presets
from grpokit.config.schema import to_dict
from grpokit.errors import UsageError, plural
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.run_folder import rollout_record
from grpokit.run_folder.journal import journal_row
from grpokit.run_folder.names import CHECKPOINTS, METRICS, VERSIONS, check_run_folder
from grpokit.run_folder.reader import read_object, read_rows
from grpokit.run_folder.rollout_record import Recorded
from grpokit.run_folder.run_metadata import versions
from grpokit.run_folder.scales import version_changes
from grpokit.runs import build, build_rewards
from grpokit.training import checkpoint

_PARTS = ("prompts", "decisions", "log-probs", "outputs", "rewards", "advantages")
_PART_OF = {  # the beginning of a tensor's name -> its part; all others are decisions
    "old.": "log-probs",
    "output.": "outputs",
    "rewards": "rewards",
    "totals": "rewards",
    "advantages": "advantages",
}
_MEASURED = ("time", "step_time", "memory")  # metrics of the clock and the machine, not of the run


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A step that was drawn again.

    Attributes:
        step: its number.
        start: the checkpoint that it was drawn from, or None: the policy as the config builds it.
        parts: what was compared, such as "outputs" -> what differs; empty where it is equal to the bit.
        changes: versions and devices that are not what they were -> (then, now).
    """

    step: int
    start: Path | None
    parts: Mapping[str, str]
    changes: Mapping[str, tuple[Any, Any]]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not any(self.parts.values())

    def lines(self) -> Iterator[str]:
        """The result as lines of text."""
        again = f"step {self.step} drawn again from {self.start or 'the policy that the config builds'}"
        if self.equal:
            yield f"{again}: equal to the bit ({', '.join(self.parts)})"
            return
        yield f"{again}: it differs from the run's"
        yield from (f"  {part}: {difference or 'equal to the bit'}" for part, difference in self.parts.items())
        changes = ", ".join(f"{what} {then} -> {now}" for what, (then, now) in self.changes.items())
        yield f"Changed since then: {changes or 'no version, device or number of threads'}."


def replay(run: Path, step: int, *, say: Callable[[str], None] = lambda line: None) -> Replayed:
    """Draw a step of a run again and compare it with its metrics and, where the run has one, with its record.

    Args:
        run: a run folder.
        step: from 1.
        say: gets a line about the steps that are repeated first.

    Raises:
        UsageError: no such run, or the run has not taken this step.
        RunError: the record is damaged, or training stops on the way to the step.
    """
    check_run_folder(run)
    rows = {row["step"]: row for row in read_rows(run / METRICS)}
    if step not in rows:
        raise UsageError(f"The run {run} has no step {step} to compare with: it has completed {max(rows, default=0)}.")
    record = rollout_record.read_step(run, step) if step in rollout_record.recorded_steps(run) else None
    config, _ = presets.read_config(run)
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    with build_rewards.all_rewards(config) as (terms, own_terms):
        policies = build.policies(config)
        prompts, _ = build.prompts(config)
        trainer = build.trainer(config, policies, terms, prompts, own_rewards=own_terms)
        start = _load(run, trainer, step)
        for reward in build_rewards.all_followers(terms, own_terms):
            reward.begin(run.absolute(), lambda words: None, replays=True)
        if trainer.completed < step - 1:
            say(f"Repeating {plural(step - 1 - trainer.completed, 'step')} first, from {start or 'the beginning'}.")
        report = trainer.step()
        while report.step < step:
            report = trainer.step()
    parts = {}
    packages = versions(to_dict(config), build_rewards.versions_elsewhere(terms, own_terms))
    changed = version_changes(read_object(run / VERSIONS), packages)
    changes = {what: (then, now) for what, then, now in changed}
    if record is not None:
        with TemporaryDirectory() as folder:
            rollout_record.write_step(Path(folder), report)
            again = rollout_record.read_step(Path(folder), step)
        parts = _compared(record, again)
        then = record.conditions  # a resume may have rewritten the run's versions
        for what, value in again.conditions.items():
            if then.get(what) != value:
                changes[what] = (then[what], value)
    parts["metrics"] = _metrics(rows[step], journal_row(report))
    return Replayed(step=step, start=start, parts=parts, changes=changes)


def _load(run: Path, trainer: PhasedTrainer, step: int) -> Path | None:
    """Load the last checkpoint before a step, but for those that were saved in the middle of one."""
    start = None
    for place in checkpoint.steps(run / CHECKPOINTS):
        state = checkpoint.read_state(place)
        if state["step"] < step and not checkpoint.broken_off(state):
            start = place
    if start is not None:
        trainer.load(start)
    return start


def _metrics(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first metrics that differ, but for those that are measured."""
    notes = []
    for name in {**then, **now}:
        measured = name.startswith(_MEASURED) or name.endswith("/seconds")
        if not measured and then.get(name) != now.get(name):
            notes.append(f"{name} {then.get(name)} -> {now.get(name)}")
    return ", ".join(notes[:3])


def _compared(then: Recorded, now: Recorded) -> dict[str, str]:
    """What differs between two records of a step, by part."""
    notes: dict[str, list[str]] = {part: [] for part in _PARTS}
    old = [row["prompt"] for row in then.rows]
    new = [row["prompt"] for row in now.rows]
    notes["prompts"].append(_rows("prompts", old, new))
    for name in sorted({**then.tensors, **now.tensors}):
        parts = [part for start, part in _PART_OF.items() if name.startswith(start)]
        part = parts[0] if parts else "decisions"
        notes[part].append(_tensor(name, then.tensors.get(name), now.tensors.get(name)))
    old = list(map(_bits, then.outputs))
    new = list(map(_bits, now.outputs))
    notes["outputs"].append(_rows("outputs", old, new))
    return {part: "; ".join(filter(None, own)) for part, own in notes.items()}


def _tensor(name: str, then: Tensor | None, now: Tensor | None) -> str:
    was = _shape(then)
    became = _shape(now)
    if then is None or now is None or was != became:
        return f"{name} was {was} and is {became}"
    old = [_bits(row) for row in torch.atleast_1d(then)]
    new = [_bits(row) for row in torch.atleast_1d(now)]
    rows = _rows(name, old, new)
    if not rows or not then.is_floating_point():
        return rows
    gaps = (then.double() - now.double()).abs()
    gap = float(gaps.max())
    return f"{rows}, by up to {gap:.3g}"


def _shape(x: Tensor | None) -> str:
    return "nothing" if x is None else f"{x.dtype} {list(x.shape)}"


def _bits(x: Any) -> Any:
    """What is equal where two outputs, or two rows of a tensor, are the same to the bit: NaN is NaN, 0 is not -0."""
    if isinstance(x, Tensor):
        flat = x.reshape(-1).contiguous()
        return flat.view(torch.uint8).numpy().tobytes()
    if isinstance(x, Image.Image):
        return x.mode, x.size, x.tobytes(), x.getpalette()
    return repr(x)


def _rows(name: str, then: Sequence[Any], now: Sequence[Any]) -> str:
    """Which rows differ."""
    if len(then) != len(now):
        return f"{name}: there were {len(then)} rows and are {len(now)}"
    rows = [str(i) for i in range(len(now)) if then[i] != now[i]]
    if not rows:
        return ""
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"{name} in {len(rows)} of {len(now)} rows ({', '.join(rows[:5])}{more})"
