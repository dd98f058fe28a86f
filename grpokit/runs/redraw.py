"""Draws a step of a run again, and compares it bit by bit with what the run kept.

Every random draw is a function of the seed and the step's number. So the step is repeated from the nearest checkpoint
before it, in memory; nothing in the run folder is written.
"""

from __future__ import annotations

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
from grpokit.run_folder import rollout_record
from grpokit.run_folder.header import versions
from grpokit.run_folder.journal import journal_row
from grpokit.run_folder.names import CHECKPOINTS, METRICS, VERSIONS, check_run_folder
from grpokit.run_folder.reader import read_rows
from grpokit.runs import build, build_rewards
from grpokit.training import checkpoint

_MEASURED = ("time", "step_time", "memory")  # metrics of the clock and the machine, not of the run


@dataclass(frozen=True, kw_only=True)
class Redrawn:
    """A step that was drawn again.

    Attributes:
        step: its number.
        start: the checkpoint that it was drawn from, or None: the policy as the config builds it.
        parts: what was compared, such as "log-probs" -> what differs; empty where it is equal to the bit.
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
        if self.equal:
            yield f"step {self.step} drawn again from {_name(self.start)}: equal to the bit ({', '.join(self.parts)})"
            return
        yield f"step {self.step} drawn again from {_name(self.start)}: it differs from that of the run"
        yield from (f"  {part}: {difference or 'equal to the bit'}" for part, difference in self.parts.items())
        if self.changes:
            yield f"Changed since then: {', '.join(f'{x} {a} -> {b}' for x, (a, b) in self.changes.items())}."
        else:
            yield "Versions, device and threads are the same. Other usual causes: the record, a checkpoint or the data"
            yield "was changed after the run, a step before it was interrupted, a component draws random numbers of its"
            yield "own, or the GPU adds in no fixed order."


def redraw(run: Path, step: int, *, say: Callable[[str], None] = lambda line: None) -> Redrawn:
    """Draw a step of a run again and compare it.

    With a record, decisions, log-probs, prompts, outputs, rewards and advantages are compared; in any case the step's
    metrics are, except times and memory.

    Args:
        run: a run folder.
        step: from 1.
        say: gets a line about the steps that are repeated first.

    Raises:
        UsageError: no such run, or the run kept nothing of this step.
        RunError: the record is damaged, or training stops on the way to the step.
    """
    check_run_folder(run)
    rows = {row["step"]: row for row in read_rows(run / METRICS)[0]}
    recorded = step in rollout_record.steps(run)
    if step not in rows and not recorded:
        completed = f"the steps 1 to {max(rows)}" if rows else "no step yet"
        raise UsageError(f"The run {run} has no step {step} to compare with: it has completed {completed}.")
    record = rollout_record.read(run, step) if recorded else None
    config = presets.read_config(run)[0]
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    with build_rewards.all_rewards(config) as (terms, own_terms):
        policies = build.policies(config)
        trainer = build.trainer(config, policies, terms, build.prompts(config)[0], own_rewards=own_terms)
        start = _load(run, trainer, step)
        if trainer.completed < step - 1:
            first = trainer.completed + 1
            before = f"step {first}" if first == step - 1 else f"the steps {first} to {step - 1}"
            say(f"Repeating {before} first, from {_name(start)}.")
        report = trainer.step()
        while report.step < step:
            report = trainer.step()
    parts: dict[str, str] = {}
    if record is not None:
        then, now = rollout_record.read_trace(run, step), rollout_record.tensors(report)
        tensors = list({**then, **now})
        own = [name for name in tensors if not name.startswith("old.") and name != "advantages"]
        parts["decisions"] = _tensors(own, then, now)
        parts["log-probs"] = _tensors([name for name in tensors if name.startswith("old.")], then, now)
        samples, names = report.rollout.samples, list(report.reward_names)
        parts["prompts"] = _rows(record.texts, [sample.prompt.text for sample in samples])
        outputs = [sample.output for sample in samples]
        parts["outputs"] = _rows(*([*map(rollout_record.identity, some)] for some in (record.outputs, outputs)))
        same = record.reward_names == names
        rewards = (record.rewards.tolist() if same else [], report.rewards.double().tolist())
        parts["rewards"] = _rows(*([*map(repr, some)] for some in rewards))  # as text: NaN equals NaN
        parts["advantages"] = _tensors(["advantages"], then, now)
    if step in rows:
        parts["metrics"] = _metrics(rows[step], journal_row(report))
    here = rollout_record.conditions(trainer.current.trainer.torch_device)
    return Redrawn(step=step, start=start, parts=parts, changes=_changes(run, config, record, here))


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


def _name(start: Path | None) -> str:
    return str(start or "the policy that the config builds")


def _tensors(names: Sequence[str], then: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    """Which tensors differ, and in which rows."""
    notes = []
    for name in names:
        a, b = then.get(name), now.get(name)
        if a is None or b is None:
            notes.append(f"{name} is {'new' if a is None else 'gone'}")
        elif a.shape != b.shape or a.dtype != b.dtype:
            notes.append(f"{name} is {b.dtype} {list(b.shape)}, was {a.dtype} {list(a.shape)}")
        elif rows := _rows(_bits(a), _bits(b)):
            gap = f", by up to {float((a.double() - b.double()).abs().max()):.3g}" if a.is_floating_point() else ""
            notes.append(f"{name} in {rows}{gap}")
    return "; ".join(notes)


def _bits(x: Tensor) -> list[bytes]:
    """Each row as bytes: NaN equals NaN, and 0 is not -0."""
    return [row.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() for row in x]


def _rows(then: Sequence[Any], now: Sequence[Any]) -> str:
    """Which rows differ."""
    if len(then) != len(now):
        return f"all rows: there were {len(then)} and are {len(now)}"
    rows = [str(i) for i, (a, b) in enumerate(zip(then, now, strict=True)) if a != b]
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"{len(rows)} of {len(now)} rows ({', '.join(rows[:5])}{more})" if rows else ""


def _metrics(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    names = [name for name in {**then, **now} if not name.startswith(_MEASURED) and not name.endswith("/seconds")]
    notes = [f"{name} {then.get(name)} -> {now.get(name)}" for name in names if then.get(name) != now.get(name)]
    return ", ".join(notes[:3]) + (f" and {len(notes) - 3} more" if len(notes) > 3 else "")


def _changes(
    run: Path, config: RunConfig, record: rollout_record.Recorded | None, here: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """A resume may have rewritten the run's versions; a record has the step's own."""
    changes = {what: (then, now) for what, then, now in differences(read_json(run / VERSIONS), versions(config))}
    then = record.conditions if record else {}
    return changes | {what: (x, here.get(what)) for what, x in then.items() if here.get(what) != x}
