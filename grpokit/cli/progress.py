"""Shows a run on a terminal: the batch arithmetic, a bar with ETA and the reward's trend, and evaluations.

Without a terminal it prints plain lines instead of a bar: after the first step, about ten times a run, and at least
once a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from grpokit.errors import counted

if TYPE_CHECKING:
    from grpokit.evaluation.held_out import Evaluation
    from grpokit.phases.phased_trainer import PhasedTrainer
    from grpokit.runs.run import Watcher
    from grpokit.tracking.step_report import StepReport

_WIDE = 60  # columns from which the bar has room for news
_LONGEST_SILENCE = 60  # seconds without a line, where no bar shows that the run goes on


class _Column(ProgressColumn):
    """Shows a text that changes with time."""

    def __init__(self, text: Callable[[Task], str], *, fixed: bool) -> None:
        super().__init__(Column(no_wrap=fixed))  # where there is no room, the others give theirs
        self._text = text

    def render(self, task: Task) -> Text:
        """The text of now."""
        return Text(self._text(task), no_wrap=True, overflow="ellipsis")


@contextmanager
def watch(console: Console) -> Iterator[Watcher]:
    """A watcher that shows the run on `console`."""
    from grpokit.runs.run import Watcher
    from grpokit.tracking.progress import Course, Eta, score_text

    eta = Eta()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _Column(lambda task: eta.text(), fixed=True),
        _Column(lambda task: task.fields["news"], fixed=False),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("training", total=None, news="", visible=False)
    course = Course()
    trainer: PhasedTrainer
    total, last_line = 1, -math.inf

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    def start(ready: PhasedTrainer) -> None:
        nonlocal trainer, total
        trainer, total = ready, ready.steps
        eta.start()
        say(trainer.describe())
        bar.update(task, total=trainer.steps, completed=trainer.completed, visible=True)

    def step(report: StepReport) -> None:
        nonlocal last_line
        m = report.metrics
        news = course.line(report)
        eta.step(report.phase, trainer.steps_left)
        for line in report.warnings:
            say(f"warning, step {report.step}: {line}")
        if report.step == 1 and abs(m["loss"]) < 1e-3 and m["frac_reward_zero_std"] < 1:
            say(
                f"policy loss {abs(m['loss']):.4f}: about 0 is right for a first update (importance ratios are 1 and a "
                "group's advantages sum to 0); watch the reward instead"
            )
        bar.update(task, completed=report.step, news=news if console.width >= _WIDE else "")
        due = report.step % max(1, total // 10) == 0 or report.step == total
        if not console.is_terminal and (
            due or time.monotonic() - last_line > _LONGEST_SILENCE
        ):  # the first step always
            say(f"step {report.step}/{total}  {news}  {m['step_time']:.2f} s  {eta.text()}")
            last_line = time.monotonic()

    def evaluating(samples: int) -> None:
        bar.update(task, description="evaluating")
        if not console.is_terminal:
            say(f"drawing and scoring {counted(samples, 'sample')} of held-out prompts ...")

    def evaluated(step: int, evaluation: Evaluation) -> None:
        bar.update(task, description="training")
        scores = "  ".join(f"{name} {score_text(mean)}" for name, mean in evaluation.means().items())
        if step == trainer.completed and not course.rewards:
            eta.start()  # the evaluation before training
        say(f"held-out prompts after step {step}: {scores}")

    with bar:
        yield Watcher(say=say, start=start, step=step, evaluating=evaluating, evaluated=evaluated)
