"""Several trainers over one model that take turns: a run in phases.

Each phase has its own trainer, with its policy, rewards, rates and optimizer. While one learns, what the others
train is frozen. Steps count through all phases, and so do reports and checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from grpokit.errors import GrpokitError, UsageError, plural, reword
from grpokit.phases.course import Course
from grpokit.phases.phase import Phase, check_phases
from grpokit.tracking.step_report import StepReport
from grpokit.trainer import Trainer
from grpokit.training import checkpoint
from grpokit.training.loop import Loop
from grpokit.training.state import Stateful


class PhasedTrainer(Loop):
    """Takes the steps of several trainers in turn.

    Args:
        phases: in their order. Trainers need different seeds, from `Phase.seed`. Give trackers to only one of them.
        rounds: how many times the phases are repeated.

    Attributes:
        phases (dict[str, Phase]): the phases by name.
        course (Course): which phases have learnt so far, and which come next.
        current (Phase): the phase of the latest step, or of the one under way; at first the first phase.
        loggers (list[Tracker]): the trackers of all trainers, in process 0; they get the steps of all phases.

    Raises:
        UsageError: names, seeds or steps that do not go together, or two policies that train the same weights.
    """

    def __init__(self, phases: Sequence[Phase], *, rounds: int = 1) -> None:
        check_phases(phases, rounds=rounds)
        self.phases = {phase.name: phase for phase in phases}
        self.course = Course({phase.name: phase.steps for phase in phases}, rounds=rounds)
        self.current = phases[0]
        self._only = self.phases.get("")  # of a run without phases
        self._trainers = [phase.trainer for phase in phases]
        self.loggers = [logger for trainer in self._trainers for logger in trainer.loggers]
        self.team = self.current.trainer.team
        self.progress = self.current.trainer.progress
        self.sharding = next((trainer.sharding for trainer in self._trainers if trainer.sharding), None)

    @property
    def completed(self) -> int:
        """The steps completed so far, of all phases."""
        return self.course.completed

    @property
    def steps(self) -> int:
        """The steps of all phases in all rounds."""
        return self.course.total

    @property
    def steps_left(self) -> dict[str, int]:
        """The remaining steps of each phase."""
        return {name: phase.trainer.steps - phase.trainer.completed for name, phase in self.phases.items()}

    @property
    def converged(self) -> str:
        """Why no phase has anything left to learn; empty until then."""
        if self.course.under_way(self._finished):
            return ""
        reasons = {name: self.phases[name].trainer.converged for name in self._finished}
        return " ".join(f"Phase '{name}': {reason}" if name else reason for name, reason in reasons.items())

    def step(self) -> StepReport:
        """Take a step of the phase whose turn it is.

        Raises:
            RewardError: a reward failed or returned something unusable.
            RunError: a guard stopped the step.
            UsageError: no phase has a step left.
        """
        stretch = self.course.under_way(self._finished)
        if stretch is None:
            raise UsageError(f"All {plural(self.steps, 'step')} are taken, or nothing is left to learn.")
        phase = self.current = self.phases[stretch.phase]
        trainer = phase.trainer
        number = self.completed + 1
        trainer.elsewhere = self.completed - trainer.completed
        try:
            with self._others_frozen(trainer):
                report = trainer.step(log=False)
        except GrpokitError as error:
            if phase is self._only:
                raise
            raise reword(error, f"In {_where(phase, trainer.completed + 1)}: {error}") from error
        finally:
            for other in self._trainers:
                if other.policy is trainer.policy:
                    other.version = trainer.version
        stretch.steps += 1
        metrics = report.metrics
        if phase is not self._only:
            report = replace(
                report,
                step=number,
                metrics={**report.metrics, "step": number},
                warnings=[f"{_where(phase, report.step)}: {line}" for line in report.warnings],
                phase=phase.name,
                phase_step=report.step,
            )
            metrics = {**report.metrics, "phase": list(self.phases).index(phase.name)}
        for logger in self.loggers:
            logger.log(metrics, step=number)
        return report

    def whole(self, report: StepReport) -> StepReport:
        """As `Trainer.whole`."""
        return self.current.trainer.whole(report)

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint keeps, by name: the state of each phase, and the weights of each policy."""
        if self._only:  # as a `Trainer` saves it
            return self._only.trainer.parts()
        parts: dict[str, Stateful] = {"course": self.course}
        for name, phase in self.phases.items():
            for part, stateful in phase.trainer.parts().items():
                if part != checkpoint.POLICY:
                    parts[f"{checkpoint.PHASES}/{name}/{part}"] = stateful
        for phase in self.phases.values():
            name = checkpoint.part_name(checkpoint.POLICY, phase.policy)
            parts[name] = phase.trainer.policy
        return parts

    def check_reference(self) -> None:
        """Make sure that the references have not changed."""
        for trainer in self._trainers:
            trainer.check_reference()

    def go_on(self, *, when: str) -> None:
        """Continue from the loaded state."""
        for trainer in self._trainers:
            trainer.go_on(when=when)
        if self._only:  # whose checkpoint has no course
            stretch = {"phase": "", "planned": self.steps, "steps": self._only.trainer.completed}
            self.course.load_state_dict({"stretches": [stretch]})
        begun = self.course.begun
        latest = begun[-1] if begun else self.course.stretches[0]
        self.current = self.phases[latest.phase]

    def drop_pending(self) -> None:
        """Forget what engines draw for the next step."""
        for trainer in self._trainers:
            trainer.drop_pending()

    def describe(self) -> str:
        """The arithmetic of batches, a line for each phase."""
        if self._only:
            return self._only.trainer.describe()
        lines = [f"{name}: {phase.trainer.describe()}" for name, phase in self.phases.items()]
        return "\n".join([self.course.describe(), *lines])

    @property
    def _finished(self) -> list[str]:
        """The phases that have nothing left to learn."""
        return [name for name, phase in self.phases.items() if phase.trainer.converged]

    @contextmanager
    def _others_frozen(self, trainer: Trainer) -> Iterator[None]:
        """Inside, what other policies train has no gradient."""
        others = [other for other in self._trainers if other.policy is not trainer.policy]
        wanted = [p for other in others for p in other.updates.parameters if p.requires_grad]
        for parameter in wanted:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in wanted:
                parameter.requires_grad_(True)


def _where(phase: Phase, step: int) -> str:
    return f"phase '{phase.name}', its step {step}"
