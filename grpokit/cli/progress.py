"""Shows a run on a terminal: the batch arithmetic, a bar with ETA and the reward's trend, and evaluations.

Without a terminal it prints plain lines instead of a bar.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


class _Screen:
    """What a run shows, as the methods of a `Watcher`."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[eta]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[news]}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            disable=not console.is_terminal,
        )
        self._waits = False
        self.task = self.bar.add_task("training", total=None, eta="", news="", visible=False)

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)

    def start(self, trainer: PhasedTrainer) -> None:
        from grpokit.tracking.progress import RunLines

        self.trainer = trainer
        self.lines = RunLines(trainer.steps, self.say, bar=self.console.is_terminal)
        self.say(trainer.describe())
        if trainer.completed == trainer.steps:
            steps = plural(trainer.steps, "step")
            self.say(f"The run is already complete ({steps}). Raise trainer.steps, or rounds, to train further.")
        self.bar.update(self.task, total=trainer.steps, completed=trainer.completed, visible=True)

    def step(self, report: StepReport) -> None:
        self.lines.step(report, self.trainer.steps_left)
        loss = abs(report.metrics["loss"])
        spread = report.metrics.get("frac_reward_zero_std", 1.0) < 1
        if report.step == 1 and loss < 1e-3 and spread and self.trainer.current.trainer.objective.needs_advantages:
            self.say(
                f"policy loss {loss:.4f}: about 0 is right for a first update (importance ratios are 1 and a group's "
                "advantages sum to 0); watch the reward instead"
            )
        eta, news = self.lines.eta.text(), self._fits(self.lines.news)
        self.bar.update(self.task, completed=report.step, eta=eta, news=news)

    def waiting(self, words: str) -> None:
        self.bar.update(self.task, description="waiting" if words else "training", news=self._fits(words))
        if words and not self._waits and not self.console.is_terminal:
            self.say(f"step {self.trainer.completed + 1} waits for {words}")
        self._waits = bool(words)

    def _fits(self, news: str) -> str:
        return news[: max(0, self.console.width - _WIDTH)]

    def evaluating(self, samples: int) -> None:
        self.bar.update(self.task, description="evaluating")
        if not self.console.is_terminal:
            self.say(f"drawing and scoring {plural(samples, 'sample')} of held-out prompts ...")

    def evaluated(self, step: int, evaluation: Evaluation) -> None:
        self.bar.update(self.task, description="training")
        self.lines.evaluated(step, evaluation.summary.means)


@contextmanager
def follow(console: Console) -> Iterator[Watcher]:
    """A watcher that shows the run on `console`."""
    from grpokit.runs.run import Watcher

    screen = _Screen(console)
    with screen.bar:
        yield Watcher.of(screen)
