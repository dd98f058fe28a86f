"""The files of a run that grow: what is known after each step and each evaluation.

`metrics.jsonl` (one object per step), `eval.jsonl` (one per evaluation), `warnings.jsonl` (what guards noticed),
`attribution.jsonl` (what moves the rewards), `end.json` (how the run ended), `samples/` (the same held-out prompts at
every evaluation), `groups/` (the best and the worst group of some steps).
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from grpokit.data.digests import digest
from grpokit.evaluation.evaluation import Evaluation
from grpokit.evaluation.paired import ScoreTable
from grpokit.files import delete, step_folders, step_name, write_text, writing
from grpokit.images import Drawable
from grpokit.run_folder.names import (
    ATTRIBUTION,
    END,
    EVALUATIONS,
    GROUPS,
    METRICS,
    ROLLOUTS,
    ROWS,
    SAMPLES,
    SCORES,
    WAITING,
    WARNINGS,
)
from grpokit.run_folder.reader import Row, read_rows, shorten_prompt, turns
from grpokit.tracking.step_report import StepReport
from grpokit.training.checkpoint import read_state
from grpokit.types import Sample

SHOWN_SAMPLES = 16
_ENDS = 4  # samples with the highest scores, and with the lowest


class Journal:
    """The growing files of a run. After a resume, what lies beyond the checkpoint is cut off first.

    Args:
        folder: the run's.
        completed: steps of the checkpoint; 0 for a new run.

    Attributes:
        last_step: the last step in `metrics.jsonl`; 0 if there is none.
        evaluations: the rows of `eval.jsonl`.
    """

    def __init__(self, folder: Path, completed: int) -> None:
        self.folder = folder
        delete(folder / END)
        delete(folder / WAITING)
        rows: dict[str, list[Row]] = {}
        for name in (METRICS, EVALUATIONS, WARNINGS):
            rows[name] = [row for row in read_rows(folder / name) if row["step"] <= completed]
            if rows[name] or name != WARNINGS:  # which is written with the first warning
                write_text(folder / name, _lines(rows[name]))
        self.evaluations = rows[EVALUATIONS]
        self.last_step = rows[METRICS][-1]["step"] if rows[METRICS] else 0
        for kind in (SAMPLES, GROUPS, ROLLOUTS):
            for number, place in step_folders(folder / kind):
                if number > completed:
                    shutil.rmtree(place)

    @property
    def last_evaluation(self) -> int:
        """The step of the last evaluation; -1 if there is none."""
        return int(self.evaluations[-1]["step"]) if self.evaluations else -1

    def step(self, report: StepReport) -> None:
        """Append a step's metrics, and what guards noticed in it."""
        for line in report.warnings:
            self.warning(report.step, line)
        _append(self.folder / METRICS, journal_row(report))
        self.last_step = report.step

    def warning(self, step: int, message: str) -> None:
        """Append a warning: step 0 stands for what was noticed before the first step."""
        _append(self.folder / WARNINGS, {"step": step, "message": message})

    def end(self, state: str, planned: int, message: str = "") -> None:
        """Note how the run ended: "finished", "stopped" or "failed", its steps as planned, and why it ended early."""
        row = {"state": state, "planned": planned, "message": message}
        write_text(self.folder / END, json.dumps(row))

    def evaluation(self, step: int, evaluation: Evaluation, *, most: int = SHOWN_SAMPLES, title: str = "") -> None:
        """Append an evaluation's means, and keep all its scores, `most` of its samples, and its best and worst.

        Args:
            step: completed steps; its place among the evaluations.
            evaluation: the samples and scores.
            most: the number of samples that are kept, beside the best and the worst.
            title: what the page calls it; by default its step.
        """
        place = self.folder / SAMPLES / step_name(step)
        columns = {name: column.tolist() for name, column in evaluation.columns().items()}
        texts = evaluation.texts
        turn = turns(map(shorten_prompt, texts))
        shown = {*sample_indices(evaluation, most=most), *_best_and_worst(columns.get("reward", ()))}
        rows = []
        for i in sorted(shown):
            scores = finite({name: column[i] for name, column in columns.items()})
            reward = scores.pop("reward", None)
            row = _output(place, i, evaluation.samples[i])
            row |= {"prompt": texts[i], "turn": turn[i], "scores": scores, "reward": reward}
            rows.append(row)
        write_text(place / SCORES, json.dumps(all_scores(evaluation).model_dump()))
        write_text(place / ROWS, _lines(rows))
        titled = {"title": title} if title else {}
        self.evaluations.append({"step": step, **titled, **asdict(evaluation.summary)})
        _append(self.folder / EVALUATIONS, self.evaluations[-1])

    def set_evaluations_aside(self) -> str:
        """Rename all evaluations, so that the report leaves them out; returns a warning about it."""
        number = 1 + len(list(self.folder.glob("eval.earlier-*.jsonl")))
        samples = f"samples.earlier-{number}"
        rows = f"eval.earlier-{number}.jsonl"
        with writing(self.folder):
            if (self.folder / SAMPLES).exists():
                os.replace(self.folder / SAMPLES, self.folder / samples)
            os.replace(self.folder / EVALUATIONS, self.folder / rows)
        self.evaluations = []
        return f"earlier evaluations cannot be compared with later ones, so they are kept in {rows} and {samples}"

    def is_best(self, name: str, *, weight: float = 1.0) -> bool:
        """Whether the last evaluation has the best mean of a score among all evaluations after step 0.

        Args:
            name: the score's.
            weight: the reward's: below 0 the lowest mean is the best, as in training, else the highest.
        """
        *earlier, last = self._means(name, weight)
        rows = zip(earlier, self.evaluations, strict=False)
        before = [mean for mean, row in rows if row["step"]]
        return self.last_evaluation > 0 and last > max(before, default=-math.inf)

    def evaluations_without_gain(self, name: str, *, weight: float = 1.0) -> int:
        """How many evaluations have passed since the one with the best mean of a score; arguments as in `is_best`."""
        means = self._means(name, weight)
        return len(means) - 1 - means.index(max(means)) if means else 0

    def _means(self, name: str, weight: float) -> list[float]:
        """The mean of each evaluation, higher being better; -inf without one."""
        means = [row["means"].get(name) for row in self.evaluations]
        sign = -1 if weight < 0 else 1
        return [-math.inf if mean is None else sign * mean for mean in means]

    def groups(self, report: StepReport) -> None:
        """Keep the samples of a step's best and worst group, by the mean of their totals."""
        ids = report.rollout.groups.cpu()
        means = {}
        for group in ids.unique().tolist():
            mean = float(report.totals[ids == group].nanmean())
            if not math.isnan(mean):
                means[group] = mean
        ranked = sorted(means, key=means.__getitem__)
        places: dict[int, str] = {}
        if ranked:
            places[ranked[-1]] = "best"
            places.setdefault(ranked[0], "worst")
        totals = report.totals.tolist()
        advantages = report.row_advantages().tolist()
        folder = self.folder / GROUPS / step_name(report.step)
        rows = []
        for group, place in places.items():
            for i in (ids == group).nonzero()[:, 0].tolist():
                rewards = report.rewards[i].tolist()
                scores = dict(zip(report.reward_names, rewards, strict=True))
                output = _output(folder, i, report.rollout.samples[i])
                numbers = finite({"reward": totals[i], "advantage": advantages[i]})
                rows.append({"place": place, "group": group, **output, "scores": finite(scores), **numbers})
        if rows:
            write_text(folder / ROWS, _lines(rows))

    def group_scores(self, step: int, groups: Evaluation) -> None:
        """Keep all scores of groups that an evaluation has drawn as in training."""
        place = self.folder / GROUPS / step_name(step)
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        write_text(place / SCORES, json.dumps(all_scores(groups).model_dump()))


def _append(path: Path, row: Row) -> None:
    with writing(path), path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(_lines([row]))


def append_attribution(
    folder: Path, checkpoint: Path, shares: Mapping[str, Mapping[str, float]], causes: tuple[str, str]
) -> None:
    """Append to a run what moves its rewards, which its report shows.

    Args:
        folder: the run's.
        checkpoint: whose weights have drawn.
        shares: reward -> "row", "group" and "both", the shares of its "variance", which was found on so many "prompts".
        causes: what rows draw, and what groups share.
    """
    row_cause, group_cause = causes
    step = read_state(checkpoint)["step"]
    row = {"step": step, "row": row_cause, "group": group_cause, "shares": shares}
    _append(folder / ATTRIBUTION, row)


def journal_row(report: StepReport) -> dict[str, Any]:
    """A step's row in `metrics.jsonl`."""
    row: dict[str, Any] = finite(report.metrics)
    if report.phase:
        row |= {"phase": report.phase, "phase_step": report.phase_step}
    return row


def sample_indices(evaluation: Evaluation, *, most: int = SHOWN_SAMPLES) -> list[int]:
    """Which samples are shown: every prompt's first one comes before any prompt's second."""
    turn = turns(evaluation.scores.groups.tolist())
    by_turn = sorted(range(len(turn)), key=turn.__getitem__)
    return sorted(by_turn[:most])


def _best_and_worst(totals: Sequence[float]) -> list[int]:
    scored = [i for i, total in enumerate(totals) if not math.isnan(total)]
    ranked = sorted(scored, key=totals.__getitem__)
    return ranked[:_ENDS] + ranked[-_ENDS:]


def all_scores(evaluation: Evaluation) -> ScoreTable:
    """Every sample's scores, and which samples share a prompt: what a paired comparison needs."""
    groups = evaluation.scores.groups.tolist()
    prompts = dict(zip(groups, evaluation.prompts, strict=True))
    places = {group: place for place, group in enumerate(prompts)}
    pictures = dict(zip(groups, evaluation.pictures, strict=True))
    asked = []
    for group, prompt in prompts.items():
        target = prompt.target if isinstance(prompt.target, str) else ""
        asked.append((prompt.text, target, pictures[group]))
    scores = {}
    for name, column in evaluation.columns().items():
        scores[name] = [score if math.isfinite(score) else None for score in column.tolist()]
    return ScoreTable.model_construct(
        prompts=[digest([*words, turn]) for words, turn in zip(asked, turns(asked), strict=True)],
        prompt=[places[group] for group in groups],
        texts=[shorten_prompt(text) for text, _, _ in asked],
        scores=scores,
    )


def save_outputs(folder: Path, samples: Sequence[Sample]) -> None:
    """Write samples without scores: `samples.jsonl`, and pictures as PNG."""
    rows = [_output(folder, i, sample) for i, sample in enumerate(samples)]
    write_text(folder / ROWS, _lines(rows))


def _output(folder: Path, index: int, sample: Sample) -> dict[str, Any]:
    """A sample's row; what can be shown as a picture is written into `folder`."""
    row: dict[str, Any] = {"prompt": sample.prompt.text}
    prompt = sample.prompt
    pictures = {"file": sample.output, "source": prompt.image, "target": prompt.target}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            ending = "png" if name == "file" else f"{name}.png"
            file = folder / f"{index:04d}.{ending}"
            if isinstance(picture, Image.Image):
                _as_png(picture).save(file)
            elif isinstance(picture, Drawable):
                file.write_bytes(picture._repr_png_())
            else:
                continue
            row[name] = file.name
    if not isinstance(sample.output, (Image.Image, type(None))):
        row["output"] = sample.output if isinstance(sample.output, str) else repr(sample.output)
    if prompt.target is not None and "target" not in row:
        row["target_text"] = str(prompt.target)
    numbers = {name: value for name, value in sample.info.items() if isinstance(value, int | float)}
    if numbers:
        row["info"] = finite(numbers)
    return row


def _as_png(picture: Image.Image) -> Image.Image:
    """The picture in a mode that PNG has: these files are for looking at."""
    if picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"):
        return picture
    return picture.convert("RGB")


def _lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def finite(row: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: it becomes null."""
    return {name: value if math.isfinite(value) else None for name, value in row.items()}
