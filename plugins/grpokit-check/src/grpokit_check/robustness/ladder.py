"""The ladder: do scores drop when an output gets worse, and how easily is the reward fooled?

`ladder` returns the report. `ladder_checks` are named checks of a report.
`photograph_ladder` and `word_ladder` measure. `ladder_outputs` makes the outputs; `grades` holds numbers and grades.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from grpokit.registry.specs import RewardSpec
from grpokit.rewards.submission import Submits
from grpokit.rewards.terms import Reward
from grpokit_check.check import Check, NotChecked
from grpokit_check.reward.calls import as_callable
from grpokit_check.reward.examples import accepted, spec_examples
from grpokit_check.robustness.grades import LadderReport, Section
from grpokit_check.robustness.photograph_ladder import photographs
from grpokit_check.robustness.word_ladder import drawn_words, texts

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
        The grades.

    Raises:
        Exception: any error of the reward that is not a `GrpokitError`.

    >>> from grpokit.builtin.text_rewards import ExactMatch
    >>> print(ladder(ExactMatch()).overall)
    very hard to fool (A): the best attack, 'blank', reaches 0.00 of the honest scale
    """
    reward = as_callable(reward)
    return climbed(reward, accepted(reward) if spec is None else spec.accepts, spec)


def climbed(reward: Reward, accepts: Collection[str], spec: RewardSpec | None) -> LadderReport:
    """As `ladder`, of a reward that can be called and is known to accept some kinds of output."""
    sections: list[Section] = []
    if "image" in accepts:
        pictures = photographs(reward)
        words = drawn_words(reward, spec.range if spec else (None, None))
        if words.problems and pictures.reads and not pictures.problems:
            # It looks for words, of which the photographs have none: grades there would be those of misreadings.
            pictures = Section(name=pictures.name, note=_NO_PICTURE)
        sections += [pictures, words]
    if "text" in accepts:
        sections.append(texts(reward, spec_examples(spec) if spec else []))
    return LadderReport(sections=sections)


def ladder_checks(report: Callable[[], LadderReport], accepts: Collection[str]) -> Iterator[Check]:
    """Yield the checks of the ladders that suit the accepted kinds of output; each asks for the report."""
    names = [*(_PICTURES if "image" in accepts else ()), *(_WORDS if {"image", "text"} & set(accepts) else ())]
    for name, summary in names:
        yield Check(name=name, summary=summary, test=partial(_judge, report, name))


def _judge(report: Callable[[], LadderReport], name: str) -> None:
    pictures = name in dict(_PICTURES)
    sections = [s for s in report().sections if (s.name == "photographs") == pictures]
    if not any(name in section.problems for section in sections):
        reasons = [_NO_PICTURE if pictures and (s.attacks or s.scores) else s.note for s in sections]
        raise NotChecked("; ".join(reasons))
    for problem in filter(None, (section.problems.get(name) for section in sections)):
        raise problem
