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
from grpokit.testing.robustness import ladder_outputs
from grpokit.testing.robustness.grades import Attack, Drop, Problem, Section
from grpokit.testing.robustness.probe import (
    SAME,
    mean,
    named_scores,
    ordered_share,
    read_parts,
    rotated,
    scorable_prompts,
    scores,
    shares,
)
from grpokit.types import Prompt, Sample

TOLERANCE = 0.01
"""Of the honest scale: a further wrong letter may score so much more."""

LOWEST = 0.2
"""Of the way from the lowest score to the right output's: a blank or scribbled output must stay below."""

NEAR_BEST = 0.8
"""Of the declared range: a reader of words scores the right word at least so high."""

REPHRASED = 0.05
"""Of the way from blank to right: so much may a reader's score change when the prompt is phrased differently."""

SIGNS, TEXTS = "drawn words", "texts"
OUTPUT_ALONE = "compares with nothing, so no text is the right one and nothing is graded"


def drawn_words(reward: Reward, bounds: tuple[float | None, float | None]) -> Section:
    """Misspelt, blank and overfull signs, for rewards that read the quoted text from a picture."""
    words = ladder_outputs.WORDS
    rights = [word.right for word in words]
    signs = [ladder_outputs.drawn(right) for right in rights]
    probe = [
        [sign, ladder_outputs.drawn(word.wrong), ladder_outputs.drawn("")]
        for sign, word in zip(signs, words, strict=True)
    ]
    quotes = [f'a sign that says "{right}"' for right in rights]
    prompts, reason = scorable_prompts(reward, probe, targets=signs, words=rights, texts=quotes)
    if prompts is None:
        return Section(name=SIGNS, note=f"does not score the built-in signs{reason}")
    misquoted = scores(reward, probe, rotated(prompts, "text"))
    rephrased = [replace(prompt, text=f'the word "{right}"') for prompt, right in zip(prompts, rights, strict=True)]
    if not _is_reader(scores(reward, probe, prompts), misquoted, scores(reward, probe, rephrased), bounds):
        return Section(name=SIGNS, note="does not read the quoted text from pictures")
    blanks = {"a blank sign": ladder_outputs.drawn(""), "a scribbled sign": ladder_outputs.scribbles()}
    honest = [_spellings(word, ladder_outputs.drawn) | blanks for word in words]
    attacks = [dict(ladder_outputs.signs(word)) for word in words]
    return _graded(SIGNS, reward, honest, attacks, prompts, reads=("prompt text",), low=bounds[0])


def texts(reward: Reward, examples: Sequence[tuple[Sample, Sample]]) -> Section:
    """Misspelt, blank and overfull texts, for rewards that compare a text with the target text.

    Of another reward the examples of its spec are attacked: the better side is 1 on the honest scale, the worse side 0.
    """
    for words in (ladder_outputs.TEXTS, ladder_outputs.NUMBERS):
        rights = [word.right for word in words]
        probe: list[list[Any]] = [[word.right, word.wrong] for word in words]
        prompts, reason = scorable_prompts(
            reward, probe, targets=rights, words=rights, texts=[f'Write "{x}".' for x in rights], sources=False
        )
        if prompts is not None:
            break
    if prompts is None:
        return _examples(reward, examples, f"does not score the built-in texts{reason}")
    if "target text" not in read_parts(reward, probe, prompts):
        return _examples(reward, examples, "does not compare with the target")
    if not all(right > wrong + SAME for right, wrong in scores(reward, probe, prompts)):
        return _examples(reward, examples, "does not compare with the target: its own text is not what scores best")
    blanks = {"an empty text": "", "white space": " \n"}
    honest = [_spellings(word, str) | blanks for word in words]
    attacks = [dict(ladder_outputs.texts(word.right, p.text)) for word, p in zip(words, prompts, strict=True)]
    return _graded(TEXTS, reward, honest, attacks, prompts, reads=("target text",), low=None)


def _examples(reward: Reward, examples: Sequence[tuple[Sample, Sample]], note: str) -> Section:
    """Attacks on the examples of a spec, where they are texts."""
    pairs = [pair for pair in examples if all(isinstance(sample.output, str) for sample in pair)]
    if not pairs:
        return Section(name=TEXTS, note=note)
    prompts = [better.prompt for better, _ in pairs]
    tables = [dict(ladder_outputs.texts(better.output, better.prompt.text)) for better, _ in pairs]
    rows = named_scores(reward, tables, prompts)
    right, lowest = (
        [row[0] for row in scores(reward, [[sample.output] for sample in side], [sample.prompt for sample in side])]
        for side in zip(*pairs, strict=True)
    )
    reads = read_parts(reward, [[better.output, worse.output] for better, worse in pairs], prompts)
    if reads:
        if not any(high > low + SAME for high, low in zip(right, lowest, strict=True)):
            note += "; no better side of its examples scores more than the worse one, so there is no honest scale"
            return Section(name=TEXTS, reads=reads, note=note)
        return Section(name=TEXTS, reads=reads, attacks=_attacks(shares(rows, tables[0], right=right, lowest=lowest)),
                       note=f"{note}; the examples of its spec were attacked")  # fmt: skip
    means = {name: mean([row[name] for row in rows]) for name in tables[0]}
    return Section(
        name=TEXTS,
        scores={"the better sides": mean(right), "the worse sides": mean(lowest)} | means,
        note=f"{note}; {OUTPUT_ALONE}",
    )


def _attacks(reached: Mapping[str, float]) -> list[Attack]:
    return [Attack(name=name, reaches=share) for name, share in reached.items()]


def _spellings(word: ladder_outputs.Word, make: Callable[[str], Any]) -> dict[str, Any]:
    """The right word, its misspellings, and the word with others beside it."""
    misspelt = {f"{text!r}": make(text) for text in word.misspelt()}
    extra = {f"extra {text!r}": make(text) for text in (f"{word.right} sale", f"open {word.right} sale now")}
    return {"right": make(word.right), **misspelt, **extra}


def _is_reader(
    values: Sequence[Sequence[float]],
    misquoted: Sequence[Sequence[float]],
    rephrased: Sequence[Sequence[float]],
    bounds: tuple[float | None, float | None],
) -> bool:
    """Whether most right words score high, clearly more than other words, and by what the prompt quotes alone.

    The last sets a reader apart from a reward for pictures that fit the whole prompt, which may know letters too.
    """
    low, high = bounds
    votes = 0
    for (right, wrong, blank), other, again in zip(values, misquoted, rephrased, strict=True):
        scale = right - min(wrong, blank)
        if not right > other[0] + SAME or abs(right - again[0]) > REPHRASED * scale:
            return False
        near = low is None or high is None or right >= low + NEAR_BEST * (high - low)
        votes += near and right - wrong >= 0.5 * scale
    return votes > len(values) / 2


def _graded(
    name: str,
    reward: Reward,
    honest: Sequence[dict[str, Any]],
    attacks: Sequence[dict[str, Any]],
    prompts: Sequence[Prompt],
    *,
    reads: Sequence[str],
    low: float | None,
) -> Section:
    """The checks and grades of words, drawn or written."""
    tables = [own | others for own, others in zip(honest, attacks, strict=True)]  # no name is in both
    rows = named_scores(reward, tables, prompts)
    letters = [list(_by_severity(row).values()) for row in rows]
    lowest = [min(values) for values in letters]
    right = [row["right"] for row in rows]
    pairs = list(zip(rows, lowest, strict=True))
    return Section(
        name=name,
        reads=reads,
        drops=[Drop(name="wrong letters", ordered=ordered_share(letters))],
        attacks=_attacks(shares(rows, attacks[0], right=right, lowest=lowest)),
        problems={
            "ladder-letters": _first(_letters(row, floor) for row, floor in pairs),
            "ladder-blank": _first(_blank(row, floor if low is None else low) for row, floor in pairs),
            "ladder-extra-text": _first(_extra(row) for row in rows),
        },
    )


def _first(problems: Iterable[Problem | None]) -> Problem | None:
    return next((problem for problem in problems if problem is not None), None)


def _by_severity(row: Mapping[str, float]) -> dict[str, float]:
    """The scores of the right word and of its misspellings, from one wrong letter to all."""
    return {name: x for name, x in row.items() if name == "right" or name.startswith("'")}


def _letters(row: Mapping[str, float], floor: float) -> Problem | None:
    allowed = TOLERANCE * abs(row["right"] - floor)
    for number, ((before, high), (after, x)) in enumerate(pairwise(_by_severity(row).items())):
        if not (x < high - SAME if number == 0 else x <= high + allowed):
            return (f"a lower score for {after} than for {'the right word' if number == 0 else before}",
                    f"{x:.4g} after {high:.4g}", "a comparison that looks at parts of the text only")  # fmt: skip
    return None


def _blank(row: Mapping[str, float], low: float) -> Problem | None:
    limit = low + LOWEST * (row["right"] - low)
    for name in ("a blank sign", "a scribbled sign", "an empty text", "white space"):
        if name in row and not row[name] <= limit + SAME:
            return (f"a score of at most {limit:.4g} for {name} (the right output scores {row['right']:.4g})",
                    f"{row[name]:.4g}",
                    "a default score for an output that cannot be read; it should get the lowest score")  # fmt: skip
    return None


def _extra(row: Mapping[str, float]) -> Problem | None:
    for name, x in row.items():
        if name.startswith("extra ") and not x < row["right"] - SAME:
            return (f"a lower score for {name.removeprefix('extra ')} than for the right word, {row['right']:.4g}",
                    f"{x:.4g}", "a search for the text anywhere in the output; compare with all of it")  # fmt: skip
    return None
