"""The files of a run that grow: what is known after each step and each evaluation.

`metrics.jsonl` (one object per step), `eval.jsonl` (one per evaluation), `warnings.jsonl` (what guards noticed),
`attribution.jsonl` (what moves the rewards), `end.json` (how the run ended), `samples/` (the same held-out prompts at
every evaluation), `groups/` (the best and the worst group of some steps).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from grpokit.evaluation.attribution import Shares
from grpokit.evaluation.held_out import Evaluation
from grpokit.files import delete, step_folders, step_name, write_text, writing
from grpokit.images import Drawable
from grpokit.run_folder.names import ATTRIBUTION, END, EVALUATIONS, GROUPS, METRICS, ROWS, SAMPLES, SCORES, WARNINGS
from grpokit.run_folder.reader import kept, read_rows
from grpokit.tracking.step_report import StepReport
from grpokit.types import Sample

SHOWN_SAMPLES = 16


class Journal:
    """The growing files of a run. After a resume, what lies beyond the checkpoint is cut off first.

    Args:
        folder: the run's.
        completed: steps of the checkpoint; 0 for a new run.

    Attributes:
        last_step: the last step in `metrics.jsonl`; 0 if there is none.
        evaluations: the rows of `eval.jsonl`, in the order of their steps.
        last_evaluation: the step of the last evaluation; -1 if there is none.
        damage: a sentence for each file with damaged lines, which were left out,
    """

    def __init__(self, folder: Path, completed: int) -> None:
        self.folder = folder
        self.last_evaluation = -1
        self.last_step = 0
        self.evaluations: list[Mapping[str, Any]] = []
        self.damage: list[str] = []
        delete(folder / END)
        for name in (METRICS, EVALUATIONS, WARNINGS):
            path = folder / name
            if name == WARNINGS and not path.is_file():
                continue  # it is written with the first warning
            with writing(path):
                journal, problem = read_rows(path)
            if problem:
                self.damage.append(f"{name} {problem}. The rest is kept")
            rows = [row for row in journal if row["step"] <= completed]
            write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
            if name == EVALUATIONS and rows:
                self.last_evaluation = rows[-1]["step"]
                self.evaluations = list(rows)
            elif name == METRICS and rows:
                self.last_step = rows[-1]["step"]
        for number, place in [*step_folders(folder / SAMPLES), *step_folders(folder / GROUPS)]:
            if number > completed:
                shutil.rmtree(place)

    def step(self, report: StepReport) -> None:
        """Append a step's metrics, and what guards noticed in it."""
        for line in report.warnings:
            self.warning(report.step, line)
        self._append(METRICS, journal_row(report))
        self.last_step = report.step

    def warning(self, step: int, message: str) -> None:
        """Append a warning: step 0 stands for what was noticed before the first step."""
        self._append(WARNINGS, {"step": step, "message": message})

    def end(self, state: str, planned: int, message: str = "") -> None:
        """Note how the run ended: "finished", "stopped" or "failed", its steps as planned, and why it ended early."""
        write_text(self.folder / END, json.dumps({"state": state, "planned": planned, "message": message}))

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Append an evaluation's means, and keep all its scores and some of its samples."""
        place = self.folder / SAMPLES / step_name(step)
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        write_text(place / SCORES, json.dumps(_all_scores(evaluation)))
        save_samples(place, evaluation)
        row = {"step": step, **finite(evaluation.summary())}
        if step < self.last_evaluation:  # the evaluation before training, which was missing
            self.evaluations = sorted([*self.evaluations, row], key=lambda row: row["step"])
            write_text(self.folder / EVALUATIONS, "".join(json.dumps(row) + "\n" for row in self.evaluations))
            return
        self._append(EVALUATIONS, row)
        self.evaluations.append(row)
        self.last_evaluation = step

    def set_evaluations_aside(self) -> str:
        """Rename all evaluations, so that the report leaves them out; returns a warning about it.

        Raises:
            RunError: they cannot be moved.
        """
        numbers = (f"-{n}" if n > 1 else "" for n in itertools.count(1))
        tail = next(n for n in numbers if not (self.folder / f"eval.earlier{n}.jsonl").exists())
        moves = {"samples": f"samples.earlier{tail}", EVALUATIONS: f"eval.earlier{tail}.jsonl"}
        with writing(self.folder):
            for old, new in moves.items():
                if (self.folder / old).exists():
                    os.replace(self.folder / old, self.folder / new)
        self.evaluations, self.last_evaluation = [], -1
        return (
            f"earlier evaluations cannot be compared with those to come, so they are kept in {moves['eval.jsonl']} and "
            f"{moves['samples']}, and the untrained policy was scored again"
        )

    def is_best(self, name: str, *, weight: float = 1.0) -> bool:
        """Whether the last evaluation has the best mean of a score among all evaluations after step 0.

        Args:
            name: the score's.
            weight: the reward's: below 0 the lowest mean is the best, as in training, else the highest.
        """
        *earlier, last = self.evaluations
        sign = -1 if weight < 0 else 1
        others = [sign * row[name] for row in earlier if row["step"] > 0 and row.get(name) is not None]
        mean = last.get(name)
        return last["step"] > 0 and mean is not None and sign * mean > max(others, default=-math.inf)

    def evaluations_without_gain(self, name: str, *, weight: float = 1.0) -> int:
        """How many evaluations have passed since the one with the best mean of a score; arguments as in `is_best`."""
        sign = -1 if weight < 0 else 1
        means = [sign * row[name] if row.get(name) is not None else -math.inf for row in self.evaluations]
        return len(means) - 1 - means.index(max(means)) if means else 0

    def groups(self, report: StepReport) -> None:
        """Keep the samples of a step's best and worst group, by the mean of their totals."""
        totals = report.totals
        ids = report.rollout.groups.cpu()
        means = {group: float(totals[ids == group].nanmean()) for group in ids.unique().tolist()}
        ranked = sorted((g for g, mean in means.items() if not math.isnan(mean)), key=means.__getitem__)
        advantages = report.row_advantages()
        folder = self.folder / GROUPS / step_name(report.step)
        rows = [
            {
                "place": place,
                "group": group,
                **_write_output(folder, i, report.rollout.samples[i]),
                "scores": finite(dict(zip(report.reward_names, report.rewards[i].tolist(), strict=True))),
                "reward": _number(float(totals[i])),
                "advantage": float(advantages[i]),
            }
            for place, ends in (("best", ranked[-1:]), ("worst", ranked[:-1][:1]))
            for group in ends
            for i in (ids == group).nonzero()[:, 0].tolist()
        ]
        if rows:
            _write_rows(folder, rows)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        _append(self.folder / name, row)


def _append(path: Path, row: Mapping[str, Any]) -> None:
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def append_attribution(folder: Path, step: int, shares: Mapping[str, Shares], causes: tuple[str, str]) -> None:
    """Append to a run what moves its rewards.

    Args:
        folder: the run's.
        step: completed steps.
        shares: of each reward's variance.
        causes: what rows draw, and what groups share.
    """
    row, group = causes
    found = {name: asdict(own) for name, own in shares.items()}
    _append(folder / ATTRIBUTION, {"step": step, "row": row, "group": group, "shares": found})


def journal_row(report: StepReport) -> dict[str, Any]:
    """A step's row in `metrics.jsonl`."""
    phase = {"phase": report.phase, "phase_step": report.phase_step} if report.phase else {}
    return {**finite(report.metrics), **phase}


def has_start(folder: Path) -> bool:
    """Whether a run's journal holds the evaluation before training."""
    return any(row["step"] == 0 for row in read_rows(folder / EVALUATIONS)[0])


def shown_indices(evaluation: Evaluation, *, most: int = SHOWN_SAMPLES) -> list[int]:
    """Which samples are shown: every prompt's first one comes before any prompt's second."""
    return kept([sample.group for sample in evaluation.samples], most)


def save_samples(folder: Path, evaluation: Evaluation, *, most: int = SHOWN_SAMPLES) -> None:
    """Write `most` samples (pictures as PNG), and `samples.jsonl` with their prompts and scores."""
    indices = shown_indices(evaluation, most=most)
    totals = evaluation.scores.totals.tolist()
    rows = []
    for i in indices:
        scores = finite(dict(zip(evaluation.scores.names, evaluation.scores.matrix[i].tolist(), strict=True)))
        rows.append({**_write_output(folder, i, evaluation.samples[i]), "scores": scores, "reward": _number(totals[i])})
    _write_rows(folder, rows)


def _all_scores(evaluation: Evaluation) -> dict[str, Any]:
    """Every sample's scores, and which samples share a prompt: what a paired comparison needs."""
    order: dict[int, int] = {}
    texts = []
    for sample in evaluation.samples:
        if sample.group not in order:
            order[sample.group] = len(order)
            texts.append(sample.prompt.text)
    return {
        "prompts": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        "prompt": [order[sample.group] for sample in evaluation.samples],
        "scores": {name: [_number(x) for x in column.tolist()] for name, column in evaluation.columns().items()},
    }


def save_outputs(folder: Path, samples: Sequence[Sample]) -> None:
    """Write samples without scores."""
    _write_rows(folder, [_write_output(folder, i, sample) for i, sample in enumerate(samples)])


def _write_output(folder: Path, index: int, sample: Sample) -> dict[str, Any]:
    row: dict[str, Any] = {"prompt": sample.prompt.text}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write_pictures(folder, index, sample, row)
    if not isinstance(sample.output, Image.Image):
        row["output"] = sample.output if isinstance(sample.output, str) else repr(sample.output)
    if sample.prompt.target is not None and "target" not in row:
        row["target_text"] = str(sample.prompt.target)
    return row


def _write_pictures(folder: Path, index: int, sample: Sample, row: dict[str, Any]) -> None:
    """Write what can be shown as a picture, and note the files in `row`."""
    if isinstance(sample.output, Image.Image):
        row["file"] = f"{index:04d}.png"
        _as_png(sample.output).save(folder / row["file"])
    elif isinstance(sample.output, Drawable):
        row["file"] = f"{index:04d}.png"
        (folder / row["file"]).write_bytes(sample.output._repr_png_())
    for name, picture in (("source", sample.prompt.image), ("target", sample.prompt.target)):
        if isinstance(picture, Image.Image):
            row[name] = f"{index:04d}.{name}.png"
            _as_png(picture).save(folder / row[name])


def _as_png(picture: Image.Image) -> Image.Image:
    """The picture in a mode that PNG has: these files are for looking at."""
    return picture if picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16") else picture.convert("RGB")


def _write_rows(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    write_text(folder / ROWS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def finite(row: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: it becomes null."""
    return {name: _number(value) for name, value in row.items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
