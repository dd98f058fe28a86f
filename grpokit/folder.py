"""The files of a run folder: who may write there, and how each file grows.

`config.yaml` (resolved), `versions.json`, `metrics.jsonl` (one object per step), `eval.jsonl` (one per evaluation),
`warnings.jsonl` (what guards noticed),
`samples/` (the same held-out prompts at every evaluation). What `grpokit.report` reads is written here.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image

import grpokit
from grpokit import registry
from grpokit.config import RunConfig, resolved
from grpokit.errors import RunError, UsageError
from grpokit.evaluation import Evaluation
from grpokit.report import read_rows
from grpokit.types import Sample, StepReport

SHOWN_SAMPLES = 16


@contextmanager
def claimed(folder: Path, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Make the folder ready for a run that the context sets up.

    A run that `overwrite` replaces is deleted when the context ends well, and put back when it does not.

    Raises:
        UsageError: the folder is in use, holds something else, cannot be made, or has nothing to resume.
    """
    used = _check(folder, resume=resume, overwrite=overwrite)
    former = folder.with_name(f".{folder.name}.replaced")
    new = not folder.exists()
    try:
        if used and overwrite:
            shutil.rmtree(former, ignore_errors=True)
            os.replace(folder, former)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The run folder {folder} cannot be made: {error}.") from error
    try:
        yield
    except BaseException:
        if former.exists():
            shutil.rmtree(folder)
            os.replace(former, folder)
        elif new:
            shutil.rmtree(folder)
        raise
    shutil.rmtree(former, ignore_errors=True)


def _check(folder: Path, *, resume: bool, overwrite: bool) -> bool:
    """Refuse a folder that may not be written to; returns whether it holds a run."""
    if resume and overwrite:
        raise UsageError("Give either --resume or --overwrite, not both.")
    used = folder.is_dir() and any(folder.iterdir())
    ours = all((folder / name).is_file() for name in ("config.yaml", "versions.json"))  # a project may have the first
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"The run folder {folder} is a file. Choose another with run.dir=...")
    if resume and not used:
        raise UsageError(
            f"There is nothing to resume in {folder}: it is {'empty' if folder.is_dir() else 'not there'}."
        )
    if used and not ours:
        raise UsageError(f"{folder} holds files that are no run of grpokit. Choose another folder with run.dir=...")
    if used and not resume and not overwrite:
        raise UsageError(
            f"{folder} holds a run already. Add --resume to go on with it, --overwrite to delete it and start anew, "
            "or choose another folder with run.dir=..."
        )
    return used


def write_header(folder: Path, config: RunConfig) -> None:
    """Write the resolved config and the versions of all that took part."""
    versions = {
        "python": platform.python_version(),
        "grpokit": grpokit.__version__,
        "torch": torch.__version__,
        "plugins": {p.name: f"{p.package} {p.version}" for p in registry.plugins() if not p.error},
    }
    settings = resolved(config)
    settings["run"]["dir"] = str(folder)
    _write(folder / "config.yaml", yaml.safe_dump(settings, sort_keys=False))
    _write(folder / "versions.json", json.dumps(versions, indent=2))


class Journal:
    """The growing files of a run. After a resume, what lies beyond the checkpoint is cut off first."""

    def __init__(self, folder: Path, completed: int) -> None:
        self.folder = folder
        self.last_evaluation = -1
        for name in ("metrics.jsonl", "eval.jsonl", "warnings.jsonl"):
            path = folder / name
            if not path.is_file():
                continue
            rows = [row for row in read_rows(path) if row["step"] <= completed]
            _write(path, "".join(json.dumps(row) + "\n" for row in rows))
            if name == "eval.jsonl" and rows:
                self.last_evaluation = rows[-1]["step"]

    def step(self, done: StepReport) -> None:
        """Append a step's metrics, and what guards noticed in it."""
        for line in done.warnings:
            self.warning(done.step, line)
        self._append("metrics.jsonl", _finite(done.metrics))

    def warning(self, step: int, message: str) -> None:
        """Append a warning: step 0 stands for what was noticed before the first step."""
        self._append("warnings.jsonl", {"step": step, "message": message})

    def evaluation(self, step: int, found: Evaluation) -> None:
        """Append an evaluation's means, and keep its first samples."""
        save_samples(self.folder / "samples" / f"step_{step:06d}", found)
        self._append("eval.jsonl", {"step": step, **_finite(found.summary())})
        self.last_evaluation = step

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        try:
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise RunError(f"{self.folder / name} cannot be written: {error}.") from error


def save_samples(folder: Path, found: Evaluation, *, most: int | None = SHOWN_SAMPLES) -> None:
    """Write samples (pictures as PNG) and `samples.jsonl` with their prompts and scores."""
    rows = []
    for i, sample in enumerate(found.samples[:most]):
        scores = _finite(dict(zip(found.scores.names, found.scores.matrix[i].tolist(), strict=True)))
        rows.append({**_write_output(folder, i, sample), "scores": scores})
    _write_rows(folder, rows)


def save_outputs(folder: Path, samples: Sequence[Sample]) -> None:
    """Write samples without scores."""
    _write_rows(folder, [_write_output(folder, i, sample) for i, sample in enumerate(samples)])


def _write_output(folder: Path, index: int, sample: Sample) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    row: dict[str, Any] = {"prompt": sample.prompt.text}
    if isinstance(sample.output, Image.Image):
        row["file"] = f"{index:04d}.png"
        sample.output.save(folder / row["file"])
    else:
        row["output"] = sample.output if isinstance(sample.output, str) else repr(sample.output)
    if isinstance(sample.prompt.target, Image.Image):
        row["target"] = f"{index:04d}.target.png"
        sample.prompt.target.save(folder / row["target"])
    elif sample.prompt.target is not None:
        row["target_text"] = str(sample.prompt.target)
    return row


def _write_rows(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    _write(folder / "samples.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _finite(row: Mapping[str, float]) -> dict[str, float | None]:
    """NaN is no JSON: it becomes null."""
    return {name: value if math.isfinite(value) else None for name, value in row.items()}


def _write(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    temporary = path.with_suffix(".partial")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
