"""What a reward reads, found by its behaviour: what changes its scores when it is swapped or left out.

Here are also the steps that all ladders share: prompts under which a reward scores the built-in outputs, scores of
several outputs per prompt in one call, and shares of the honest scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from PIL.Image import Image

from grpokit.rewards.terms import Reward
from grpokit.testing.check import error_text
from grpokit.types import Prompt, Sample

SAME = 1e-9
"""Scores that differ by no more are equal."""

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
    sources: bool = True,
) -> tuple[list[Prompt] | None, str]:
    """Prompts under which a reward scores all of the probe.

    Args:
        reward: the reward.
        probe: a few outputs per prompt.
        targets: of the output's kind; the first thing to try as targets, and the source pictures.
        words: texts, the second thing to try as targets; none is the third.
        texts: the prompts' texts.
        sources: whether the prompts have source pictures.

    Returns:
        The prompts, or None and why there are none, in brackets.
    """
    reason = " (NaN for some of them)"
    images = targets if sources else [None] * len(texts)
    for candidates in (targets, words, [None] * len(texts)):
        prompts = [
            Prompt(text=text, target=target, image=image)
            for text, target, image in zip(texts, candidates, images, strict=True)
        ]
        try:
            values = scores(reward, probe, prompts)
        except (Exception, SystemExit) as error:
            # the first refusal is of targets that fit its outputs, so it says what else is missing
            reason = f" ({_cut(error_text(error))})" if candidates is targets else reason
            continue
        if all(math.isfinite(x) for row in values for x in row):
            return prompts, ""
    return None, reason


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}..."


def read_parts(reward: Reward, probe: Outputs, prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """What changes the scores of the probe when it is taken from the next prompt, or left out."""
    before = scores(reward, probe, prompts)
    parts = []
    for part, name in (("target", "target"), ("image", "source picture"), ("text", "prompt text")):
        values = [getattr(prompt, part) for prompt in prompts]
        if values[0] is None:
            continue
        swaps = [rotated(prompts, part)]
        if part != "text":
            swaps.append([_with(prompt, part, None) for prompt in prompts])
        if any(_scores_change(reward, probe, swapped, before) for swapped in swaps):
            parts.append(f"target{_kind(values[0])}" if part == "target" else name)
    return tuple(parts)


def _kind(target: object) -> str:
    return " picture" if isinstance(target, Image) else " text" if isinstance(target, str) else ""


def _scores_change(
    reward: Reward, probe: Outputs, prompts: Sequence[Prompt], before: Sequence[Sequence[float]]
) -> bool:
    try:
        after = scores(reward, probe, prompts)
    except (Exception, SystemExit):  # it asks for what was taken away
        return True
    pairs = [(a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True)]
    return not all(abs(a - b) <= SAME for a, b in pairs)  # so written that NaN differs


def rotated(prompts: Sequence[Prompt], part: str) -> list[Prompt]:
    """The prompts, each with a part of the next one."""
    others = [*prompts[1:], prompts[0]]
    return [_with(prompt, part, getattr(other, part)) for prompt, other in zip(prompts, others, strict=True)]


def _with(prompt: Prompt, part: str, value: Any) -> Prompt:
    return replace(prompt, **{part: value})


def shares(
    rows: Sequence[Mapping[str, float]], names: Iterable[str], *, right: Sequence[float], lowest: Sequence[float]
) -> dict[str, float]:
    """The mean share of the honest scale that each name reaches, without those of which nothing was measured.

    Args:
        rows: name -> score, one mapping per prompt.
        names: what to measure.
        right: 1 on the scale of each prompt.
        lowest: 0 on it; a prompt without a difference between the two has no scale.
    """
    scales = [(row, low, high - low) for row, low, high in zip(rows, lowest, right, strict=True) if high > low + SAME]
    means = {name: mean([(row[name] - low) / scale for row, low, scale in scales]) for name in names}
    return {name: reached for name, reached in means.items() if math.isfinite(reached)}


def mean(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN where there are none."""
    finite = [x for x in values if math.isfinite(x)]
    return sum(finite) / len(finite) if finite else math.nan


def ordered_share(rows: Sequence[Sequence[float]]) -> float:
    """The share of pairs of severities in order; a tie counts half."""
    pairs = [(row[i], row[j]) for row in rows for j in range(len(row)) for i in range(j)]
    return sum(1.0 if a > b + SAME else 0.5 if abs(a - b) <= SAME else 0.0 for a, b in pairs) / len(pairs)
