"""Scores samples as they are, and again without each of their parts.

A part's change is the score of the whole sample minus the score without the part: above 0, the part raises the score.
Every call also scores the whole sample, so that a reward that is not repeatable shows itself. If two scores of the same
sample differ, it is scored more often, and a change counts only where it is larger than chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from grpokit import Prompt, RewardTerm, Sample
from grpokit.errors import GrpokitError
from grpokit.images import to_rgb
from grpokit.rewards.scoring import score_samples
from grpokit_diagnosis.trial.parts import Divided

REPEATS = 10
"""How often a sample is scored at least if its scores differ."""

CHANCE = 6.0
"""Standard deviations of these scores below which a change may be chance.

If noise is normal and nothing matters, fewer than one map of 145 squares in twenty has a larger one.
"""

MOST_PIXELS = 2**25
"""Of all pictures in one call: rewards keep several copies in floats."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A sample that was tried.

    Attributes:
        where: names it in tables and messages.
        sample: what was scored; a picture as RGB.
        scores: all scores of the sample as it is; NaN: no score.
        problem: why there is no score; empty if there is one.
        needs: what the prompt has of "prompt", "target" and "source" -> the score without it, None if there is none.
        divided: the sample with its parts; None if it was not taken apart.
        empty: the score without all parts, NaN if there is none.
        changes: of each part; NaN where the rest had no score.
        notes: sentences on failures of the reward.
    """

    where: str
    sample: Sample
    scores: Sequence[float]
    problem: str = ""
    needs: Mapping[str, float | None] = field(default_factory=dict)
    divided: Divided | None = None
    empty: float = math.nan
    changes: Sequence[float] = ()
    notes: Sequence[str] = ()

    @property
    def score(self) -> float:
        """The mean of all scores; NaN if there is none."""
        return statistics.fmean(self.scores)

    @property
    def repeatable(self) -> bool:
        """Whether all scores were the same."""
        return len({*self.scores}) == 1 or math.isnan(self.score)

    @property
    def chance(self) -> float:
        """What a change has to be larger than; 0 for a repeatable reward."""
        return 0.0 if self.repeatable else CHANCE * statistics.stdev(self.scores)

    @property
    def counted(self) -> list[float]:
        """The changes, with 0 for those that may be chance."""
        return [0.0 if abs(change) <= self.chance else change for change in self.changes]

    @property
    def largest(self) -> float:
        """The size of the largest change that counts."""
        return max((abs(change) for change in self.counted if not math.isnan(change)), default=0.0)


class Scorer:
    """Scores outputs with one reward, some at a time.

    Args:
        term: the reward.
        batch_size: the most samples in a call; a group stays together.
        progress: called with how many groups were scored, and how many will be.

    Attributes:
        samples: how many were scored, with those that others were compared with.
        notes: sentences on failures of the reward.
    """

    def __init__(self, term: RewardTerm, batch_size: int, progress: Callable[[int, int], None]) -> None:
        self.term, self.batch_size, self.progress = term, batch_size, progress
        self.notes: list[str] = []
        self.samples = 0
        self._scored = self._planned = 0

    def plan(self, groups: int) -> None:
        """Announce that some groups will be scored."""
        self._planned += groups

    def score(self, rows: Sequence[Sequence[Sample]], *, skip: bool = False) -> list[float]:
        """The scores of the first samples of some groups.

        Args:
            rows: groups; all but the first sample of each are there to be compared with.
            skip: whether a group that makes the reward raise has no score; else its error is raised.

        Raises:
            RewardError: the reward raised, or gave something else than numbers.
            UsageError: a parameter or a target is wrong.
        """
        samples: list[Sample] = []
        firsts = []
        for group, row in enumerate(rows):
            firsts.append(len(samples))
            samples += [replace(sample, group=group) for sample in row]
        term = replace(self.term, on_error="skip" if skip else "stop", skip_limit=1.0, weight=1.0)
        scores = score_samples([term], samples)
        self.samples += len(samples)
        self.notes += [note for note in scores.notes if note not in self.notes]
        self._scored += len(rows)
        self.progress(self._scored, max(self._scored, self._planned))
        column = scores.matrix[:, 0].tolist()
        return [column[first] for first in firsts]

    def batches(self, count: int, group: Sequence[Sample]) -> Iterator[range]:
        """`count` groups like this one, divided into calls; each call leaves room for the whole sample."""
        pixels = sum(each.output.width * each.output.height for each in group if isinstance(each.output, Image.Image))
        most = min(self.batch_size // len(group), MOST_PIXELS // max(1, pixels)) - 1
        step = max(1, most)
        for first in range(0, count, step):
            yield range(first, min(first + step, count))


def as_scored(sample: Sample, where: str) -> Sample:
    """The sample with its picture as rewards see it."""
    if isinstance(sample.output, str):
        return sample
    return replace(sample, output=to_rgb(sample.output, what=where))


def try_whole(scorer: Scorer, groups: Sequence[Sequence[Sample]]) -> list[list[float]]:
    """Two scores of the first sample of each group, from two calls or more."""
    scores: list[list[float]] = [[] for _ in groups]
    scorer.plan(2 * len(groups))
    largest = max(groups, key=len)
    for _ in range(2):
        for batch in scorer.batches(len(groups), largest):
            for place, score in zip(batch, scorer.score([groups[i] for i in batch]), strict=True):
                scores[place].append(score)
    return scores


def without_parts(scorer: Scorer, tried: Tried, others: Sequence[Sample], divided: Divided) -> Tried:
    """Score a sample without each of its parts.

    Args:
        scorer: of the reward.
        tried: the sample, which has a score.
        others: the rest of its group.
        divided: the sample with its parts.
    """
    sample = tried.sample
    scorer.notes = []
    whole = [sample, *others]
    scores = list(tried.scores)
    rest: list[float] = []
    for batch in scorer.batches(len(divided.parts), whole):
        rows = [[replace(sample, output=divided.without(i)), *others] for i in batch]
        first, *own = scorer.score([whole, *rows], skip=True)
        rest += own
        scores.append(first)
    (empty,) = scorer.score([[replace(sample, output=divided.empty), *others]], skip=True)
    if len({*scores}) > 1 and len(scores) < REPEATS:
        for batch in scorer.batches(REPEATS - len(scores), whole):
            scores += scorer.score([whole for _ in batch])
    scores = [score for score in scores if not math.isnan(score)]
    mean = statistics.fmean(scores)
    return replace(
        tried,
        scores=scores,
        divided=divided,
        empty=empty,
        changes=[mean - score for score in rest],
        notes=tuple(scorer.notes),
    )


def needs(scorer: Scorer, sample: Sample, others: Sequence[Sample]) -> dict[str, float | None]:
    """What the prompt has of "prompt" (its text), "target" and "source" -> the score without it; None: no score."""
    prompt = sample.prompt
    without: dict[str, dict[str, Any]] = {}
    if prompt.text:
        without["prompt"] = {"text": ""}
    if prompt.target is not None:
        without["target"] = {"target": None}
    if prompt.images:
        without["source"] = {"images": (), "image": None}
    scores: dict[str, float | None] = {}
    for name, change in without.items():
        bare: Prompt = replace(prompt, **change)
        row = [replace(each, prompt=bare) for each in (sample, *others)]
        try:
            (score,) = scorer.score([row], skip=True)
        except GrpokitError:  # the reward says that it cannot do without
            score = math.nan
        scores[name] = None if math.isnan(score) else score
    return scores
