"""The ladder of pictures: photographs made worse step by step, and attacks on them.

Only a reward that compares with a target or source picture can fail its checks. One that reads the prompt's text is
graded. Of one that reads the output alone no picture is the right one: its mean scores are listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from PIL.Image import Image

from grpokit.rewards.terms import Reward
from grpokit.testing.robustness import ladder_outputs
from grpokit.testing.robustness.grades import Attack, Drop, Problem, Section
from grpokit.testing.robustness.probe import (
    SAME,
    mean,
    named_scores,
    ordered_share,
    read_parts,
    scorable_prompts,
    shares,
)

TOLERANCE = 0.01
"""Of the honest scale: a distortion may score so much more than a lighter one, for rounding and for resampling."""

COIN = 0.5
"""The share of pairs in order that chance gives: a reward must do better before its distortions make a scale."""

NAME = "photographs"
ITSELF = "itself"
INSTALL = "not measured: pip install 'grpokit[check]'"
OUTPUT_ALONE = "reads the output alone, so no picture is the right one and nothing is graded"


def photographs(reward: Reward) -> Section:
    """Distorted photographs and attacks on pictures."""
    try:
        photos = ladder_outputs.photographs()
    except ModuleNotFoundError:
        return Section(name=NAME, note=INSTALL)
    blurred = [ladder_outputs.DISTORTIONS[0].apply(photo, 2) for photo in photos]
    probe = [list(pair) for pair in zip(photos, blurred, strict=True)]
    prompts, reason = scorable_prompts(
        reward, probe, targets=photos, words=ladder_outputs.PHOTOGRAPHS, texts=ladder_outputs.CAPTIONS
    )
    if prompts is None:
        return Section(name=NAME, note=f"does not score the built-in photographs{reason}")
    reads = read_parts(reward, probe, prompts)
    attacks = [dict(_attacks(i, photos, reads)) for i in range(len(photos))]
    distorted = [dict(_distorted(photo)) for photo in photos]
    tables = [{ITSELF: photo} | own | others for photo, own, others in zip(photos, distorted, attacks, strict=True)]
    rows = named_scores(reward, tables, prompts)
    if reads:
        return _graded(rows, attacks=list(attacks[0]), reads=reads)
    return _ungraded(rows, attacks=list(attacks[0]))


def _graded(rows: Sequence[dict[str, float]], *, attacks: Sequence[str], reads: Sequence[str]) -> Section:
    """The section of a reward that compares with something."""
    severities = {d.name: [_by_severity(d, row) for row in rows] for d in ladder_outputs.DISTORTIONS}
    right = [row[ITSELF] for row in rows]
    lowest = [min(x for values in severities.values() for x in values[i]) for i in range(len(rows))]
    problems: dict[str, Problem | None] = {}
    if "target picture" in reads or "source picture" in reads:
        problems["ladder-identical"] = _identical(rows)
        for d in ladder_outputs.DISTORTIONS:
            problems[f"ladder-{d.name}"] = _monotone(d, severities[d.name], lowest)
    drops = [Drop(name=name, ordered=ordered_share(values)) for name, values in severities.items()]
    note = ""
    if mean([drop.ordered for drop in drops]) <= COIN:
        lowest, note = right, "distortions do not lower its scores, so there is no honest scale"
    measured = [
        Attack(name=name, reaches=reached, shows=name in ladder_outputs.DECORATIONS)
        for name, reached in shares(rows, attacks, right=right, lowest=lowest).items()
    ]
    return Section(name=NAME, reads=reads, drops=drops, attacks=measured, problems=problems, note=note)


def _ungraded(rows: Sequence[dict[str, float]], *, attacks: Sequence[str]) -> Section:
    """The section of a reward that reads the output alone: what it scores, the strongest of each distortion."""
    strongest = [_distortion_name(d, d.levels[-1]) for d in ladder_outputs.DISTORTIONS]
    means = {name: mean([row[name] for row in rows]) for name in (ITSELF, *strongest, *attacks)}
    values = [x for row in rows for x in row.values() if math.isfinite(x)]
    if max(values) - min(values) <= SAME:
        return Section(name=NAME, note=f"gives every picture the score {values[0]:.4g}, so nothing is graded")
    scores = {"the photographs": means.pop(ITSELF)} | means
    return Section(name=NAME, scores=scores, note=OUTPUT_ALONE)


def _distorted(photo: Image) -> Iterator[tuple[str, Image]]:
    """A photograph under every distortion at every severity, each with its name."""
    for d in ladder_outputs.DISTORTIONS:
        for level in d.levels:
            yield _distortion_name(d, level), d.apply(photo, level)


def _distortion_name(d: ladder_outputs.Distortion, level: float) -> str:
    return f"{d.name} {level:g}"


def _by_severity(d: ladder_outputs.Distortion, row: Mapping[str, float]) -> list[float]:
    """The scores of the photograph itself and of its distortions, the lightest first."""
    return [row[ITSELF], *(row[_distortion_name(d, level)] for level in d.levels)]


def _attacks(number: int, photos: Sequence[Image], reads: Sequence[str]) -> Iterator[tuple[str, Image]]:
    """The attacks on one photograph, each with its name."""
    photo, other = photos[number], photos[(number + 1) % len(photos)]
    yield from ladder_outputs.substitutes(photo)
    yield from ladder_outputs.decorated(photo)
    if reads:
        yield "another photograph", other
    if "prompt text" in reads:
        caption = ladder_outputs.PHOTOGRAPHS[number]
        yield "its caption across another photograph", ladder_outputs.captioned(other, caption)


def _identical(rows: Sequence[dict[str, float]]) -> Problem | None:
    for photo, row in zip(ladder_outputs.PHOTOGRAPHS, rows, strict=True):
        for rival in ("another photograph", *sorted(ladder_outputs.DECORATIONS)):
            if not row[ITSELF] > row[rival] + SAME:
                return (f"a higher score for the photograph {photo!r} itself than for {rival!r}",
                        f"{row[ITSELF]:.4g} and {row[rival]:.4g}",
                        "a target or source that is asked for and not compared with, or a wrong sign")  # fmt: skip
    return None


def _monotone(
    d: ladder_outputs.Distortion, severities: Sequence[Sequence[float]], lowest: Sequence[float]
) -> Problem | None:
    for photo, row, low in zip(ladder_outputs.PHOTOGRAPHS, severities, lowest, strict=True):
        allowed = TOLERANCE * abs(row[0] - low) + SAME
        for i, level in enumerate(d.levels):
            if not row[i + 1] <= min(row[: i + 1]) + allowed:
                return (f"scores of the photograph {photo!r} that drop as {d.name} gets stronger ({d.summary})",
                        f"{row[i + 1]:.4g} at {level:g} after {min(row[: i + 1]):.4g}",
                        "a part of the score that pays for this distortion, or too coarse a measure")  # fmt: skip
    return None
