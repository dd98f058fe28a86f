"""What the rows and objects in a run's files are made of; pydantic checks them when they are read."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpokit.run_folder.names import ATTRIBUTION, EVALUATIONS, METRICS, ROWS, WARNINGS

State: TypeAlias = Literal["running", "stopped", "failed", "finished"]
Number: TypeAlias = Annotated[float, Field(ge=-1e100, le=1e100)]  # of such ones no mean or variance overflows
Score: TypeAlias = Number | None
"""None where a reward could not score."""

Count: TypeAlias = Annotated[int, Field(ge=0, lt=10**10)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1e100)]


class _Object(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class EvaluationRow(_Object):
    """The scores after some steps, by name."""

    __pydantic_extra__: dict[str, Score]
    step: Count


class StepRow(EvaluationRow):
    """The metrics of a step, by name."""

    phase: str = ""


class WarningRow(_Object):
    """What a guard has noticed; step 0 is before the first one."""

    step: Count
    message: str


class Shares(_Object):
    """What moves a reward: parts of its variance."""

    row: Share
    group: Share
    both: Share
    variance: Share
    prompts: Share


class AttributionRow(_Object):
    """What moves the rewards after some steps; `row` and `group` say in words what varies."""

    step: Count
    row: str
    group: str
    shares: dict[str, Shares]


class SampleRow(_Object):
    """A sample that is shown, with its scores; `file`, `source` and `target` name pictures beside the row's file."""

    prompt: str = ""
    file: str = ""
    source: str = ""
    target: str = ""
    place: str = ""
    scores: dict[str, Score] = Field(default_factory=dict)
    reward: Score = None
    advantage: Score = None


class Scores(_Object):
    """All scores of one evaluation.

    Attributes:
        prompts: a digest of the prompts; equal where two evaluations had the same ones.
        prompt: [B], which prompt each sample was drawn for, from 0.
        scores: name -> [B].
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    prompts: str
    prompt: list[int]
    scores: dict[str, list[Score]]

    @model_validator(mode="after")
    def _one_score_a_sample(self) -> Scores:
        for name, column in self.scores.items():
            if len(column) != len(self.prompt):
                raise ValueError(f"expected {len(self.prompt)} scores of {name}, got {len(column)}")
        return self


class End(_Object):
    """How a run ended."""

    state: State
    planned: Count
    message: str


KINDS: dict[str, type[BaseModel]] = {
    METRICS: StepRow,
    EVALUATIONS: EvaluationRow,
    WARNINGS: WarningRow,
    ATTRIBUTION: AttributionRow,
    ROWS: SampleRow,
}
"""The rows of each file that holds one object a line."""
