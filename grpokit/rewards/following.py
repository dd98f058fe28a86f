"""Rewards that take part in a run beyond scoring: they keep files, make it wait, or change as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from grpokit.processes.team import Team
from grpokit.rewards.isolation import outside_code
from grpokit.rewards.terms import RewardTerm


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


def followers(terms: Iterable[RewardTerm]) -> dict[str, FollowsRun]:
    """The rewards that take part in a run beyond scoring, by their names."""
    rewards = {}
    for term in terms:
        reward: object = term.reward
        if isinstance(reward, FollowsRun):
            rewards[term.name] = reward
    return rewards


def learn_from_step(terms: Iterable[RewardTerm], team: Team, warn: Callable[[str], None]) -> dict[str, float]:
    """Let rewards learn from a step that is scored; returns their metrics.

    Raises:
        RunError: a reward raised.
    """
    rewards: dict[str, LearnsFromSteps] = {}
    for name, reward in followers(terms).items():
        if isinstance(reward, LearnsFromSteps):
            rewards[name] = reward
    if not rewards:
        return {}
    lessons = {}
    for name, learner in rewards.items():
        with outside_code(f"Reward '{name}' could not say what it has seen"):
            lessons[name] = learner.lesson()
    of_all = team.gather(lessons)
    metrics = {}
    for name, learner in rewards.items():
        with outside_code(f"Reward '{name}' could not learn from the step"):
            own = learner.learn([part[name] for part in of_all], warn)
        for key, value in own.items():
            metrics[f"rewards/{name}/{key}"] = value
    return metrics
