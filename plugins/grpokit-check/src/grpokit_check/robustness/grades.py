"""What a ladder measures, as records: how surely scores drop with each distortion, and how far each attack gets.

Shares are of the honest scale: 1 is the score of the right output, 0 the lowest score among the honest outputs (the
distorted or misspelt ones). Grades run from A to E; the tables below say which number gets which. A reward that
compares with nothing has no right output: its mean scores are shown without grades.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from grpokit_check.check import CheckError

GRADES = "ABCDE"
IN_WORDS = ("very hard to fool", "hard to fool", "can be fooled", "easy to fool", "fooled at once")

PAIRS = "pairs in order: how often the less distorted of two outputs scores more (1 is always, 0.5 a coin)"
SCALE = "honest scale: 1 is the score of the right output, 0 that of the most distorted, or of an example's worse side"

# The largest share of the honest scale for A, B, C and D: of an attack that does not show what was asked for, and of
# one that decorates it, of which only what it gains beyond 1 counts.
SUBSTITUTE, DECORATION = (0.2, 0.4, 0.6, 0.8), (1.02, 1.1, 1.25, 1.5)
ORDERED = (1.0, 0.9, 0.75, 0.5)  # the smallest share of pairs of severities in order for A, B, C and D


@dataclass(frozen=True, kw_only=True)
class Drop:
    """How the scores drop with one distortion.

    Attributes:
        name: the distortion.
        ordered: the share of pairs of severities of which the less distorted output scores more; a tie counts half.
    """

    name: str
    ordered: float

    @property
    def grade(self) -> str:
        """A: every pair is in order; D: half of them, as where it does not see the distortion; E: it prefers it."""
        return GRADES[sum(self.ordered < limit - 1e-9 for limit in ORDERED)]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """How far an adversarial example gets.

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
        return GRADES[sum(self.reaches > limit for limit in (DECORATION if self.shows else SUBSTITUTE))]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One ladder.

    Attributes:
        name: "photographs", "drawn words" or "texts".
        reads: what changes the reward's scores: "target picture", "source picture", "prompt text", "target text".
        drops: one per distortion.
        attacks: one per attack.
        scores: what was scored -> its mean score, where the reward compares with nothing and so has no grades.
        problems: check name -> its failure, or None; only the checks that apply to the reward.
        note: why something was not measured or not graded, or nothing.
    """

    name: str
    reads: Sequence[str] = ()
    drops: Sequence[Drop] = ()
    attacks: Sequence[Attack] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, CheckError | None] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class LadderReport:
    """What the ladders measured; `str` writes it out.

    Attributes:
        sections: the ladders that suit what the reward accepts.
    """

    sections: Sequence[Section]

    @property
    def worst(self) -> Attack | None:
        """The attack with the worst grade; among equals, the one that gets furthest but shows nothing right."""
        attacks = [attack for section in self.sections for attack in section.attacks]
        return max(attacks, key=lambda x: (x.grade, not x.shows, x.reaches), default=None)

    @property
    def grade(self) -> str:
        """The worst grade of an attack, or nothing where none was graded."""
        return "" if self.worst is None else self.worst.grade

    @property
    def overall(self) -> str:
        """How easily the reward can be fooled, in one line, or why nothing was graded."""
        if self.worst is None:
            notes = dict.fromkeys(section.note for section in self.sections if section.note)
            return f"not graded: {'; '.join(notes) or 'there is no ladder for outputs of this kind'}"
        reached = f"reaches {self.worst.reaches:.2f} of the honest scale"
        return f"{IN_WORDS[GRADES.index(self.grade)]} ({self.grade}): the best attack, '{self.worst.name}', {reached}"

    def __str__(self) -> str:
        lines = [line for section in self.sections for line in _lines(section)]
        if self.worst is not None or not self.sections:
            lines.append(self.overall)
        lines += [PAIRS] if any(section.drops for section in self.sections) else []
        lines += [SCALE] if self.worst is not None else []
        return "\n".join(lines)


def _lines(section: Section) -> Iterator[str]:
    """A section in lines: what the reward reads, its mean scores or the distortions, the attacks, the decorations."""
    reads = f"reads the {' and the '.join(section.reads)}" if section.reads else ""
    scores = "mean scores:" if section.scores else ""
    yield f"{section.name}: {'; '.join(filter(None, (reads, section.note, scores)))}"
    names = [*section.scores, *(drop.name for drop in section.drops), *(attack.name for attack in section.attacks)]
    width = max(map(len, names), default=0)
    yield from (f"  {name:<{width}} {score:10.4g}" for name, score in section.scores.items())
    for drop in section.drops:
        yield f"  {drop.grade}  {drop.name:<{width}} {drop.ordered:6.2f} of the pairs in order"
    attacks = sorted(section.attacks, key=lambda attack: attack.shows)
    for number, attack in enumerate(attacks):
        if attack.shows and (number == 0 or not attacks[number - 1].shows):
            yield "  decorations, graded by what they gain above 1:"
        yield f"  {attack.grade}  {attack.name:<{width}} {attack.reaches:6.2f} of the honest scale"
