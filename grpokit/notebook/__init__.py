"""Shows a run in a notebook: one live block with steps, time left, rewards with their curves, and the newest samples.

IPython's display protocol draws it, so a notebook keeps the last state when it is saved. Outside a notebook, `watch`
prints plain lines.
"""

from __future__ import annotations

import base64
import html
import io
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, overload

from PIL import Image

from grpokit.errors import UsageError, shown
from grpokit.evaluation.held_out import Evaluation
from grpokit.images import Drawable
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.runs.run import Watcher
from grpokit.tracking.progress import Course, Eta, IntervalLines, score_text, sparkline
from grpokit.tracking.step_report import StepReport
from grpokit.trainer import Trainer
from grpokit.types import Sample

_PAUSE = 0.5  # seconds between two states of the block
_PICTURE_PAUSE = 5.0  # seconds between two sets of training samples
_PIXELS = 192  # the longer side of a picture
_MOST_WARNINGS = 5


@overload
def watch(trainer: Trainer | PhasedTrainer, *, samples: int = 4) -> Iterator[StepReport]: ...


@overload
def watch(trainer: None = None, *, samples: int = 4) -> Watcher: ...


def watch(trainer: Trainer | PhasedTrainer | None = None, *, samples: int = 4) -> Iterator[StepReport] | Watcher:
    """Show a run in the notebook while it trains.

    Args:
        trainer: takes its remaining steps: `for report in watch(trainer)`. Without one the result is a watcher for
            `grpokit.runs.train.train(config, watcher=watch())`.
        samples: how many of the newest samples are shown: held-out ones of an evaluation, else one of each group.

    Returns:
        The reports of the steps, or the watcher.

    Raises:
        UsageError: trainer is something else.
    """
    if trainer is not None and not isinstance(trainer, (Trainer, PhasedTrainer)):
        raise UsageError(f"watch takes a Trainer, or nothing; got {shown(trainer)}.")
    block = _Block(samples)
    if trainer is not None:
        return _steps(trainer, block)
    return Watcher(
        say=block.say, start=block.start, step=block.step, evaluating=block.evaluating, evaluated=block.evaluated
    )


def _steps(trainer: Trainer | PhasedTrainer, block: _Block) -> Iterator[StepReport]:
    block.start(trainer)
    try:
        while trainer.completed < trainer.steps and not trainer.converged:
            report = trainer.step()
            block.step(report)
            yield report
    finally:  # also where the loop is left early
        block.finish()


class _Block:
    """What is shown of a run, and where."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.course, self.eta = Course(), Eta()
        self.rewards: dict[str, list[float]] = {}
        self.head, self.state, self.done, self.total = "", "", 0, 0
        self.warnings: list[str] = []
        self.pictures, self.held_out = "", False
        self.shown = self.drawn = -math.inf
        self.display: Any = None
        self.lines: IntervalLines | None = None

    def start(self, trainer: Trainer | PhasedTrainer) -> None:
        self.trainer = trainer
        self.done, self.total, self.head = trainer.completed, trainer.steps, trainer.describe()
        self.eta.start()
        self.display = _display()
        if self.display is None:
            self.lines = IntervalLines(trainer, write=_print)
        self.show()

    def say(self, line: str) -> None:
        if line.startswith("warning"):
            self.warnings.append(line)
        if self.lines is not None or self.display is None:
            _print(line)
        self.show()

    def step(self, report: StepReport) -> None:
        self.eta.step(report.phase, self.trainer.steps_left)
        self.done, self.state = report.step, self.course.line(report)
        for name in ("reward", *(f"rewards/{name}/mean" for name in report.reward_names)):
            if not math.isnan(value := report.metrics.get(name, math.nan)):
                self.rewards.setdefault(name.removeprefix("rewards/").removesuffix("/mean"), []).append(value)
        self.warnings += [f"step {report.step}: {line}" for line in report.warnings]
        last = self.done == self.total or bool(self.trainer.converged)
        if self.lines is not None:
            self.lines.step(report)
        elif not self.held_out and (last or time.monotonic() - self.drawn >= _PICTURE_PAUSE):
            firsts = {sample.group: i for i, sample in reversed(list(enumerate(report.rollout.samples)))}
            rows = sorted(firsts.values())[: self.most]
            self._draw(
                f"training samples of step {report.step}",
                [report.rollout.samples[i] for i in rows],
                [float(report.totals[i]) for i in rows],
            )
        if last:
            self.finish()
        elif time.monotonic() - self.shown >= _PAUSE:
            self.show()

    def evaluating(self, samples: int) -> None:
        self.state = f"drawing and scoring {samples} samples of held-out prompts ..."
        self.show()

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        if not self.rewards:
            self.eta.start()  # the evaluation before training does not slow the steps
        means = "  ".join(f"{name} {score_text(mean)}" for name, mean in evaluation.means().items())
        line = f"held-out prompts after step {step}: {means}"
        if self.lines is not None:
            _print(line)
            return
        self.held_out, self.state = True, ""
        totals = evaluation.scores.totals.tolist()
        firsts = {sample.group: i for i, sample in reversed(list(enumerate(evaluation.samples)))}
        rows = sorted(firsts.values())[: self.most]
        self._draw(line, [evaluation.samples[i] for i in rows], [totals[i] for i in rows])
        self.show()

    def finish(self) -> None:
        self.show()

    def _draw(self, title: str, samples: Sequence[Sample], totals: Sequence[float]) -> None:
        cells = "".join(
            f'<figure style="margin:4px;display:inline-block;vertical-align:top;max-width:{_PIXELS}px">'
            f"{_picture(sample)}<figcaption>{score_text(total)}: {html.escape(sample.prompt.text[:200])}"
            "</figcaption></figure>"
            for sample, total in zip(samples, totals, strict=True)
        )
        self.pictures = f"<div>{html.escape(title)}</div><div>{cells}</div>"
        self.drawn = time.monotonic()

    def show(self) -> None:
        """Draw the block again."""
        if self.display is None:
            return
        self.shown = time.monotonic()
        line = f"step {self.done} of {self.total}  {self.eta.text() if self.done < self.total else 'done'}"
        rewards = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{values[-1]:.3f}</td><td>{sparkline(values, 40)}</td></tr>"
            for name, values in self.rewards.items()
        )
        warnings = "".join(f"<li>{html.escape(line)}</li>" for line in self.warnings[-_MOST_WARNINGS:])
        hidden = len(self.warnings) - _MOST_WARNINGS
        more = f"<div>and {hidden} earlier warnings</div>" if hidden > 0 else ""
        page = (
            f'<div><progress value="{self.done}" max="{self.total}" aria-label="steps"></progress> {html.escape(line)}'
            f"</div><div>{html.escape(self.state)}</div><table>{rewards}</table>{self.pictures}"
            f"<ul>{warnings}</ul>{more}<details><summary>batches</summary><pre>{html.escape(self.head)}</pre></details>"
        )
        self.display.update({"text/html": page, "text/plain": f"{line}  {self.state}"}, raw=True)


def _display() -> Any:
    """A place for the block in the notebook's cell; None outside a notebook."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return None
    if getattr(get_ipython(), "kernel", None) is None:  # IPython in a terminal cannot update what it has shown
        return None
    return display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]


def _picture(sample: Sample) -> str:
    """A sample's output as HTML."""
    output = sample.output
    if isinstance(output, Drawable) and not isinstance(output, Image.Image):
        output = Image.open(io.BytesIO(output._repr_png_()))
    if not isinstance(output, Image.Image):
        return f'<pre style="white-space:pre-wrap">{html.escape(str(output)[:400])}</pre>'
    picture = output.convert("RGB")
    picture.thumbnail((_PIXELS, _PIXELS))
    file = io.BytesIO()
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    alt = html.escape(sample.prompt.text)
    return f'<img style="width:100%;min-width:96px" alt="{alt}" src="data:image/png;base64,{data}">'


def _print(line: str) -> None:
    print(line, flush=True)
