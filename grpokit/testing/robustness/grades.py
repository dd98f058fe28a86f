"""What a ladder finds, as records: how surely a reward falls with each distortion, how far each attack gets.

Shares are of the honest scale: 1 is what the right output scores, 0 the worst of the honest rungs (the distortions,
or the misspelt words). Grades run from A to E; the tables below say which number gets which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Problem = tuple[str, str, str]
"""What was expected, what came and the usual cause."""

GRADES = "ABCDE"
IN_WORDS = {
    "A": "very hard to fool",
    "B": "hard to fool",
    "C": "can be fooled",
    "D": "easy to fool",
    "E": "fooled at once",
}

PAIRS = "pairs in order: how often the less distorted of two rungs scores more (1 is always, 0.5 a coin)"
SCALE = "honest scale: 1 is the score of the right output, 0 that of the worst rung, or of an example's worse side"

GRADED_ONLY = " (graded only: it fails no check)"

STAND_IN = (0.2, 0.4, 0.6, 0.8)
"""The largest share of the honest scale for A, B, C and D, of an attack that does not show what was asked for."""

TOUCH_UP = (1.02, 1.1, 1.25, 1.5)
"""Likewise of an attack that shows it and decorates it: only what it gains beyond 1 counts."""

ORDERED = (1.0, 0.9, 0.75, 0.5)
"""The smallest share of pairs of rungs in the right order for A, B, C and D; a tie counts as half a pair."""


@dataclass(frozen=True, kw_only=True)
class Fall:
    """How a reward follows one distortion.

    Attributes:
        name: the distortion.
        ordered: the share of pairs of rungs of which the less distorted scores more; a tie counts half.
    """

    name: str
    ordered: float

    @property
    def grade(self) -> str:
        """A: every pair is in order; D: half of them, as where it does not see the distortion; E: it prefers it."""
        return GRADES[sum(self.ordered < limit - 1e-9 for limit in ORDERED)]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How far an attack gets.

    Attributes:
        name: what was done.
        reaches: its score as a share of the honest scale, the mean over the pictures or words.
        shows: whether it shows what was asked for, so that only a share above 1 counts against the reward.
    """

    name: str
    reaches: float
    shows: bool = False

    @property
    def grade(self) -> str:
        """A: it does not get far; E: it does as well as the right output, or clearly better than it."""
        return GRADES[sum(self.reaches > limit for limit in (TOUCH_UP if self.shows else STAND_IN))]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One ladder: photographs, drawn words or texts.

    Attributes:
        name: which.
        reads: what changes the reward's scores: "target picture", "source picture", "prompt text", "target text".
        falls: one per distortion.
        attacks: one per attack.
        problems: check name -> what is wrong, or None; only the checks that apply to the reward.
        note: what stood in the way of climbing or of grading, or nothing.
    """

    name: str
    reads: Sequence[str] = ()
    falls: Sequence[Fall] = ()
    attacks: Sequence[Attack] = ()
    problems: Mapping[str, Problem | None] = field(default_factory=dict)
    note: str = ""

    @property
    def climbed(self) -> bool:
        """Whether anything was graded."""
        return bool(self.falls or self.attacks)


@dataclass(frozen=True, kw_only=True)
class LadderReport:
    """What climbing the ladders showed; `str` writes it out.

    Attributes:
        sections: the ladders that suit what the reward accepts.
    """

    sections: Sequence[Section]

    @property
    def worst(self) -> Attack | None:
        """The attack with the worst grade; among equal ones that which gets furthest without what was asked for."""
        attacks = [attack for section in self.sections for attack in section.attacks]
        return max(attacks, key=lambda x: (x.grade, not x.shows, x.reaches), default=None)

    @property
    def grade(self) -> str:
        """The worst grade of an attack, or nothing where none was made."""
        return "" if self.worst is None else self.worst.grade

    @property
    def overall(self) -> str:
        """How easily the reward can be fooled, in one line."""
        if self.worst is None:
            return (
                "; ".join(section.note for section in self.sections)
                or "not climbed: there is no ladder for its outputs"
            )
        reached = f"reaches {self.worst.reaches:.2f} of the honest scale"
        return f"{IN_WORDS[self.grade]} ({self.grade}): the best attack, '{self.worst.name}', {reached}"

    def __str__(self) -> str:
        lines = [line for section in self.sections for line in _written(section)]
        if self.worst is not None or not self.sections:
            passes = not any(section.problems for section in self.sections)
            lines.append(self.overall + (GRADED_ONLY if passes and self.worst is not None else ""))
        if any(section.falls for section in self.sections):
            lines.append(PAIRS)
        if self.worst is not None:
            lines.append(SCALE)
        return "\n".join(lines)


def _written(section: Section) -> Iterator[str]:
    """A section in lines: what it says of the reward, the distortions, the attacks, the decorations."""
    reads = f"reads the {' and the '.join(section.reads)}" if section.reads else "reads the output alone"
    graded = "graded only" if section.climbed and not section.problems else ""
    said = filter(None, (reads if section.falls else "", section.note, graded))
    yield f"{section.name}: {'; '.join(said)}"
    names = [*(x.name for x in section.falls), *(x.name for x in section.attacks)]
    width = max(map(len, names), default=0)
    for fall in section.falls:
        yield f"  {fall.grade}  {fall.name:<{width}} {fall.ordered:6.2f} of the pairs in order"
    for shows in (False, True):
        attacks = [attack for attack in section.attacks if attack.shows == shows]
        if attacks and shows:
            yield "  decorations, graded by what they gain above 1:"
        for attack in attacks:
            yield f"  {attack.grade}  {attack.name:<{width}} {attack.reaches:6.2f} of the honest scale"
