"""Climbs a ladder with a reward: scores the rungs, finds out by behaviour what the reward reads, and judges it.

What a reward reads is what changes its scores when it is swapped: the target, the source picture, the prompt's text.
Only a reward that compares with a picture, reads quoted words or compares with a text can fail; others are graded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from PIL.Image import Image

from grpokit.rewards.scoring import Reward
from grpokit.testing.check import told
from grpokit.testing.robustness import adversarial
from grpokit.testing.robustness.grades import Attack, Fall, Problem, Section
from grpokit.types import Prompt, Sample

TOLERANCE = 0.01
"""Of the honest scale; a rung may score so much more than a better one, for rounding and for resampling."""

LOWEST = 0.2
"""Of the way from the lowest score to the right output's: a blank or scribbled picture must stay below."""

NEAR_BEST = 0.8
"""Of the declared range: a reader of words scores the right word at least so high."""

RETOLD = 0.05
"""Of the way from blank to right: so much may a reader's score change when the prompt quotes the same otherwise."""

SAME = 1e-9
INSTALL = "not climbed: pip install 'grpokit[check]'"


def photographs(reward: Reward) -> Section:
    """Distorted photographs and attacks on pictures."""
    try:
        photos = adversarial.photographs()
    except ModuleNotFoundError:
        return Section(name="photographs", note=INSTALL)
    blurred = [adversarial.DISTORTIONS[0].apply(photo, 2) for photo in photos]
    probe = [list(pair) for pair in zip(photos, blurred, strict=True)]
    prompts, said = _scorable(reward, probe, photos, adversarial.PHOTOGRAPHS, adversarial.CAPTIONS)
    if prompts is None:
        return Section(name="photographs", note=f"does not score the built-in photographs{said}")
    reads = _reads(reward, probe, prompts)
    tables = [dict(_pictures(i, photos, reads)) for i in range(len(photos))]
    scored = _scored(reward, [list(table.values()) for table in tables], prompts)
    scores = [dict(zip(table, row, strict=True)) for table, row in zip(tables, scored, strict=True)]
    ladders = {
        d.name: [[row["itself"], *(row[_rung(d, x)] for x in d.levels)] for row in scores]
        for d in adversarial.DISTORTIONS
    }
    lowest = [min(x for name in ladders for x in ladders[name][i]) for i in range(len(photos))]
    names = [name for name in tables[0] if name.startswith("attack: ")]
    decorated = {name for name, _ in adversarial.touched_up(photos[0])}
    problems: dict[str, Problem | None] = {}
    if "target picture" in reads or "source picture" in reads:
        problems["ladder-identical"] = _identical(scores, decorated)
        for d in adversarial.DISTORTIONS:
            problems[f"ladder-{d.name}"] = _monotone(d, ladders[d.name], lowest)
    right = [row["itself"] for row in scores]
    attacks = [
        Attack(name=short, reaches=reached, shows=short in decorated)
        for name in names
        if not math.isnan(reached := _reached([row[name] for row in scores], right, lowest))
        for short in [name.removeprefix("attack: ")]
    ]
    falls = [Fall(name=name, ordered=_ordered(ladder)) for name, ladder in ladders.items()]
    note = "" if attacks else "no distortion scores below the photographs, so there is no honest scale"
    return Section(name="photographs", reads=reads, falls=falls, attacks=attacks, problems=problems, note=note)


def drawn_words(reward: Reward, bounds: tuple[float | None, float | None]) -> Section:
    """Misspelt, blank and overfull signs, for rewards that read the quoted text from a picture."""
    words = adversarial.WORDS
    signs = [adversarial.drawn(word.right) for word in words]
    probe = [
        [sign, adversarial.drawn(word.wrong), adversarial.drawn("")] for sign, word in zip(signs, words, strict=True)
    ]
    quotes = [f'a sign that says "{word.right}"' for word in words]
    prompts, said = _scorable(reward, probe, signs, [word.right for word in words], quotes)
    if prompts is None:
        return Section(name="drawn words", note=f"does not score the built-in signs{said}")
    misquoted = _scored(reward, probe, _rotated(prompts, "text"))
    retold = [_with(prompt, "text", f'the word "{word.right}"') for prompt, word in zip(prompts, words, strict=True)]
    if not _is_reader(_scored(reward, probe, prompts), misquoted, _scored(reward, probe, retold), bounds):
        return Section(name="drawn words", note="does not read the quoted text from pictures")
    blanks = {"a blank sign": adversarial.drawn(""), "a scribbled sign": adversarial.scribbles()}
    tables = [{**_spelt(word, adversarial.drawn), **blanks, **_named(adversarial.signs(word))} for word in words]
    return _judged("drawn words", reward, tables, prompts, ("prompt text",), bounds[0])


def texts(reward: Reward, examples: Sequence[tuple[Sample, Sample]]) -> Section:
    """Misspelt, blank and overfull texts, for rewards that compare a text with the target text.

    Of another reward its spec's examples are attacked: the better side is 1 on the honest scale, the worse side 0.
    """
    for words in (adversarial.TEXTS, adversarial.NUMBERS):
        rights = [word.right for word in words]
        probe: list[list[Any]] = [[word.right, word.wrong] for word in words]
        prompts, said = _scorable(reward, probe, rights, rights, [f'Write "{x}".' for x in rights], sources=False)
        if prompts is not None:
            break
    if prompts is None:
        return _forged(reward, examples, f"does not score the built-in texts{said}")
    if "target text" not in _reads(reward, probe, prompts):
        return _forged(reward, examples, "does not compare with the target")
    if not all(right > wrong + SAME for right, wrong in _scored(reward, probe, prompts)):
        return _forged(reward, examples, "does not compare with the target: its own text is not what scores best")
    blanks = {"an empty text": "", "white space": " \n"}
    tables = []
    for word, prompt in zip(words, prompts, strict=True):
        forgeries = _named(adversarial.forgeries(word.right, prompt.text))
        tables.append({**_spelt(word, str), **blanks, **forgeries})
    return _judged("texts", reward, tables, prompts, ("target text",), None)


def _forged(reward: Reward, examples: Sequence[tuple[Sample, Sample]], note: str) -> Section:
    """Attacks on the examples of a spec, where they are texts."""
    pairs = [pair for pair in examples if all(isinstance(sample.output, str) for sample in pair)]
    if not pairs:
        return Section(name="texts", note=note)
    tables = [_named(adversarial.forgeries(better.output, better.prompt.text)) for better, _ in pairs]
    outputs = [[better.output, *table.values()] for (better, _), table in zip(pairs, tables, strict=True)]
    scores = _scored(reward, outputs, [better.prompt for better, _ in pairs])
    lowest = [row[0] for row in _scored(reward, [[worse.output] for _, worse in pairs], [w.prompt for _, w in pairs])]
    attacks = [
        Attack(name=name.removeprefix("attack: "), reaches=_reached([row[i] for row in scores], right, lowest))
        for i, name in enumerate(tables[0], 1)
        for right in [[row[0] for row in scores]]
    ]
    found = [attack for attack in attacks if not math.isnan(attack.reaches)]
    return Section(name="texts", attacks=found, note=f"{note}; its spec's examples were attacked")


def _scorable(
    reward: Reward,
    probe: Sequence[Sequence[Any]],
    targets: Sequence[Any],
    words: Sequence[str],
    captions: Sequence[str],
    *,
    sources: bool = True,
) -> tuple[list[Prompt] | None, str]:
    """Prompts under which a reward scores all of the probe: with a target of the output's kind, a text, or none."""
    said = " (NaN for some of them)"
    images = targets if sources else [None] * len(captions)
    for found in (targets, words, [None] * len(captions)):
        prompts = [
            Prompt(text=caption, target=target, image=image)
            for caption, target, image in zip(captions, found, images, strict=True)
        ]
        try:
            values = _scored(reward, probe, prompts)
        except (Exception, SystemExit) as error:
            # what it lacks here says nothing of its own samples, on which it is checked too
            said = f" ({_cut(told(error))})" if found is targets else said
            continue
        if all(math.isfinite(x) for row in values for x in row):
            return prompts, ""
    return None, said


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}..."


def _scored(reward: Reward, outputs: Sequence[Sequence[Any]], prompts: Sequence[Prompt]) -> list[list[float]]:
    """Scores of several outputs per prompt, a group each, in one call."""
    samples = [
        Sample(prompt=prompt, output=output, group=group)
        for group, (row, prompt) in enumerate(zip(outputs, prompts, strict=True))
        for output in row
    ]
    values = iter([float(x) for x in reward(samples)])
    return [[next(values) for _ in row] for row in outputs]


def _reads(reward: Reward, probe: Sequence[Sequence[Any]], prompts: Sequence[Prompt]) -> tuple[str, ...]:
    """What changes the scores of the probe when it is taken from the next prompt, or left out."""
    before = _scored(reward, probe, prompts)
    found = []
    for part, name in (("target", "target"), ("image", "source picture"), ("text", "prompt text")):
        present = [getattr(prompt, part) for prompt in prompts]
        if present[0] is None:
            continue
        swaps = [_rotated(prompts, part)]
        if part != "text":
            swaps.append([_with(prompt, part, None) for prompt in prompts])
        if any(_differ(reward, probe, swapped, before) for swapped in swaps):
            kind = "" if part != "target" else " picture" if isinstance(present[0], Image) else " text"
            found.append(name + kind)
    return tuple(found)


def _differ(
    reward: Reward, probe: Sequence[Sequence[Any]], prompts: Sequence[Prompt], before: Sequence[Sequence[float]]
) -> bool:
    try:
        after = _scored(reward, probe, prompts)
    except (Exception, SystemExit):  # it asks for what was taken away
        return True
    pairs = [(a, b) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True)]
    return not all(abs(a - b) <= SAME for a, b in pairs)  # so written that NaN differs


def _rotated(prompts: Sequence[Prompt], part: str) -> list[Prompt]:
    others = [*prompts[1:], prompts[0]]
    return [_with(prompt, part, getattr(other, part)) for prompt, other in zip(prompts, others, strict=True)]


def _with(prompt: Prompt, part: str, value: Any) -> Prompt:
    parts = {"text": prompt.text, "target": prompt.target, "image": prompt.image} | {part: value}
    return Prompt(**parts)


def _rung(distortion: adversarial.Distortion, level: float) -> str:
    return f"{distortion.name} {level:g}"


def _pictures(number: int, photos: Sequence[Image], reads: Sequence[str]) -> Iterator[tuple[str, Image]]:
    """All that is scored for one photograph, each with its name; attacks begin with "attack: "."""
    photo, other = photos[number], photos[(number + 1) % len(photos)]
    yield "itself", photo
    for d in adversarial.DISTORTIONS:
        for level in d.levels:
            yield _rung(d, level), d.apply(photo, level)
    for name, picture in (*adversarial.stand_ins(photo), *adversarial.touched_up(photo)):
        yield f"attack: {name}", picture
    if reads:
        yield "attack: another photograph", other
    if "prompt text" in reads:
        yield (
            "attack: its caption across another photograph",
            adversarial.captioned(other, adversarial.PHOTOGRAPHS[number]),
        )


def _named(attacks: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    return {f"attack: {name}": output for name, output in attacks}


def _spelt(word: adversarial.Word, make: Callable[[str], Any]) -> dict[str, Any]:
    """The right word, its misspellings, and the word with others beside it."""
    misspelt = {f"{text!r}": make(text) for text in word.misspelt()}
    extra = {f"extra {text!r}": make(text) for text in (f"{word.right} sale", f"open {word.right} sale now")}
    return {"right": make(word.right), **misspelt, **extra}


def _is_reader(
    scores: Sequence[Sequence[float]],
    misquoted: Sequence[Sequence[float]],
    retold: Sequence[Sequence[float]],
    bounds: tuple[float | None, float | None],
) -> bool:
    """Whether most right words score high, clearly more than other words, and by what the prompt quotes alone.

    The last sets a reader apart from a reward for pictures that fit the whole prompt, which may know letters too.
    """
    low, high = bounds
    votes = 0
    for (right, wrong, blank), other, again in zip(scores, misquoted, retold, strict=True):
        scale = right - min(wrong, blank)
        if not right > other[0] + SAME or abs(right - again[0]) > RETOLD * scale:
            return False
        near = low is None or high is None or right >= low + NEAR_BEST * (high - low)
        votes += near and right - wrong >= 0.5 * scale
    return votes > len(scores) / 2


def _judged(
    name: str,
    reward: Reward,
    tables: Sequence[dict[str, Any]],
    prompts: Sequence[Prompt],
    reads: Sequence[str],
    low: float | None,
) -> Section:
    """The checks and grades of words, drawn or written."""
    scored = _scored(reward, [list(table.values()) for table in tables], prompts)
    scores = [dict(zip(table, row, strict=True)) for table, row in zip(tables, scored, strict=True)]
    letters = [[x for key, x in row.items() if key == "right" or key.startswith("'")] for row in scores]
    lowest = [min(ladder) for ladder in letters]
    right = [row["right"] for row in scores]
    attacks = [
        Attack(name=key.removeprefix("attack: "), reaches=_reached([row[key] for row in scores], right, lowest))
        for key in tables[0]
        if key.startswith("attack: ")
    ]
    floors = list(zip(scores, lowest, strict=True))
    return Section(
        name=name,
        reads=reads,
        falls=[Fall(name="wrong letters", ordered=_ordered(letters))],
        attacks=[attack for attack in attacks if not math.isnan(attack.reaches)],
        problems={
            "ladder-letters": _first_wrong(_letters(row, floor) for row, floor in floors),
            "ladder-blank": _first_wrong(_blank(row, floor if low is None else low) for row, floor in floors),
            "ladder-extra-text": _first_wrong(_extra(row) for row in scores),
        },
    )


def _first_wrong(problems: Iterator[Problem | None]) -> Problem | None:
    return next((problem for problem in problems if problem is not None), None)


def _letters(row: dict[str, float], floor: float) -> Problem | None:
    steps = [(key, x) for key, x in row.items() if key == "right" or key.startswith("'")]
    allowed = TOLERANCE * abs(row["right"] - floor)
    for number, ((before, high), (after, x)) in enumerate(pairwise(steps)):
        if not (x < high - SAME if number == 0 else x <= high + allowed):
            return (f"a lower score for {after} than for {'the right word' if number == 0 else before}",
                    f"{x:.4g} after {high:.4g}", "a comparison that looks at parts of the text only")  # fmt: skip
    return None


def _blank(row: dict[str, float], low: float) -> Problem | None:
    limit = low + LOWEST * (row["right"] - low)
    for key in ("a blank sign", "a scribbled sign", "an empty text", "white space"):
        if key in row and not row[key] <= limit + SAME:
            return (f"a score of at most {limit:.4g} for {key} (the right one scores {row['right']:.4g})",
                    f"{row[key]:.4g}", "a default for what cannot be read; nothing read is nothing right")  # fmt: skip
    return None


def _extra(row: dict[str, float]) -> Problem | None:
    for key, x in row.items():
        if key.startswith("extra ") and not x < row["right"] - SAME:
            return (f"a lower score for {key.removeprefix('extra ')} than for the right word, {row['right']:.4g}",
                    f"{x:.4g}", "a search for the text anywhere in the output; compare with all of it")  # fmt: skip
    return None


def _identical(scores: Sequence[dict[str, float]], decorated: set[str]) -> Problem | None:
    rivals = [f"attack: {name}" for name in ("another photograph", *sorted(decorated))]
    for photo, row in zip(adversarial.PHOTOGRAPHS, scores, strict=True):
        for key in rivals:
            if not row["itself"] > row[key] + SAME:
                return (f"a higher score for the photograph {photo!r} itself than for {key.removeprefix('attack: ')!r}",
                        f"{row['itself']:.4g} and {row[key]:.4g}",
                        "a target or source that is asked for and not compared with, or a sign")  # fmt: skip
    return None


def _monotone(d: adversarial.Distortion, ladder: Sequence[Sequence[float]], lowest: Sequence[float]) -> Problem | None:
    for photo, row, floor in zip(adversarial.PHOTOGRAPHS, ladder, lowest, strict=True):
        allowed = TOLERANCE * abs(row[0] - floor) + SAME
        for i, level in enumerate(d.levels):
            if not row[i + 1] <= min(row[: i + 1]) + allowed:
                return (f"scores of the photograph {photo!r} that fall from rung to rung of {d.name} ({d.summary})",
                        f"{row[i + 1]:.4g} at {level:g} after {min(row[: i + 1]):.4g}",
                        "a part of the score that pays for this distortion, or too coarse a measure")  # fmt: skip
    return None


def _ordered(ladder: Sequence[Sequence[float]]) -> float:
    """The share of pairs of rungs in order; a tie counts half."""
    pairs = [(row[i], row[j]) for row in ladder for j in range(len(row)) for i in range(j)]
    return sum(1.0 if a > b + SAME else 0.5 if abs(a - b) <= SAME else 0.0 for a, b in pairs) / len(pairs)


def _reached(values: Sequence[float], right: Sequence[float], lowest: Sequence[float]) -> float:
    """The mean share of the honest scale; NaN where no picture has one."""
    shares = [
        (x - low) / (high - low)
        for x, high, low in zip(values, right, lowest, strict=True)
        if high > low + SAME and math.isfinite(x)
    ]
    return sum(shares) / len(shares) if shares else math.nan
