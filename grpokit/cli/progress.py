"""Shows a run on a terminal: the batch arithmetic, a bar with ETA and the reward's trend, and evaluations.

Without a terminal it prints plain lines instead of a bar: after the first step, about ten times a run, and at least
once a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

from grpokit.errors import plural

if TYPE_CHECKING:
    from grpokit.evaluation.evaluation import Evaluation
    from grpokit.phases.phased_trainer import PhasedTrainer
    from grpokit.runs.run import Watcher
    from grpokit.tracking.step_report import StepReport

_WIDTH = 60  # columns of the bar with its numbers; what is left is for news
_LONGEST_SILENCE = 60  # seconds without a line, where no bar shows that the run goes on


class _Screen:
    """What a run shows, as the methods of a `Watcher`."""

    def __init__(self, console: Console) -> None:
        from grpokit.tracking.progress import Eta, RewardTrend

        self.console, self.eta, self.course = console, Eta(), RewardTrend()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[eta]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[news]}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=None, eta="", news="", visible=False)
        self.last_line = -math.inf

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)

    def start(self, trainer: PhasedTrainer) -> None:
        self.trainer = trainer
        self.eta.start()
        self.say(trainer.describe())
        if trainer.completed == trainer.steps:
            steps = plural(trainer.steps, "step")
            self.say(f"The run is already complete ({steps}). Raise trainer.steps, or rounds, to train further.")
        self.bar.update(self.task, total=trainer.steps, completed=trainer.completed, visible=True)

    def step(self, report: StepReport) -> None:
        metrics, total, news = report.metrics, self.trainer.steps, self.course.line(report)
        self.eta.step(report.phase, self.trainer.steps_left)
        for line in report.warnings:
            self.say(f"warning, step {report.step}: {line}")
        loss = abs(metrics["loss"])
        if report.step == 1 and loss < 1e-3 and metrics["frac_reward_zero_std"] < 1:
            self.say(
                f"policy loss {loss:.4f}: about 0 is right for a first update (importance ratios are 1 and a group's "
                "advantages sum to 0); watch the reward instead"
            )
        room = max(0, self.console.width - _WIDTH)
        self.bar.update(self.task, completed=report.step, eta=self.eta.text(), news=news[:room])
        due = report.step % max(1, total // 10) == 0 or report.step == total
        silence = time.monotonic() - self.last_line  # endless before the first step
        if not self.console.is_terminal and (due or silence > _LONGEST_SILENCE):
            self.say(f"step {report.step}/{total}  {news}  {metrics['step_time']:.2f} s  {self.eta.text()}")
            self.last_line = time.monotonic()

    def evaluating(self, samples: int) -> None:
        self.bar.update(self.task, description="evaluating")
        if not self.console.is_terminal:
            self.say(f"drawing and scoring {plural(samples, 'sample')} of held-out prompts ...")

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        from grpokit.tracking.progress import score_text

        self.bar.update(self.task, description="training")
        scores = "  ".join(f"{name} {score_text(mean)}" for name, mean in evaluation.summary.means.items())
        if step == self.trainer.completed and not self.course.rewards:
            self.eta.start()  # the evaluation before training
        self.say(f"held-out prompts after step {step}: {scores}")


@contextmanager
def follow(console: Console) -> Iterator[Watcher]:
    """A watcher that shows the run on `console`."""
    from grpokit.runs.run import Watcher

    screen = _Screen(console)
    with screen.bar:
        yield Watcher(**{callback.name: getattr(screen, callback.name) for callback in fields(Watcher)})
