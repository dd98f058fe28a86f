"""Trackers: accelerate's, with the pictures and the config that people expect, and with failures that stop no training.

accelerate starts each tracker, and its own `log` serves those that are not named here. grpokit uses accelerate for
this, and to know an error that means out of memory. TensorBoard and W&B get more: samples as pictures or texts with
their prompts and scores, and the config in the form that their pages show.
"""

from __future__ import annotations

import html
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from PIL import Image

from grpokit.errors import UsageError, error_line
from grpokit.processes.forks import forks_ended

_MOST_FAILURES = 3  # in a row


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A sample as a tracker shows it.

    Attributes:
        prompt: its text.
        output: a picture, or the text of any other output.
        scores: name -> score, the total first; None where a reward could not score it.
    """

    prompt: str
    output: Image.Image | str
    scores: Mapping[str, float | None]


class Tracker:
    """One of accelerate's trackers, which may fail at any time: a warning says so once, and training continues.

    After three failures in a row nothing more is sent to it, since a server that does not answer would slow every step.

    Args:
        started: accelerate's tracker, at work already.
        warn: gets a sentence about a failure.
    """

    def __init__(self, started: Any, warn: Callable[[str], None]) -> None:
        self.name = str(started.name)
        self.started = started
        self._warn = warn
        self._failures = 0
        self._warned = False

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Log the numbers of a step."""
        self._try(lambda: self._log(dict(values), step))

    def evaluation(self, step: int, scores: Mapping[str, float], samples: Sequence[Shown]) -> None:
        """Log an evaluation.

        Args:
            step: completed steps.
            scores: held-out means and the half-widths of their intervals.
            samples: some of its samples, at least one; only TensorBoard and W&B show them.
        """
        values = {f"eval/{name}": value for name, value in scores.items()}
        self._try(lambda: self._evaluation(step, values, samples))

    def config(self, config: Mapping[str, Any], step: int) -> None:
        """Store a run's config; what fails here is raised, since the run has not begun."""
        self.started.store_init_configuration(flat(config))

    def finish(self, *, failed: bool = False) -> None:
        """Let it write everything and end."""
        self._try(lambda: self._finish(failed=failed))

    def _try(self, act: Callable[[], None]) -> None:
        if self._failures == _MOST_FAILURES:
            return
        try:
            with forks_ended():
                act()
        except Exception as error:  # any package, and any server behind it
            self._failures += 1
            if not self._warned:
                self._warned = True
                self._warn(
                    f"the tracker '{self.name}' failed ({error_line(error)}); training continues, and the tracker may "
                    f"lack entries. After {_MOST_FAILURES} failures in a row nothing more is sent to it"
                )
        else:
            self._failures = 0

    def _log(self, values: dict[str, Any], step: int) -> None:
        self.started.log(values, step=step)

    def _evaluation(self, step: int, scores: dict[str, float], samples: Sequence[Shown]) -> None:
        self.started.log(scores, step=step)

    def _finish(self, *, failed: bool) -> None:
        self.started.finish()


class TensorBoard(Tracker):
    """A picture per sample, prompts and scores as a table of text, the config as YAML and as hyperparameters."""

    def config(self, config: Mapping[str, Any], step: int) -> None:
        """Store the config as text; the hyperparameters once for a run."""
        from torch.utils.tensorboard.summary import hparams

        writer = self.started.writer
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        writer.add_text("config", "".join(f"    {line}\n" for line in text.splitlines()), step)
        if step == 0:
            for summary in hparams(flat(config), {}):
                writer.file_writer.add_summary(summary)
        writer.flush()

    def _evaluation(self, step: int, scores: dict[str, float], samples: Sequence[Shown]) -> None:
        super()._evaluation(step, scores, samples)
        writer = self.started.writer
        head = ["", "prompt", *samples[0].scores, "output"]
        table = [head, ["---"] * len(head)]
        for i, sample in enumerate(samples):
            output = sample.output
            if isinstance(output, Image.Image):
                words = re.sub(r"[^0-9A-Za-z]+", "_", sample.prompt)[:40].strip("_")
                pixels = np.array(output.convert("RGB"))
                writer.add_image(f"samples/{i:02d}_{words}", pixels, step, dataformats="HWC")
                output = "picture"
            cells = [sample.prompt, *map(_score, sample.scores.values()), str(output)]
            table.append([f"{i:02d}", *map(_cell, cells)])
        writer.add_text("samples", "\n".join(f"| {' | '.join(row)} |" for row in table), step)
        writer.flush()


class WandB(Tracker):
    """A table of prompts, outputs and scores, the pictures with captions, and a step axis that survives a resume.

    W&B cannot take an entry back. So after a resume, entries that it has are not sent again.

    Attributes:
        has_step: the last step that it has.
        has_evaluation: the step of the last evaluation that it has; -1 for none.
    """

    has_step, has_evaluation = 0, -1

    def config(self, config: Mapping[str, Any], step: int) -> None:
        """Store the config, and make `step` the axis of all charts."""
        run = self.started.run
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        run.config.update(dict(config), allow_val_change=True)

    def _log(self, values: dict[str, Any], step: int) -> None:
        if step > self.has_step:
            self.started.run.log({**values, "step": step})

    def _evaluation(self, step: int, scores: dict[str, float], samples: Sequence[Shown]) -> None:
        import wandb

        if step <= self.has_evaluation:
            return
        pictures = []
        rows = []
        for sample in samples:
            output: Any = sample.output
            if isinstance(output, Image.Image):
                scored = ", ".join(f"{name} {_score(value)}" for name, value in sample.scores.items())
                output = wandb.Image(output.convert("RGB"), caption=f"{sample.prompt}\n{scored}")
                pictures.append(output)
            rows.append([sample.prompt, output, *sample.scores.values()])
        table = wandb.Table(columns=["prompt", "output", *samples[0].scores], data=rows)
        values: dict[str, Any] = {"step": step, **scores, "eval/samples": table}
        if pictures:
            values["eval/pictures"] = pictures
        self.started.run.log(values)

    def _finish(self, *, failed: bool) -> None:
        self.started.run.finish(exit_code=int(failed))


def _score(value: float | None) -> str:
    return "not scored" if value is None else f"{value:.3f}"


def _cell(text: str) -> str:
    """Text in a cell of a Markdown table: nothing in it is markup."""
    line = " ".join(html.escape(text).split())
    plain = re.sub(r"([\\`*_\[\]~])", r"\\\1", line)
    return plain.replace("|", "&#124;")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config with dotted keys; lists become JSON, and null the word.

    >>> flat({"trackers": {"name": "first", "tags": ["a"]}})
    {'trackers.name': 'first', 'trackers.tags': '["a"]'}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            plain = isinstance(value, (bool, int, float, str))
            found[f"{prefix}{name}"] = value if plain else json.dumps(value, default=str)
    return found


def require_trackers(names: Sequence[str]) -> None:
    """Make sure that the packages of trackers are there.

    Args:
        names: accelerate's.

    Raises:
        UsageError: a tracker is unknown, or its package is not installed; the message has the command.
    """
    installed = {str(kind.value) for kind in get_available_trackers()}
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise UsageError(f"There is no tracker '{name}'. Trackers are {', '.join(sorted(LOGGER_TYPE_TO_CLASS))}.")
        if name not in installed:
            raise UsageError(f"The tracker '{name}' is not installed. Run: pip install {name}")


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)


def start(
    names: Sequence[str],
    folder: Path | str | None,
    *,
    project: str = "grpokit",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    warn: Callable[[str], None] = _warn,
) -> list[Tracker]:
    """Start trackers.

    Args:
        names: accelerate's.
        folder: where they write; TensorBoard's files come into its folder `tensorboard`.
        project: that of W&B and the others with a server.
        options: name -> further arguments of accelerate's tracker.
        warn: gets a sentence about a failure later on; by default it is a `RuntimeWarning`.

    Raises:
        UsageError: a tracker is not installed, or cannot be started; there is no folder.
    """
    if not names:
        return []
    if folder is None:
        raise UsageError(f"Trackers ({', '.join(names)}) need a folder to log into.")
    require_trackers(names)
    trackers: list[Tracker] = []
    kinds = {"tensorboard": TensorBoard, "wandb": WandB}
    for name in dict.fromkeys(names):
        build: Any = LOGGER_TYPE_TO_CLASS[name]
        arguments = dict((options or {}).get(name, {}))
        if build.requires_logging_directory:
            arguments["logging_dir"] = str(folder)
        try:
            PartialState()  # accelerate's trackers ask it which process this is
            with forks_ended():
                started = build("tensorboard" if name == "tensorboard" else project, **arguments)
                started.start()
        except Exception as error:
            for other in trackers:
                other.finish(failed=True)
            raise UsageError(
                f"The tracker '{name}' cannot be started: {error_line(error)}. Fix that, or leave it out of trackers."
            ) from error
        trackers.append(kinds.get(name, Tracker)(started, warn))
    return trackers
