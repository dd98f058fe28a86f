"""What a trainer of one policy and one of several phases have in common: they take steps, are saved, and continue."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpokit.processes.team import Team
from grpokit.tracking.progress import RunLines
from grpokit.tracking.step_report import StepReport
from grpokit.tracking.trackers import Tracker
from grpokit.training import checkpoint
from grpokit.training.state import Stateful


class Loop(ABC):
    """Takes the steps of a run, one after another."""

    team: Team
    progress: bool
    sharding: Any
    loggers: list[Tracker]

    @property
    @abstractmethod
    def steps(self) -> int:
        """The steps of the whole run."""

    @property
    @abstractmethod
    def completed(self) -> int:
        """The steps completed so far."""

    @property
    @abstractmethod
    def converged(self) -> str:
        """Why there is nothing left to learn; empty until then."""

    @property
    @abstractmethod
    def steps_left(self) -> dict[str, int]:
        """The remaining steps of each phase; the name of a single one is empty."""

    @abstractmethod
    def describe(self) -> str:
        """The arithmetic of batches."""

    @abstractmethod
    def step(self) -> StepReport:
        """Draw, score and learn from one rollout; a step that fails does not count.

        Raises:
            RewardError: a reward failed or returned something unusable.
            RunError: a guard stopped the step.
        """

    @abstractmethod
    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint keeps, by name."""

    @abstractmethod
    def check_reference(self) -> None:
        """Make sure, before a checkpoint is written, that the reference has not changed."""

    @abstractmethod
    def go_on(self, *, when: str) -> None:
        """Continue from the loaded state; a message says when, such as "after loading runs/a"."""

    @abstractmethod
    def drop_pending(self) -> None:
        """Forget a rollout that an engine draws for the next step; that step then draws it again."""

    def __iter__(self) -> Iterator[StepReport]:
        """Take the remaining steps, or stop earlier when there is nothing left to learn."""
        lines = RunLines(self.steps, self._say)
        self._say(self.describe())
        while self.completed < self.steps and not self.converged:
            report = self.step()
            lines.step(report, self.steps_left)
            yield report

    def _say(self, line: str) -> None:
        if self.progress and self.team.rank == 0:
            print(line, file=sys.stderr, flush=True)

    def save(self, folder: Path | str, *, notes: Mapping[str, Any] | None = None) -> None:
        """Write weights, optimizers and position into `folder`, atomically: it is complete or does not exist.

        With several processes all may call this, and process 0 writes; with `sharding` all must.

        Args:
            folder: an earlier checkpoint there is replaced.
            notes: further plain data to store, such as the config.

        Raises:
            RunError: it cannot be written, or a reference has changed.
        """
        self.check_reference()
        together = bool(self.sharding)
        checkpoint.save(
            Path(folder), self.parts(), step=self.completed, notes=notes or {}, team=self.team, together=together
        )

    def load(self, folder: Path | str) -> None:
        """Continue from a checkpoint of `save`.

        Raises:
            CheckpointError: it is incomplete, was not written by grpokit, or belongs to other policies or phases.
            RunError: a policy's reference is not the one of the checkpoint's run.
        """
        with self.team.failing_together():
            checkpoint.load_parts(Path(folder), self.parts())
            self.go_on(when=f"after loading {folder}")

    def close(self) -> None:
        """Let trackers write everything and finish, and an engine stop. Other processes stay within reach."""
        self.drop_pending()
        for logger in self.loggers:
            logger.finish()
