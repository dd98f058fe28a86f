"""What causes are judged by: what the run has logged and, where it was probed, what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpokit import registry
from grpokit.config.schema import RunConfig
from grpokit.run_folder.reader import RunHistory
from grpokit_diagnosis.symptom import Symptom, recent

if TYPE_CHECKING:  # a report is written without torch
    from grpokit_diagnosis.probe.measure import Measured


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is known of a run.

    Attributes:
        run: its folder's content; of a run with phases, what belongs to the latest stretch of one.
        config: of that phase.
        symptom: what the reward did.
        measured: by `--probe`; None without it.
    """

    run: RunHistory
    config: RunConfig
    symptom: Symptom
    measured: Measured | None

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The metrics of the steps that matter: those until the reward fell, or else all."""
        if self.symptom.course == "falling":
            latest = max(self.symptom.best, self.run.metrics[2]["step"])
            return [row for row in self.run.metrics if row["step"] <= latest]
        return self.run.metrics

    def logged(self, name: str) -> float:
        """The mean of a metric over these steps; NaN where it was not logged."""
        return recent(self.rows, name)

    @property
    def updates(self) -> int:
        """The optimizer steps of the whole run."""
        return self.config.trainer.steps * self.config.trainer.updates_per_step

    @property
    def policy(self) -> Mapping[str, Any]:
        """The parameters of the policy, with their defaults."""
        return registry.parameters("policy", self.config.policy.use, self.config.policy.params)

    @property
    def objective(self) -> Mapping[str, Any]:
        """The parameters of the objective, with their defaults."""
        use, params = self._objective
        return registry.parameters("objective", use, {**params, **self.config.trainer.flat_objective})

    @property
    def objective_defaults(self) -> Mapping[str, Any]:
        """The parameters of the objective as they are where a config sets none."""
        use, _ = self._objective
        return registry.parameters("objective", use, {})

    def objective_key(self, name: str) -> str:
        """Where the config sets a parameter of the objective."""
        _, params = self._objective
        return f"trainer.objective.{name}" if name in params else f"trainer.{name}"

    @property
    def _objective(self) -> tuple[str, Mapping[str, Any]]:
        """Its name, and the parameters that stand beside it."""
        objective = self.config.trainer.objective
        return (objective, {}) if isinstance(objective, str) else (objective.use, objective.params)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a reward does not move.

    Attributes:
        id: a short name, such as "step-too-short".
        title: the same as a sentence.
        advice: what to do, as sentences.
        overrides: the same as `key=value`, where keys of the config can do it.
        always: whether it is a fault even where the reward rose.
        figures: what was seen of it, in a diagnosis.
    """

    id: str
    title: str
    advice: str
    overrides: Sequence[str] = ()
    always: bool = False
    figures: str = ""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One thing that was looked at.

    Attributes:
        topic: what it is.
        figures: what was seen, as a sentence with numbers.
        cause: None where it is fine.
        of_evaluation: whether it is about what evaluations see, not about what is learned.
    """

    topic: str
    figures: str
    cause: Cause | None = None
    of_evaluation: bool = False
