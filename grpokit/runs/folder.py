"""The files of a run folder: who may write there, and how each file grows.

`config.yaml` (resolved), `versions.json`, `metrics.jsonl` (one object per step), `eval.jsonl` (one per evaluation),
`warnings.jsonl` (what guards noticed), `samples/` (the same held-out prompts at every evaluation), `groups/` (the best
and the worst group of some steps). What `grpokit.report` reads is written here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import grpokit
from grpokit import registry
from grpokit.config import yaml_source
from grpokit.config.schema import RunConfig, resolved
from grpokit.errors import RunError, UsageError
from grpokit.evaluation.held_out import Evaluation
from grpokit.images import Drawable
from grpokit.report import listed, read_journal
from grpokit.types import Sample, StepReport

SHOWN_SAMPLES = 16


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder; a process that is killed lets go of it too.

    Raises:
        UsageError: another process trains there, or the folder cannot be made.
    """
    real = Path(os.path.realpath(folder))  # a link to it is the same folder
    path = real.parent / f".{real.name}.lock"
    new = [place for place in path.parents if not place.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = path.open("a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                owner = file.read()
                file.close()
                raise UsageError(
                    f"Another process{f' ({owner})' if owner else ''} is training in {folder}. Wait for its end, or "
                    "choose another folder with run.dir=..."
                ) from error
            except OSError:  # a file system without locks
                break
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
            file.close()  # its last owner has just deleted it
    except OSError as error:
        raise UsageError(f"The run folder {folder} cannot be made: {error}.") from error
    try:
        with file:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
    finally:
        with suppress(OSError):  # of one that holds the run
            for parent in new:
                parent.rmdir()


@contextmanager
def claimed(folder: Path, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Make the folder ready for a run that the context sets up.

    A run that `overwrite` replaces is deleted when the context ends well, and put back when it does not.

    Raises:
        UsageError: the folder is in use, holds something else, cannot be made, or has nothing to resume.
    """
    real = Path(os.path.realpath(folder))  # a link to a run stays a link
    former = real.parent / f".{real.name}.replaced"
    try:
        if former.exists():  # a replacement was killed while it was set up
            shutil.rmtree(real, ignore_errors=True)
            os.replace(former, real)
        used = _check(folder, resume=resume, overwrite=overwrite)
        new = [place for place in (real, *real.parents) if not place.exists()]
        if used and overwrite:
            os.replace(real, former)
        real.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The run folder {folder} cannot be made: {error}.") from error
    try:
        yield
    except BaseException:
        if former.exists():
            shutil.rmtree(real)
            os.replace(former, real)
        elif not used:
            for place in real.iterdir():
                shutil.rmtree(place) if place.is_dir() else place.unlink()
            with suppress(OSError):  # of a parent that something else was put into meanwhile
                for made in new:
                    made.rmdir()
        raise
    if former.exists():
        gone = real.parent / f".{real.name}.deleted"
        shutil.rmtree(gone, ignore_errors=True)
        os.replace(former, gone)  # half of a run that is being deleted is never put back
        shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk or a folder without permission is an error of the run, which can be resumed.

    Raises:
        RunError: names what could not be written.
    """
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}.") from error


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


def versions() -> dict[str, Any]:
    """The versions of Python, grpokit, torch and all plugins."""
    return {
        "python": platform.python_version(),
        "grpokit": grpokit.__version__,
        "torch": str(torch.__version__),
        "plugins": {p.name: f"{p.package} {p.version}" for p in registry.plugins() if not p.error},
    }


def write_header(folder: Path, config: RunConfig) -> None:
    """Write the resolved config and the versions of all that took part."""
    settings = resolved(config)
    settings["run"]["dir"] = str(folder)
    _write(folder / "config.yaml", yaml_source.write(settings))
    _write(folder / "versions.json", json.dumps(versions(), indent=2))


class Journal:
    """The growing files of a run. After a resume, what lies beyond the checkpoint is cut off first."""

    def __init__(self, folder: Path, completed: int) -> None:
        self.folder = folder
        self.last_evaluation = -1
        self.last_step = 0
        self._evaluations: list[Mapping[str, Any]] = []
        damaged = []
        for name in ("metrics.jsonl", "eval.jsonl", "warnings.jsonl"):
            path = folder / name
            if name == "warnings.jsonl" and not path.is_file():
                continue  # it is there only once something was noticed
            found, bad = read_journal(path)
            if bad:
                damaged.append(f"{name} held lines that are no rows, which were left out on resume: {listed(bad)}.")
            rows = [row for row in found if row["step"] <= completed]
            _write(path, "".join(json.dumps(row) + "\n" for row in rows))
            if name == "eval.jsonl" and rows:
                self.last_evaluation = rows[-1]["step"]
                self._evaluations = list(rows)
            elif name == "metrics.jsonl" and rows:
                self.last_step = rows[-1]["step"]
        for line in damaged:
            self.warning(completed, line)
        for place in [*folder.glob("samples/step_*"), *folder.glob("groups/step_*")]:
            number = place.name.removeprefix("step_")
            if number.isdecimal() and int(number) > completed:
                shutil.rmtree(place)

    def step(self, done: StepReport) -> None:
        """Append a step's metrics, and what guards noticed in it."""
        for line in done.warnings:
            self.warning(done.step, line)
        self._append("metrics.jsonl", _finite(done.metrics))
        self.last_step = done.step

    def warning(self, step: int, message: str) -> None:
        """Append a warning: step 0 stands for what was noticed before the first step."""
        self._append("warnings.jsonl", {"step": step, "message": message})

    def evaluation(self, step: int, found: Evaluation) -> None:
        """Append an evaluation's means, and keep all its scores and some of its samples."""
        place = self.folder / "samples" / f"step_{step:06d}"
        with _writing(place):
            place.mkdir(parents=True, exist_ok=True)
        _write(place / "scores.json", json.dumps(_all_scores(found)))
        save_samples(place, found)
        row = {"step": step, **_finite(found.summary())}
        self._append("eval.jsonl", row)
        self._evaluations.append(row)
        self.last_evaluation = step

    def is_best(self, name: str, *, weight: float = 1.0) -> bool:
        """Whether the last evaluation has the best mean of a score, of all after the start.

        Args:
            name: the score's.
            weight: the reward's: below 0 the lowest mean is the best, as in training, else the highest.
        """
        *earlier, last = self._evaluations
        sign = -1 if weight < 0 else 1
        others = [sign * row[name] for row in earlier if row["step"] > 0 and row.get(name) is not None]
        return last["step"] > 0 and last[name] is not None and sign * last[name] > max(others, default=-math.inf)

    def groups(self, done: StepReport) -> None:
        """Keep the samples of a step's best and worst group, by the mean of their totals."""
        totals = done.totals
        ids = done.rollout.groups.cpu()
        means = {group: float(totals[ids == group].nanmean()) for group in ids.unique().tolist()}
        ranked = sorted((g for g, mean in means.items() if not math.isnan(mean)), key=means.__getitem__)
        mask, advantages = done.rollout.mask.cpu(), done.advantages.cpu()
        if advantages.dim() == 2:  # [B, T] -> [B], over real decisions
            advantages = torch.where(mask, advantages, 0).sum(-1) / mask.sum(-1).clamp(min=1)
        folder = self.folder / "groups" / f"step_{done.step:06d}"
        rows = [
            {
                "place": place,
                "group": group,
                **_write_output(folder, i, done.rollout.samples[i]),
                "scores": _finite(dict(zip(done.reward_names, done.rewards[i].tolist(), strict=True))),
                "reward": _number(float(totals[i])),
                "advantage": float(advantages[i]),
            }
            for place, chosen in (("best", ranked[-1:]), ("worst", ranked[:-1][:1]))
            for group in chosen
            for i in (ids == group).nonzero()[:, 0].tolist()
        ]
        if rows:
            _write_rows(folder, rows)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        path = self.folder / name
        with _writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def save_samples(folder: Path, found: Evaluation, *, most: int = SHOWN_SAMPLES) -> None:
    """Write samples (pictures as PNG) and `samples.jsonl` with their prompts and scores.

    Where there are more than `most`, every prompt's first sample comes before any prompt's second.
    """
    seen: Counter[int] = Counter()
    turn = []  # of each sample, among its prompt's
    for sample in found.samples:
        turn.append(seen[sample.group])
        seen[sample.group] += 1
    chosen = sorted(sorted(range(len(turn)), key=turn.__getitem__)[:most])
    totals = found.scores.totals.tolist()
    rows = []
    for i in chosen:
        scores = _finite(dict(zip(found.scores.names, found.scores.matrix[i].tolist(), strict=True)))
        rows.append({**_write_output(folder, i, found.samples[i]), "scores": scores, "reward": _number(totals[i])})
    _write_rows(folder, rows)


def _all_scores(found: Evaluation) -> dict[str, Any]:
    """Every sample's scores, and which samples share a prompt: what a paired comparison needs."""
    order: dict[int, int] = {}
    texts = []
    for sample in found.samples:
        if sample.group not in order:
            order[sample.group] = len(order)
            texts.append(sample.prompt.text)
    return {
        "prompts": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        "prompt": [order[sample.group] for sample in found.samples],
        "scores": {name: [_number(x) for x in column.tolist()] for name, column in found.columns().items()},
    }


def save_outputs(folder: Path, samples: Sequence[Sample]) -> None:
    """Write samples without scores."""
    _write_rows(folder, [_write_output(folder, i, sample) for i, sample in enumerate(samples)])


def _write_output(folder: Path, index: int, sample: Sample) -> dict[str, Any]:
    row: dict[str, Any] = {"prompt": sample.prompt.text}
    with _writing(folder):
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
    for name, given in (("source", sample.prompt.image), ("target", sample.prompt.target)):
        if isinstance(given, Image.Image):
            row[name] = f"{index:04d}.{name}.png"
            _as_png(given).save(folder / row[name])


def _as_png(picture: Image.Image) -> Image.Image:
    """The picture in a mode that PNG has: these files are for looking at."""
    return picture if picture.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16") else picture.convert("RGB")


def _write_rows(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    _write(folder / "samples.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _finite(row: Mapping[str, float]) -> dict[str, float | None]:
    """NaN is no JSON: it becomes null."""
    return {name: _number(value) for name, value in row.items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write(path: Path, text: str) -> None:
    """Write a whole file or nothing; half a surrogate pair, which UTF-8 cannot hold, as its JSON escape."""
    temporary = path.with_suffix(".partial")
    with _writing(path):
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, path)
