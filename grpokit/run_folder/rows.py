"""What the files of a run are made of; pydantic checks each row when it is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from grpokit.evaluation.paired import Score, ScoreTable
from grpokit.run_folder import names

RunState: TypeAlias = Literal["running", "stopped", "failed", "finished"]
RowCount: TypeAlias = Annotated[int, Field(ge=0, lt=10**10)]
Part: TypeAlias = Literal["row", "group", "both", "variance", "prompts"]  # of what moves a reward
VarianceShare: TypeAlias = Annotated[float, Field(ge=0)]


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Evaluation(_Row):
    step: RowCount
    title: str = ""
    means: dict[str, Score]
    ci95: dict[str, Score]


class _Step(_Row):
    __pydantic_extra__: dict[str, Score]
    step: RowCount
    phase: str = ""


class _Warning(_Row):
    step: RowCount
    message: str


class _Attribution(_Row):
    step: RowCount
    row: str
    group: str
    shares: dict[str, dict[Part, VarianceShare]]


class _Sample(_Row):
    prompt: str = ""
    file: str = ""
    source: str = ""
    target: str = ""
    place: str = ""
    turn: RowCount = 0
    scores: dict[str, Score] = {}
    reward: Score = None
    advantage: Score = None


class _End(_Row):
    state: RunState
    planned: RowCount
    message: str


class _Versions(_Row):
    code: dict[str, Any]


class _Data(_Row):
    train: dict[str, list[str]] | None
    held_out: dict[str, list[str]] | None


class _Reward(_Row):
    use: str
    name: str | None = None
    weight: float = 1.0


class _Phase(_Row):
    steps: RowCount
    rewards: list[_Reward] | None = None


class _Trainer(_Row):
    steps: RowCount = 0


class _Config(_Phase):
    steps: RowCount = 0
    trainer: _Trainer = _Trainer()
    phases: list[_Phase] = []
    rounds: RowCount = 1


ROW_MODELS: dict[str, type[BaseModel]] = {
    names.CONFIG: _Config,
    names.METRICS: _Step,
    names.EVALUATIONS: _Evaluation,
    names.WARNINGS: _Warning,
    names.ATTRIBUTION: _Attribution,
    names.ROWS: _Sample,
    names.SCORES: ScoreTable,
    names.END: _End,
    names.VERSIONS: _Versions,
    names.DATA: _Data,
}
"""The model of each file: of its lines, or of all of it."""
