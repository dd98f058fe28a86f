"""What a reward reads, found by its behaviour: what changes its scores when it is swapped or left out.

Here are also the steps that all ladders share: prompts under which a reward scores the built-in outputs, scores of
several outputs per prompt in one call, and shares of the honest scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from PIL.Image import Image

from grpokit.errors import error_line
from grpokit.rewards.terms import Reward
from grpokit.types import Prompt, Sample
from grpokit_check.check import CheckError, attempt
from grpokit_check.robustness.grades import Attack, Drop, Section
from grpokit_check.robustness.ladder_outputs import DECORATIONS

SAME = 1e-9
"""Scores that differ by no more are equal."""

COIN = 0.5
"""The share of pairs in order that chance gives: where distortions lower scores, it is more."""

INVERTED = 0.1
"""The share of pairs in order of a reward whose scores rise as outputs get worse, but for rounding."""

Outputs = Sequence[Sequence[Any]]
"""The outputs of each prompt."""


def scores(reward: Reward, outputs: Outputs, prompts: Sequence[Prompt]) -> list[list[float]]:
    """Scores of several outputs per prompt, a group each, in one call."""
    samples = [
        Sample(prompt=prompt, output=output, group=group)
        for group, (row, prompt) in enumerate(zip(outputs, prompts, strict=True))
        for output in row
    ]
    values = iter([float(x) for x in reward(samples)])
    return [[next(values) for _ in row] for row in outputs]


def named_scores(reward: Reward, tables: Sequence[dict[str, Any]], prompts: Sequence[Prompt]) -> list[dict[str, float]]:
    """As `scores`, of named outputs: a table name -> output per prompt gives a table name -> score."""
    rows = scores(reward, [list(table.values()) for table in tables], prompts)
    return [dict(zip(table, row, strict=True)) for table, row in zip(tables, rows, strict=True)]


def scorable_prompts(
    reward: Reward,
    probe: Outputs,
    *,
    targets: Sequence[Any],
    words: Sequence[str],
    texts: Sequence[str],
    sources: Sequence[Image] | None = None,
) -> tuple[list[Prompt] | None, str]:
    """Prompts under which a reward scores all of the probe, or None and why there are none, in brackets.

    `targets`, `words` and none are tried as targets, in this order.
    """
    reason = " (NaN for some of them)"
    nothing = [None] * len(texts)
    for candidates in (targets, words, nothing):
        parts = zip(texts, candidates, sources or nothing, strict=True)
        prompts = [Prompt(text=text, target=target, image=image) for text, target, image in parts]
        values = attempt(scores, reward, probe, prompts)
        if isinstance(values, list) and all(map(math.isfinite, chain(*values))):
            return prompts, ""
        if isinstance(values, BaseException) and candidates is targets:  # which fit the outputs
            reason = f" ({error_line(values, most=120)})"
    return None, reason


def read_parts(reward: Reward, probe: Outputs, prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """What changes the scores of the probe when it is taken from the next prompt, or left out."""
    before = scores(reward, probe, prompts)
    target = prompts[0].target
    kind = " picture" if isinstance(target, Image) else " text" if isinstance(target, str) else ""
    parts = []
    for part, name in (("target", f"target{kind}"), ("image", "source picture"), ("text", "prompt text")):
        if getattr(prompts[0], part) is None:
            continue
        swaps = [rotated(prompts, part)]
        if part != "text":
            swaps.append(_with(prompts, part, [None] * len(prompts)))
        if any(_scores_change(reward, probe, swapped, before) for swapped in swaps):
            parts.append(name)
    return tuple(parts)


def _scores_change(reward: Reward, probe: Outputs, prompts: Sequence[Prompt], before: Sequence[list[float]]) -> bool:
    after = attempt(scores, reward, probe, prompts)
    if isinstance(after, BaseException):  # it asks for what was taken away
        return True
    return not all(abs(a - b) <= SAME for a, b in zip(chain(*before), chain(*after), strict=True))  # NaN differs


def rotated(prompts: Sequence[Prompt], part: str) -> list[Prompt]:
    """The prompts, each with a part of the next one."""
    return _with(prompts, part, [getattr(prompt, part) for prompt in (*prompts[1:], prompts[0])])


def _with(prompts: Sequence[Prompt], part: str, values: Sequence[Any]) -> list[Prompt]:
    return [replace(prompt, **{part: value}) for prompt, value in zip(prompts, values, strict=True)]


def measured(
    rows: Sequence[Mapping[str, float]], names: Iterable[str], *, right: Sequence[float], lowest: Sequence[float]
) -> list[Attack]:
    """The mean share of the honest scale that each attack reaches, without those of which nothing was measured.

    `right` is 1 on the scale of each prompt and `lowest` 0; a prompt without a difference between the two has none.
    """
    scales = [(row, low, high - low) for row, low, high in zip(rows, lowest, right, strict=True) if high > low + SAME]
    means = {name: mean([(row[name] - low) / scale for row, low, scale in scales]) for name in names}
    return [Attack(name=n, reaches=x, shows=n in DECORATIONS) for n, x in means.items() if math.isfinite(x)]


def mean(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN where there are none."""
    finite = [x for x in values if math.isfinite(x)]
    return sum(finite) / len(finite) if finite else math.nan


def graded(
    name: str,
    reads: Sequence[str],
    falls: Mapping[str, Sequence[Sequence[float]]],
    rows: Sequence[Mapping[str, float]],
    attacks: Iterable[str],
    problems: Mapping[str, CheckError | None],
) -> Section:
    """The section of a reward that compares with something.

    `falls` has for each distortion and prompt the score of the right output, then those of ever worse ones.
    """
    columns = list(zip(*falls.values(), strict=True))
    right, lowest = [values[0][0] for values in columns], [min(chain(*values)) for values in columns]
    drops = [Drop(name=distortion, ordered=_ordered(values)) for distortion, values in falls.items()]
    ordered = mean([drop.ordered for drop in drops])
    note = ""
    if ordered <= INVERTED:
        lowest, note = right, "its scores are inverted: negate them"
        wrong = CheckError(
            "Expected scores that drop as an output gets worse; got scores that rise with every distortion. Usual "
            "cause: a difference or a distance as the score; it is inverted: negate it."
        )
        problems = dict.fromkeys(list(problems)[:1], wrong)  # the others would say the same
    elif ordered <= COIN:
        lowest, note = right, "distortions do not lower its scores, so there is no honest scale"
    reached = measured(rows, attacks, right=right, lowest=lowest)
    return Section(name=name, reads=reads, drops=drops, attacks=reached, problems=problems, note=note)


def _ordered(rows: Sequence[Sequence[float]]) -> float:
    """The share of pairs of severities in order; a tie counts half."""
    pairs = [(row[i], row[j]) for row in rows for j in range(len(row)) for i in range(j)]
    return sum(1.0 if a > b + SAME else 0.5 if abs(a - b) <= SAME else 0.0 for a, b in pairs) / len(pairs)
