"""What the files of a run are made of; pydantic checks each row when it is read."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grpokit.run_folder import names

RunState: TypeAlias = Literal["running", "stopped", "failed", "finished"]
RowCount: TypeAlias = Annotated[int, Field(ge=0, lt=10**10)]
Part: TypeAlias = Literal["row", "group", "both", "variance", "prompts"]  # of what moves a reward
VarianceShare: TypeAlias = Annotated[float, Field(ge=0)]
Score: TypeAlias = Annotated[float, Field(ge=-1e100, le=1e100)] | None  # None: a reward could not score


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


class ScoreTable(_Row):
    """All scores of one evaluation.

    Attributes:
        prompts: [P], a digest of each prompt; equal where two evaluations share it.
        prompt: [B], which prompt each sample was drawn for, from 0.
        texts: [P], the prompts in words.
        scores: name -> [B].
    """

    prompts: list[str]
    prompt: list[RowCount]
    texts: list[str]
    scores: dict[str, list[Score]]

    @model_validator(mode="after")
    def _one_score_a_sample(self) -> ScoreTable:
        rows = len(self.prompt)
        if any(len(column) != rows for column in self.scores.values()):
            raise ValueError(f"expected {rows} scores of each reward")
        if not len(self.prompts) == len(self.texts) > max(self.prompt, default=-1):
            raise ValueError("expected a digest and a text of each prompt")
        return self


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
