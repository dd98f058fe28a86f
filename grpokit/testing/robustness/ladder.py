"""The ladder: does a reward fall when its output gets worse, and how easily can it be fooled?

`ladder` climbs it and returns the report; `ladder_checks` are its rungs as named checks, which climb once together.
`climbing` scores and judges, `rungs` makes the pictures and texts, `grades` holds what is found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator

from grpokit.registry.specs import RewardSpec
from grpokit.rewards.scoring import Reward
from grpokit.testing.check import Check, NotChecked, expect
from grpokit.testing.reward.examples import accepted, spec_examples
from grpokit.testing.robustness.grades import LadderReport, Section

_PICTURES = (
    ("ladder-identical", "a picture compared with itself scores best"),
    ("ladder-blur", "scores fall under rising blur"),
    ("ladder-noise", "scores fall under rising noise"),
    ("ladder-jpeg", "scores fall under rising JPEG compression"),
    ("ladder-shift", "scores fall under a rising shift"),
)
_WORDS = (
    ("ladder-letters", "each wrong letter costs, the first one at once"),
    ("ladder-blank", "blank and scribbled outputs score lowest"),
    ("ladder-extra-text", "text beside the right one costs"),
)


def ladder(reward: Reward, *, spec: RewardSpec | None = None) -> LadderReport:
    """Climb the ladders that suit a reward.

    Args:
        reward: the reward, with its parameters bound.
        spec: what its plugin announces; without it, what the reward accepts is found by calling it.

    Returns:
        The grades; where scikit-image is missing, the photographs are noted as not climbed.

    Raises:
        Exception: whatever the reward raises that is no `GrpokitError`.

    >>> from grpokit.builtin.text_rewards import ExactMatch
    >>> print(ladder(ExactMatch()).overall)
    very hard to fool (A): the best attack, 'blank', reaches 0.00 of the honest scale
    """
    return Climb(reward, spec=spec).report


class Climb:
    """A ladder that is climbed when somebody first looks at its report.

    Args:
        reward: the reward, with its parameters bound.
        spec: what its plugin announces: range, examples, and what it accepts.
        accepts: the kinds of output that it can score; by default as in the spec, or found by calling it.
    """

    def __init__(
        self, reward: Reward, *, spec: RewardSpec | None = None, accepts: Collection[str] | None = None
    ) -> None:
        self.reward, self.spec = reward, spec
        if accepts is None:
            accepts = accepted(reward) if spec is None else spec.accepts
        self.accepts = frozenset(accepts)

    @functools.cached_property
    def report(self) -> LadderReport:
        """What climbing showed."""
        from grpokit.testing.robustness import judge

        parts: list[Callable[[], Section]] = []
        if "image" in self.accepts:
            parts.append(lambda: judge.photographs(self.reward))
            parts.append(lambda: judge.drawn_words(self.reward, self.spec.range if self.spec else (None, None)))
        if "text" in self.accepts:
            parts.append(lambda: judge.texts(self.reward, spec_examples(self.spec) if self.spec else []))
        sections = [part() for part in parts]
        if "image" in self.accepts and sections[1].problems and sections[0].climbed and not sections[0].problems:
            # It looks for words, of which the photographs have none: grades there would be those of misreadings.
            sections[0] = Section(name=sections[0].name, note="compares with no picture")
        return LadderReport(sections=sections)


def ladder_checks(climb: Climb) -> Iterator[Check]:
    """Yield the rungs as checks: those of pictures, of words, or both. The first that runs climbs for all.

    Args:
        climb: the ladder.
    """
    listed = [*(_PICTURES if "image" in climb.accepts else ()), *(_WORDS if climb.accepts & {"image", "text"} else ())]
    known = climb.spec.expected_failures if climb.spec is not None else {}
    for name, summary in listed:
        test = functools.partial(_judge, climb, name)
        yield Check(name=name, summary=summary, test=test, expected_failure=known.get(name, ""))


def _judge(climb: Climb, name: str) -> None:
    pictures = name in dict(_PICTURES)
    sections = [s for s in climb.report.sections if (s.name == "photographs") == pictures]
    if not any(name in section.problems for section in sections):
        raise NotChecked("; ".join("compares with no picture" if s.climbed and pictures else s.note for s in sections))
    for section in sections:
        problem = section.problems.get(name)
        if problem is not None:
            expect(False, *problem)
