"""Compares two evaluations prompt by prompt: how far their means are apart, and whether that can be chance.

Two evaluations of one run have the same prompts, so the interval that counts is that of differences paired by prompt.
The intervals of both means say how well each is known; they are too wide to compare them by.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from grpokit.errors import plural
from grpokit.evaluation.intervals import Mean, mean_of_totals, or_none

Score: TypeAlias = Annotated[float, Field(ge=-1e100, le=1e100)] | None  # None: a reward could not score
Verdict = Literal["better", "worse", "even", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One score before and after; None if there is no number.

    Attributes:
        name: of the reward, or "reward" for the weighted sum.
        before: mean.
        after: mean.
        before_width: half the 95 % confidence interval.
        after_width: the same for `after`.
        change: mean difference, over the prompts that both have; without any, of the means.
        width: half the 95 % confidence interval of the difference.
        shared: how many prompts both have; differences are paired by these.
        verdict: "even" where the change is smaller than its interval; "unknown" without an interval, and for a sum of
            which a part is missing.
        monitor: whether the reward is only measured.
    """

    name: str
    before: float | None
    after: float | None
    before_width: float | None
    after_width: float | None
    change: float | None
    width: float | None
    shared: int
    verdict: Verdict
    monitor: bool = False


class ScoreTable(BaseModel):
    """All scores of one evaluation.

    Attributes:
        prompts: [P], a digest of each prompt; equal where two evaluations share it.
        prompt: [B], which prompt each sample was drawn for, from 0.
        texts: [P], the prompts in words.
        scores: name -> [B].
    """

    model_config = ConfigDict(strict=True, extra="allow")

    prompts: list[str]
    prompt: list[NonNegativeInt]
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


_NO_SCORES = ScoreTable(prompts=[], prompt=[], texts=[], scores={})


def changes(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    old: ScoreTable | None,
    new: ScoreTable | None,
    weights: Mapping[str, float],
) -> list[Change]:
    """Compare two evaluations.

    Args:
        before: row of `eval.jsonl`.
        after: the other row.
        old: all scores of `before`, where they were kept.
        new: all scores of `after`, where they were kept.
        weights: name -> weight; a lower score is better where it is negative.
    """
    gaps = unscored_rewards(before, after, old, new, weights)
    old = old or _NO_SCORES
    new = new or _NO_SCORES
    parts = {name: weight for name, weight in weights.items() if name != "reward"}
    shared = len({*old.prompts} & {*new.prompts})
    rows = []
    for name, weight in weights.items():
        change, width = _difference(before, after, old, new, name, parts)
        verdict = _verdict(change, width, weight)
        rows.append(
            Change(
                name=name,
                before=before["means"].get(name),
                after=after["means"].get(name),
                before_width=before["ci95"].get(name),
                after_width=after["ci95"].get(name),
                change=change,
                width=width,
                shared=shared,
                verdict="unknown" if name == "reward" and gaps else verdict,
                monitor=weight == 0,
            )
        )
    return rows


def _difference(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    old: ScoreTable,
    new: ScoreTable,
    name: str,
    parts: Mapping[str, float],
) -> tuple[float | None, float | None]:
    """How much a mean has changed, and half of the change's interval: None without the scores of all samples."""
    if before["means"].get(name) is None or after["means"].get(name) is None:
        return None, None
    shared = old.scores.keys() & new.scores.keys()
    columns = {name: 1.0}
    if name == "reward" and parts.keys() <= shared:
        columns = {part: weight for part, weight in parts.items() if weight}
    if not columns.keys() <= shared:
        return after["means"][name] - before["means"][name], None
    if set(old.prompts).isdisjoint(new.prompts):
        difference = _mean(new, columns).minus(_mean(old, columns))
    else:
        difference = _by_prompt(old, new, columns)
    return or_none(difference.value), or_none(difference.half_width)


def _by_prompt(old: ScoreTable, new: ScoreTable, weights: Mapping[str, float]) -> Mean:
    """The weighted sum of each column's mean change, over the prompts that have scores on both sides."""
    prompts = sorted({*old.prompts, *new.prompts})
    columns = []
    for name in weights:
        before = prompt_means(old, name)
        after = prompt_means(new, name)
        gains = [after.get(prompt, math.nan) - before.get(prompt, math.nan) for prompt in prompts]
        columns.append(gains)
    return mean_of_totals(columns, weights.values(), prompts)


def prompt_means(scored: ScoreTable, name: str) -> dict[str, float]:
    """Digest -> mean score of each prompt that has any."""
    columns: dict[str, list[float]] = defaultdict(list)
    for score, place in zip(scored.scores[name], scored.prompt, strict=True):
        if score is not None:
            columns[scored.prompts[place]].append(score)
    return {prompt: math.fsum(column) / len(column) for prompt, column in columns.items()}


def _mean(scored: ScoreTable, weights: Mapping[str, float]) -> Mean:
    """The weighted sum of some columns, by the digests of their prompts."""
    prompts = [scored.prompts[place] for place in scored.prompt]
    columns = []
    for name in weights:
        column = [math.nan if score is None else score for score in scored.scores[name]]
        columns.append(column)
    return mean_of_totals(columns, weights.values(), prompts)


def unscored_rewards(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    old: ScoreTable | None,
    new: ScoreTable | None,
    weights: Mapping[str, float],
) -> list[str]:
    """Words for each trained reward that did not score all samples of two evaluations; arguments as for `changes`."""
    found = []
    for name, weight in weights.items():
        if not weight or name == "reward":
            continue
        if before["means"].get(name) is None or after["means"].get(name) is None:
            found.append(f"{name} scored no sample")
            continue
        counts = []
        for scored in (old or _NO_SCORES, new or _NO_SCORES):
            column = scored.scores.get(name, [])
            if None in column:
                counts.append((len(column) - column.count(None), len(column)))
        if counts:
            fewest, rows = min(counts)
            found.append(f"{name} scored {fewest:,} of {plural(rows, 'sample')}")
    return found


def _verdict(change: float | None, width: float | None, weight: float) -> Verdict:
    if change is None or width is None:
        return "unknown"
    if abs(change) <= width:
        return "even"
    return "better" if (change > 0) == (weight >= 0) else "worse"
