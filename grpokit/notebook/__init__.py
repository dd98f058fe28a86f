"""Shows a run in a notebook: one live block with steps, time left, rewards with their curves, and the newest samples.

IPython's display protocol draws it, so a notebook keeps the last state when it is saved. Outside a notebook, `watch`
prints plain lines.
"""

from __future__ import annotations

import base64
import io
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, overload

from grpokit.evaluation.evaluation import Evaluation
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.runs.contact_sheet import thumbnail
from grpokit.runs.run import Watcher
from grpokit.tracking.progress import RunLines, score_text, sparkline
from grpokit.tracking.step_report import StepReport
from grpokit.trainer import Trainer
from grpokit.types import Sample

_PAUSE = 1.0  # seconds between two states of the block


@overload
def watch(trainer: Trainer | PhasedTrainer, *, samples: int = 4) -> Iterator[StepReport]: ...


@overload
def watch(trainer: None = None, *, samples: int = 4) -> Watcher: ...


def watch(trainer: Trainer | PhasedTrainer | None = None, *, samples: int = 4) -> Iterator[StepReport] | Watcher:
    """Show a run in the notebook while it trains.

    Args:
        trainer: takes its remaining steps: `for report in watch(trainer)`. Without one the result is a watcher for
            `grpokit.runs.train.train(config, watcher=watch())`.
        samples: how many of the newest samples are shown, the first of each group.

    Returns:
        The reports of the steps, or the watcher.
    """
    block = _Block(samples)
    if trainer is not None:
        return _steps(trainer, block)
    return Watcher.of(block)


def _steps(trainer: Trainer | PhasedTrainer, block: _Block) -> Iterator[StepReport]:
    block.start(trainer)
    try:
        while trainer.completed < trainer.steps and not trainer.converged:
            report = trainer.step()
            block.step(report)
            yield report
    finally:  # also where the loop is left early
        block.show()


class _Block:
    """What is shown of a run: HTML that is drawn again in a notebook, else lines."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rewards: dict[str, list[float]] = {}
        self.warnings: list[str] = []
        self.state = ""
        self.pictures = ""
        self.shown = -math.inf
        self.display: Any = None

    def start(self, trainer: Trainer | PhasedTrainer) -> None:
        self.trainer = trainer
        self.display = _display()
        self.lines = RunLines(trainer.steps, self.say, bar=self.display is not None)
        self.say(trainer.describe())
        self.show()

    def say(self, line: str) -> None:
        if line.startswith("warning"):
            self.warnings.append(line)
        if self.display is None:
            print(line, flush=True)

    def step(self, report: StepReport) -> None:
        self.lines.step(report, self.trainer.steps_left)
        self.state = self.lines.news
        keys = {"reward": "reward"}
        keys |= {name: f"rewards/{name}/mean" for name in report.reward_names}
        for name, key in keys.items():
            mean = report.metrics.get(key, math.nan)
            if not math.isnan(mean):
                self.rewards.setdefault(name, []).append(mean)
        last = report.step == self.trainer.steps or bool(self.trainer.converged)
        if last or time.monotonic() - self.shown >= _PAUSE:
            self.draw(f"training samples of step {report.step}", report.rollout.samples, report.totals.tolist())
            self.show()

    def waiting(self, words: str) -> None:
        self.state = f"waits for {words}" if words else self.lines.news
        self.show()

    def evaluating(self, samples: int) -> None:
        self.state = f"drawing and scoring {samples} samples of held-out prompts ..."
        self.show()

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        line = self.lines.evaluated(step, evaluation.summary.means)
        self.state = ""
        self.draw(line, evaluation.samples, evaluation.scores.totals.tolist())
        self.show()

    def draw(self, title: str, samples: Sequence[Sample], totals: Iterable[float]) -> None:
        """Make the pictures of the first sample of each group."""
        if self.display is None:
            return
        firsts: dict[int, str] = {}
        for sample, total in zip(samples, totals, strict=True):
            if sample.group not in firsts and len(firsts) < self.most:
                caption = f"{score_text(total)}: {escape(sample.prompt.text[:200])}"
                firsts[sample.group] = (
                    '<figure style="margin:4px;display:inline-block;vertical-align:top;max-width:192px">'
                    f"{_picture(sample)}<figcaption>{caption}</figcaption></figure>"
                )
        self.pictures = f"<div>{escape(title)}</div><div>{''.join(firsts.values())}</div>"

    def show(self) -> None:
        """Draw the block again."""
        if self.display is None:
            return
        self.shown = time.monotonic()
        done, total = self.trainer.completed, self.trainer.steps
        line = f"step {done} of {total}  {self.lines.eta.text() if done < total else 'done'}"
        rewards = "".join(
            f"<tr><td>{escape(name)}</td><td>{values[-1]:.3f}</td><td>{sparkline(values, 40)}</td></tr>"
            for name, values in self.rewards.items()
        )
        warnings = "".join(f"<li>{escape(line)}</li>" for line in self.warnings[-5:])
        page = (
            f'<div><progress value="{done}" max="{total}" aria-label="steps"></progress> {escape(line)}</div>'
            f"<div>{escape(self.state)}</div><table>{rewards}</table>{self.pictures}<ul>{warnings}</ul>"
            f"<details><summary>batches</summary><pre>{escape(self.trainer.describe())}</pre></details>"
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
    picture = thumbnail(sample)
    if picture is None:
        return f'<pre style="white-space:pre-wrap">{escape(str(sample.output)[:400])}</pre>'
    file = io.BytesIO()
    picture.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img style="width:100%" alt="{escape(sample.prompt.text)}" src="data:image/png;base64,{data}">'
