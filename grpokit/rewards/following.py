"""Rewards that take part in a run beyond scoring: they keep files, make it wait, or change as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class FollowsRun(Protocol):
    """A reward that keeps files in the run's folder, makes the run wait, or learns while the run goes on.

    Its state is in every checkpoint, as `rewards/NAME`, and is restored where a step fails.

    Attributes:
        files: the names of its files and folders in the run's folder that nobody could make again. A run that is
            resumed without a checkpoint starts over and keeps them.
    """

    files: Sequence[str]

    def begin(self, folder: Path, waits: Callable[[str], None], *, replays: bool) -> None:
        """Called in every process, before the first samples come and after a checkpoint is loaded.

        Args:
            folder: of the run.
            waits: may be called at any time, from any thread, with what the run waits for, such as "votes on 4
                groups", and with "" once it goes on. Process 0 shows it in the run's progress line, and `grpokit
                watch` on the page.
            replays: steps are only drawn again, to be compared with the run's. The reward gives the scores that it gave
                then, waits for nothing, and changes nothing in the folder.
        """

    def state_dict(self) -> Mapping[str, Any]:
        """Tensors and plain data, as a checkpoint keeps them."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load a result of `state_dict`."""


@runtime_checkable
class ExportsReward(FollowsRun, Protocol):
    """A reward that learns something which others can use: `grpokit export RUN --reward NAME --to FOLDER` writes it."""

    def export(self, folder: Path, *, name: str) -> None:
        """Write what it has learned, after its state was loaded.

        Args:
            folder: exists already, and is empty.
            name: of the folder that the user asked for.

        Raises:
            UsageError: it has learned nothing yet.
        """


@runtime_checkable
class LearnsFromSteps(FollowsRun, Protocol):
    """A reward that learns from the samples of each step, whichever process has drawn them.

    It learns at the end of a step, for the next one: so each process scores a step in the same way, and so does a run
    that was resumed.
    """

    def lesson(self) -> Any:
        """What this process's samples of the step teach: plain data, and arrays or tensors on the CPU.

        It is asked once after the scores of a step, also where the process had no sample. With dynamic sampling a group
        may have been scored several times; the last time counts.
        """

    def learn(self, lessons: Sequence[Any], warn: Callable[[str], None]) -> Mapping[str, float]:
        """Learn from a step. Every process gets the same lessons, and must be in the same state afterwards.

        Args:
            lessons: of all processes, in the order of their groups.
            warn: shows a sentence among the warnings of the step.

        Returns:
            Metrics of the step; NAME becomes `rewards/REWARD/NAME`.
        """
