"""The ladder of pictures: photographs made worse step by step, and attacks on them.

Only a reward that compares with a target or source picture can fail its checks. One that reads the prompt's text is
graded. A reward that reads only the output has no right picture: its mean scores are listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

from PIL.Image import Image

from grpokit.rewards.terms import Reward
from grpokit_check.check import attempt, expect
from grpokit_check.robustness import ladder_outputs
from grpokit_check.robustness.grades import Section
from grpokit_check.robustness.ladder_outputs import DECORATIONS, DISTORTIONS, PHOTOGRAPHS
from grpokit_check.robustness.probe import SAME, graded, mean, named_scores, read_parts, scorable_prompts

TOLERANCE = 0.01  # of the honest scale: a distortion may score so much more than a lighter one, for rounding
NAME = "photographs"
ITSELF = "itself"


def photographs(reward: Reward) -> Section:
    """Distorted photographs and attacks on pictures."""
    photos = ladder_outputs.photographs()
    probe = [[photo, DISTORTIONS[0].apply(photo, 2)] for photo in photos]
    prompts, reason = scorable_prompts(
        reward, probe, targets=photos, words=PHOTOGRAPHS, texts=ladder_outputs.CAPTIONS, sources=photos
    )
    if prompts is None:
        return Section(name=NAME, note=f"does not score the built-in photographs{reason}")
    reads = read_parts(reward, probe, prompts)
    distorted = [{f"{d.name} {x:g}": d.apply(photo, x) for d in DISTORTIONS for x in d.levels} for photo in photos]
    attacks = [_attacks(number, photos, reads) for number in range(len(photos))]
    tables = [{ITSELF: photo} | own | others for photo, own, others in zip(photos, distorted, attacks, strict=True)]
    rows = named_scores(reward, tables, prompts)
    if not reads:
        return _listed(rows, attacks[0])
    falls = {d.name: [[row[ITSELF], *(row[f"{d.name} {x:g}"] for x in d.levels)] for row in rows] for d in DISTORTIONS}
    problems = {}
    if {"target picture", "source picture"} & set(reads):
        lowest = [min(chain(*values)) for values in zip(*falls.values(), strict=True)]
        problems["ladder-identical"] = attempt(_unlike_others, rows)
        problems |= {f"ladder-{d.name}": attempt(_falls, d, falls[d.name], lowest) for d in DISTORTIONS}
    return graded(NAME, reads, falls, rows, attacks[0], problems)


def _attacks(number: int, photos: Sequence[Image], reads: Sequence[str]) -> dict[str, Image]:
    """The attacks on one photograph."""
    photo, other = photos[number], photos[(number + 1) % len(photos)]
    attacks = ladder_outputs.substitutes(photo) | {name: decorate(photo) for name, decorate in DECORATIONS.items()}
    if reads:
        attacks["another photograph"] = other
    if "prompt text" in reads:
        attacks["its caption across another photograph"] = ladder_outputs.captioned(other, PHOTOGRAPHS[number])
    return attacks


def _listed(rows: Sequence[dict[str, float]], attacks: Iterable[str]) -> Section:
    """The section of a reward that reads the output alone: what it scores, the strongest of each distortion."""
    values = [x for row in rows for x in row.values() if math.isfinite(x)]
    if max(values) - min(values) <= SAME:
        return Section(name=NAME, note=f"gives every picture the score {values[0]:.4g}, so nothing is graded")
    names = [ITSELF, *(f"{d.name} {d.levels[-1]:g}" for d in DISTORTIONS), *attacks]
    scores = {name.replace(ITSELF, "the photographs"): mean([row[name] for row in rows]) for name in names}
    note = "reads only the output, so there is no right picture and nothing is graded"
    return Section(name=NAME, scores=scores, note=note)


def _unlike_others(rows: Sequence[dict[str, float]]) -> None:
    """A photograph scores more than another one, and more than itself with a decoration."""
    for photo, row in zip(PHOTOGRAPHS, rows, strict=True):
        for rival in ("another photograph", *sorted(DECORATIONS)):
            expect(row[ITSELF] > row[rival] + SAME,
                   f"a higher score for the photograph {photo!r} itself than for {rival!r}",
                   f"{row[ITSELF]:.4g} and {row[rival]:.4g}",
                   "a target or source that is asked for and not compared with, or a wrong sign")  # fmt: skip


def _falls(d: ladder_outputs.Distortion, severities: Sequence[Sequence[float]], lowest: Sequence[float]) -> None:
    """No distortion scores more than a lighter one."""
    for photo, row, low in zip(PHOTOGRAPHS, severities, lowest, strict=True):
        allowed = TOLERANCE * abs(row[0] - low) + SAME
        for i, level in enumerate(d.levels, 1):
            expect(row[i] <= min(row[:i]) + allowed,
                   f"scores of the photograph {photo!r} that drop as {d.name} gets stronger ({d.summary})",
                   f"{row[i]:.4g} at {level:g} after {min(row[:i]):.4g}",
                   "a part of the score that pays for this distortion, or too coarse a measure")  # fmt: skip
