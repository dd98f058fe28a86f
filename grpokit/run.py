"""A run: a config, a folder, and the loop that fills it.

The folder holds `config.yaml` (resolved), `versions.json`, `metrics.jsonl` (one object per step), `eval.jsonl` (one
per evaluation), `samples/` (the same held-out prompts at every evaluation), `checkpoints/` and `report.html`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image

import grpokit
from grpokit import build, checkpoint, registry, report
from grpokit.config import RunConfig, resolved
from grpokit.errors import RewardError, RunError, UsageError
from grpokit.evaluation import Evaluation, evaluate
from grpokit.policy import Policy
from grpokit.reward import RewardTerm
from grpokit.trainer import Trainer
from grpokit.types import Prompt, Sample, StepReport

SHOWN_SAMPLES = 16


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """What a front end wants to hear of a run; every part may be left out.

    Attributes:
        say: one line of news.
        start: the trainer is ready.
        step: a step is done.
        evaluated: held-out prompts were scored after so many steps.
    """

    say: Callable[[str], None] = lambda line: None
    start: Callable[[Trainer], None] = lambda trainer: None
    step: Callable[[StepReport], None] = lambda report: None
    evaluated: Callable[[int, Evaluation], None] = lambda step, evaluation: None


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended.

    Attributes:
        folder: the run folder.
        steps: completed steps.
        before: evaluation before the first step, None without held-out prompts.
        after: evaluation after the last step.
        interrupted: it was stopped by Ctrl-C, and can be resumed.
    """

    folder: Path
    steps: int
    before: Mapping[str, float] | None
    after: Mapping[str, float] | None
    interrupted: bool = False


def train(
    config: RunConfig,
    *,
    name: str = "run",
    resume: bool = False,
    overwrite: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """Train as the config says, and leave a run folder.

    Args:
        config: the run.
        name: names the folder where the config does not.
        resume: go on from the folder's last checkpoint.
        overwrite: delete what is in the folder.
        watcher: hears of progress.

    Raises:
        UsageError: bad input, or a folder that is in use without `resume` or `overwrite`.
        RunError, RewardError: the run failed; the message says what is left.
    """
    watcher = watcher or Watcher()
    folder = Path(config.run.dir or Path("runs") / name)
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    terms = build.rewards(config)
    prompts, held_out = build.prompts(config)
    policy = build.policy(config)
    _claim(folder, resume=resume, overwrite=overwrite)
    trainer = build.trainer(config, policy, terms, prompts, folder)
    if resume:
        _resume(trainer, folder)
    _write_header(folder, config)
    watcher.start(trainer)
    _tell(watcher, "grpokit_run_start", folder=folder, config=config.model_dump())

    journal = _Journal(folder, trainer.completed)

    def look() -> None:
        if held_out is not None and journal.last_evaluation != trainer.completed:
            found = _evaluate(config, policy, terms, held_out)
            journal.evaluation(trainer.completed, found)
            watcher.evaluated(trainer.completed, found)

    def save() -> Path:
        place = folder / "checkpoints" / f"step_{trainer.completed:06d}"
        trainer.save(place)
        return place

    every = config.run.eval_every
    if journal.last_evaluation < 0 or (every and trainer.completed % every == 0):  # a resume adds none of its own
        look()
    with _stop_on_interrupt() as stop:
        while trainer.completed < trainer.steps and not stop.is_set():
            try:
                done = trainer.step()
                journal.step(done)
                watcher.step(done)
                _tell(watcher, "grpokit_step_end", report=done)
                if every and done.step % every == 0:
                    look()
            except (RewardError, UsageError) as error:  # both come before a step's first update, or after its last
                saved = f"The state after step {trainer.completed} is saved in {save()}; --resume goes on from it."
                raise type(error)(f"{error}\n{saved}") from error
            if config.run.save_every and done.step % config.run.save_every == 0:
                save()
    save()
    interrupted = trainer.completed < trainer.steps
    if not interrupted:
        look()
    report.write(folder)
    _tell(watcher, "grpokit_run_end", folder=folder)
    evaluations = read_jsonl(folder / "eval.jsonl")
    return Result(
        folder=folder,
        steps=trainer.completed,
        before=evaluations[0] if evaluations else None,
        after=evaluations[-1] if evaluations else None,
        interrupted=interrupted,
    )


def open_run(folder: Path) -> tuple[RunConfig, Path | None]:
    """Read a run folder: its resolved config and its latest checkpoint, if any.

    Raises:
        UsageError: it is no run folder.
    """
    if not (folder / "config.yaml").is_file():
        raise UsageError(f"{folder} is no run folder: it has no config.yaml.")
    config, _ = build.read_config(str(folder / "config.yaml"))
    return config, checkpoint.latest(folder / "checkpoints")


def _evaluate(config: RunConfig, policy: Policy, terms: Sequence[RewardTerm], held_out: Sequence[Prompt]) -> Evaluation:
    return evaluate(policy, terms, held_out, seed=config.seed, samples_per_prompt=config.run.eval_samples)


def _claim(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Make sure that the folder may be written to, and that nothing in it is lost by surprise."""
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
    try:
        if overwrite and used:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The run folder {folder} cannot be made: {error}.") from error


def _resume(trainer: Trainer, folder: Path) -> None:
    found = checkpoint.latest(folder / "checkpoints")
    if found is None:
        raise UsageError(f"{folder} has no checkpoint to resume from. Start anew with --overwrite.")
    trainer.load(found)


def _write_header(folder: Path, config: RunConfig) -> None:
    versions = {
        "python": platform.python_version(),
        "grpokit": grpokit.__version__,
        "torch": torch.__version__,
        "plugins": {p.name: f"{p.package} {p.version}" for p in registry.plugins() if not p.error},
    }
    _write(folder / "config.yaml", yaml.safe_dump(resolved(config), sort_keys=False))
    _write(folder / "versions.json", json.dumps(versions, indent=2))


def _write(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    temporary = path.with_suffix(".partial")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


class _Journal:
    """The growing files of a run. After a resume, what lies beyond the checkpoint is cut off first."""

    def __init__(self, folder: Path, completed: int) -> None:
        self.folder = folder
        self.last_evaluation = -1
        for name in ("metrics.jsonl", "eval.jsonl"):
            path = folder / name
            rows = [row for row in read_jsonl(path) if row["step"] <= completed]
            _write(path, "".join(json.dumps(row) + "\n" for row in rows))
            if name == "eval.jsonl" and rows:
                self.last_evaluation = rows[-1]["step"]

    def step(self, done: StepReport) -> None:
        self._append("metrics.jsonl", done.metrics)

    def evaluation(self, step: int, found: Evaluation) -> None:
        widths = found.half_widths()
        row: dict[str, float] = {"step": step}
        for name, mean in found.means().items():
            row[name] = mean
            row[f"{name}/ci95"] = widths[name]
        save_samples(self.folder / "samples" / f"step_{step:06d}", found)
        self._append("eval.jsonl", row)
        self.last_evaluation = step

    def _append(self, name: str, row: Mapping[str, float]) -> None:
        try:
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(_finite(row)) + "\n")
        except OSError as error:
            raise RunError(f"{self.folder / name} cannot be written: {error}.") from error


def _finite(row: Mapping[str, float]) -> dict[str, float | None]:
    """NaN is no JSON: it becomes null."""
    return {name: value if math.isfinite(value) else None for name, value in row.items()}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file that a run wrote; a torn last line, as a crash leaves it, is passed over."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").split("\n"):  # a text may hold other separators
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


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


def _tell(watcher: Watcher, hook: str, **arguments: Any) -> None:
    for line in registry.notify(hook, **arguments):
        watcher.say(f"warning: {line}")


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C sets the event, so that the step under way is finished; the second interrupts at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(signum: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
