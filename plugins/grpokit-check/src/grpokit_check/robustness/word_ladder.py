"""The ladders of words: misspelt, blank and overfull signs and texts, and attacks on them.

The checks apply to rewards that read the quoted word from a picture, and to those that compare with the target text.
Of other text rewards the examples of the spec are attacked: graded where the reward compares with something, and
listed with their mean scores where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from grpokit.rewards.terms import Reward
from grpokit.types import Prompt, Sample
from grpokit_check.check import attempt, expect
from grpokit_check.robustness import ladder_outputs
from grpokit_check.robustness.grades import Section
from grpokit_check.robustness.ladder_outputs import NUMBERS, TEXTS, WORDS, Word, drawn
from grpokit_check.robustness.probe import (
    SAME,
    graded,
    mean,
    measured,
    named_scores,
    read_parts,
    rotated,
    scorable_prompts,
    scores,
)

TOLERANCE = 0.01  # of the honest scale: a further wrong letter may score so much more
LOWEST = 0.2  # of the way from the lowest score to the right output's: a blank output must stay below
NEAR_BEST = 0.8  # of the declared range: a reader of words scores the right word at least so high
REPHRASED = (
    0.05  # of the way from blank to right: so little does another phrasing of the prompt change a reader's score
)

Bounds = tuple[float | None, float | None]


def drawn_words(reward: Reward, bounds: Bounds) -> Section:
    """Misspelt, blank and overfull signs, for rewards that read the quoted text from a picture."""
    name, blank = "drawn words", drawn("")
    rights = [word.right for word in WORDS]
    probe = [[drawn(word.right), drawn(word.wrong), blank] for word in WORDS]
    quotes = [f'a sign that says "{right}"' for right in rights]
    signs = [row[0] for row in probe]
    prompts, reason = scorable_prompts(reward, probe, targets=signs, words=rights, texts=quotes, sources=signs)
    if prompts is None:
        return Section(name=name, note=f"does not score the built-in signs{reason}")
    rephrased = [replace(prompt, text=f'the word "{right}"') for prompt, right in zip(prompts, rights, strict=True)]
    if not _is_reader([scores(reward, probe, p) for p in (prompts, rotated(prompts, "text"), rephrased)], bounds):
        return Section(name=name, note="does not read the quoted text from pictures")
    blanks = {"a blank sign": blank, "a scribbled sign": ladder_outputs.scribbles()}
    attacks = [ladder_outputs.signs(right) for right in rights]
    tables = [_spellings(word, drawn) | blanks | own for word, own in zip(WORDS, attacks, strict=True)]
    return _judged(name, "prompt text", named_scores(reward, tables, prompts), attacks[0], blanks, bounds[0])


def texts(reward: Reward, examples: Sequence[tuple[Sample, Sample]]) -> Section:
    """Misspelt, blank and overfull texts, for rewards that compare a text with the target text.

    Of another reward the examples of its spec are attacked: the better side is 1 on the honest scale, the worse side 0.
    """
    note = ""
    for words in (TEXTS, NUMBERS):
        rights = [word.right for word in words]
        quotes = [f'Write "{right}".' for right in rights]
        prompts, reason = scorable_prompts(reward, words, targets=rights, words=rights, texts=quotes)
        if prompts is None:
            note = note or f"does not score the built-in texts{reason}"
        elif _compares(reward, words, prompts, may_be_inverted=not examples):
            return _written_words(reward, words, prompts)
        else:
            note = "compares no built-in text with the target"
    return _examples(reward, examples, note)


def _written_words(reward: Reward, words: Sequence[Word], prompts: Sequence[Prompt]) -> Section:
    blanks = {"an empty text": "", "white space": " \n"}
    attacks = [ladder_outputs.texts(word.right, prompt.text) for word, prompt in zip(words, prompts, strict=True)]
    tables = [_spellings(word, str) | blanks | own for word, own in zip(words, attacks, strict=True)]
    return _judged("texts", "target text", named_scores(reward, tables, prompts), attacks[0], blanks, None)


def _compares(reward: Reward, words: Sequence[Word], prompts: Sequence[Prompt], *, may_be_inverted: bool) -> bool:
    """Whether the right words score more than the wrong ones, or all of them less, and by the target."""
    if "target text" not in read_parts(reward, words, prompts):
        return False
    gaps = [right - wrong for right, wrong in scores(reward, words, prompts)]
    return min(gaps) > SAME or (may_be_inverted and max(gaps) < -SAME)


def _examples(reward: Reward, examples: Sequence[tuple[Sample, Sample]], note: str) -> Section:
    """Attacks on the examples of a spec, where they are texts."""
    pairs = [pair for pair in examples if all(isinstance(sample.output, str) for sample in pair)]
    if not pairs:
        return Section(name="texts", note=note)
    prompts = [better.prompt for better, _ in pairs]
    attacks = [ladder_outputs.texts(better.output, better.prompt.text) for better, _ in pairs]
    rows = named_scores(reward, attacks, prompts)
    right, lowest = (
        [row[0] for row in scores(reward, [[sample.output] for sample in side], [sample.prompt for sample in side])]
        for side in zip(*pairs, strict=True)
    )
    reads = read_parts(reward, [[sample.output for sample in pair] for pair in pairs], prompts)
    if not reads:
        means = {name: mean([row[name] for row in rows]) for name in attacks[0]}
        sides = {"the better sides": mean(right), "the worse sides": mean(lowest)}
        note += "; compares with nothing, so there is no right text and nothing is graded"
        return Section(name="texts", scores=sides | means, note=note)
    if not any(high > low + SAME for high, low in zip(right, lowest, strict=True)):
        note += "; no better side of its examples scores more than the worse one, so there is no honest scale"
        return Section(name="texts", reads=reads, note=note)
    note += "; the examples of its spec were attacked"
    reached = measured(rows, attacks[0], right=right, lowest=lowest)
    return Section(name="texts", reads=reads, attacks=reached, note=note)


def _spellings(word: Word, make: Callable[[str], Any]) -> dict[str, Any]:
    """The right word, its misspellings, and the word among others."""
    misspelt = {f"{text!r}": make(text) for text in word.misspelt()}
    extra = {f"extra {text!r}": make(text) for text in (f"{word.right} sale", f"open {word.right} sale now")}
    return {"right": make(word.right), **misspelt, **extra}


def _is_reader(tables: Sequence[Sequence[Sequence[float]]], bounds: Bounds) -> bool:
    """Whether most right words score high, clearly more than other words, and by what the prompt quotes alone.

    The tables are the scores under the right prompts, under another word's, and under rephrased ones. The last sets a
    reader apart from a reward for pictures that fit the whole prompt, which may know letters too.
    """
    low, high = bounds
    votes = 0
    for (right, wrong, blank), other, again in zip(*tables, strict=True):
        scale = right - min(wrong, blank)
        if not right > other[0] + SAME or abs(right - again[0]) > REPHRASED * scale:
            return False
        near = low is None or high is None or right >= low + NEAR_BEST * (high - low)
        votes += near and right - wrong >= 0.5 * scale
    return votes > len(tables[0]) / 2


def _judged(
    name: str,
    reads: str,
    rows: Sequence[dict[str, float]],
    attacks: Iterable[str],
    blanks: Iterable[str],
    low: float | None,
) -> Section:
    """The checks and grades of words, drawn or written."""
    spellings = [{key: x for key, x in row.items() if key == "right" or key.startswith("'")} for row in rows]
    letters = [list(row.values()) for row in spellings]  # from the right word to one of wrong letters alone
    floors = [min(row) if low is None else low for row in letters]
    problems = {
        "ladder-letters": attempt(_letters, spellings),
        "ladder-blank": attempt(_blank, rows, floors, blanks),
        "ladder-extra-text": attempt(_extra, rows),
    }
    return graded(name, (reads,), {"wrong letters": letters}, rows, attacks, problems)


def _letters(rows: Sequence[Mapping[str, float]]) -> None:
    for row in rows:
        allowed = TOLERANCE * abs(row["right"] - min(row.values()))
        for (before, high), (after, x) in pairwise(row.items()):
            lower = x < high - SAME if before == "right" else x <= high + allowed
            expect(lower, f"a lower score for {after} than for {'the right word' if before == 'right' else before}",
                   f"{x:.4g} after {high:.4g}", "a comparison that looks at parts of the text only")  # fmt: skip


def _blank(rows: Sequence[Mapping[str, float]], floors: Sequence[float], blanks: Iterable[str]) -> None:
    for row, low in zip(rows, floors, strict=True):
        limit = low + LOWEST * (row["right"] - low)
        for name in blanks:
            expect(row[name] <= limit + SAME,
                   f"a score of at most {limit:.4g} for {name} (the right output scores {row['right']:.4g})",
                   f"{row[name]:.4g}",
                   "a default score for an output that cannot be read; it should get the lowest score")  # fmt: skip


def _extra(rows: Sequence[Mapping[str, float]]) -> None:
    for row in rows:
        for name, x in row.items():
            expect(not name.startswith("extra ") or x < row["right"] - SAME,
                   f"a lower score for {name.removeprefix('extra ')} than for the right word, {row['right']:.4g}",
                   f"{x:.4g}", "a search for the text anywhere in the output; compare with all of it")  # fmt: skip
