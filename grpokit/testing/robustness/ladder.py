"""The ladder: do scores drop when an output gets worse, and how easily is the reward fooled?

`ladder` returns the report. `ladder_checks` gives the same measurement as named checks, which share one run of it.
`photograph_ladder` and `word_ladder` measure. `ladder_outputs` makes the outputs; `grades` holds numbers and grades.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

from grpokit.registry.specs import RewardSpec
from grpokit.rewards.submission import Submits
from grpokit.rewards.terms import Reward
from grpokit.testing.check import Check, NotChecked, expect
from grpokit.testing.reward.calls import as_callable
from grpokit.testing.reward.examples import accepted, spec_examples
from grpokit.testing.robustness.grades import LadderReport, Section

_PICTURES = (
    ("ladder-identical", "a picture compared with itself scores best"),
    ("ladder-blur", "scores drop as blur gets stronger"),
    ("ladder-noise", "scores drop as noise gets stronger"),
    ("ladder-jpeg", "scores drop as JPEG compression gets stronger"),
    ("ladder-shift", "scores drop as a shift gets larger"),
)
_WORDS = (
    ("ladder-letters", "the first wrong letter lowers the score, and no further one raises it"),
    ("ladder-blank", "blank and scribbled outputs score lowest"),
    ("ladder-extra-text", "text next to the right one lowers the score"),
)
_NO_PICTURE = "compares with no picture"


def ladder(reward: Reward | Submits, *, spec: RewardSpec | None = None) -> LadderReport:
    """Measure a reward on the ladders that suit it.

    Args:
        reward: the reward, with its parameters bound.
        spec: what its plugin announces; without it, a few calls show which kinds of output the reward accepts.

    Returns:
        The grades; where scikit-image is missing, a note says that the photographs were not measured.

    Raises:
        Exception: any error of the reward that is not a `GrpokitError`.

    >>> from grpokit.builtin.text_rewards import ExactMatch
    >>> print(ladder(ExactMatch()).overall)
    very hard to fool (A): the best attack, 'blank', reaches 0.00 of the honest scale
    """
    return Ladder(reward, spec=spec).report


class Ladder:
    """The ladders of one reward, measured on first use of the report.

    Args:
        reward: the reward, with its parameters bound.
        spec: what its plugin announces: range, examples, and what it accepts.
        accepts: the kinds of output that it can score; by default those of the spec, or those that a few calls show.
    """

    def __init__(
        self, reward: Reward | Submits, *, spec: RewardSpec | None = None, accepts: Collection[str] | None = None
    ) -> None:
        self.reward, self.spec = as_callable(reward), spec
        if accepts is None:
            accepts = accepted(self.reward) if spec is None else spec.accepts
        self.accepts = frozenset(accepts)

    @functools.cached_property
    def report(self) -> LadderReport:
        """What the ladders measured."""
        from grpokit.testing.robustness.photograph_ladder import photographs
        from grpokit.testing.robustness.word_ladder import drawn_words, texts

        sections: list[Section] = []
        if "image" in self.accepts:
            pictures = photographs(self.reward)
            words = drawn_words(self.reward, self.spec.range if self.spec else (None, None))
            if words.problems and pictures.reads and not pictures.problems:
                # It looks for words, of which the photographs have none: grades there would be those of misreadings.
                pictures = Section(name=pictures.name, note=_NO_PICTURE)
            sections += [pictures, words]
        if "text" in self.accepts:
            sections.append(texts(self.reward, spec_examples(self.spec) if self.spec else []))
        return LadderReport(sections=sections)


def ladder_checks(measured: Ladder) -> Iterator[Check]:
    """Yield the checks of the ladders: those of pictures, of words, or both. The first that runs measures for all.

    Args:
        measured: the ladders of the reward.
    """
    accepts, spec = measured.accepts, measured.spec
    expected = spec.expected_failures if spec is not None else {}
    names = [*(_PICTURES if "image" in accepts else ()), *(_WORDS if accepts & {"image", "text"} else ())]
    for name, summary in names:
        test = functools.partial(_judge, measured, name)
        yield Check(name=name, summary=summary, test=test, expected_failure=expected.get(name, ""))


def _judge(measured: Ladder, name: str) -> None:
    pictures = name in dict(_PICTURES)
    sections = [s for s in measured.report.sections if (s.name == "photographs") == pictures]
    if not any(name in section.problems for section in sections):
        reasons = [_NO_PICTURE if pictures and (s.attacks or s.scores) else s.note for s in sections]
        raise NotChecked("; ".join(reasons))
    for section in sections:
        expect(not section.problems.get(name), *(section.problems.get(name) or ("", "", "")))
