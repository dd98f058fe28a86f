"""What a trial says in words; the terminal and the page have the same sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpokit.errors import on_one_line
from grpokit_diagnosis.trial.measure import Tried
from grpokit_diagnosis.trial.parts import Divided, Words

_OPTIONS = {"prompt": "--prompt TEXT", "target": "--target FILE|TEXT", "source": "--source FILE"}


def figure(value: float, *, sign: str = "") -> str:
    """A score as text, with a true minus; "no score" for NaN.

    >>> figure(0.5), figure(-0.25, sign="+"), figure(0.25, sign="+"), figure(0.0, sign="+"), figure(2e-5)
    ('0.5000', '−0.2500', '+0.2500', '0', '2.0e−05')
    """
    if math.isnan(value):
        return "no score"
    if value == 0:
        return "0"
    small = abs(value) < 1e-3 or abs(value) >= 1e6
    return f"{value:{sign}{'.1e' if small else '.4f'}}".replace("-", "−")


def name_of(divided: Divided, index: int) -> str:
    """What a sentence calls a part: where a square lies, or the words.

    A picture's thirds have names, as in "top left"; its middle is "middle".
    """
    part = divided.parts[index]
    if isinstance(part, Words):
        return f"“{on_one_line(str(divided.whole)[part.start : part.end], most=40)}”"
    assert not isinstance(divided.whole, str)
    width, height = divided.whole.size
    across = ("left", "", "right")[min(2, 3 * (part.left + part.right) // (2 * width))]
    down = ("top", "", "bottom")[min(2, 3 * (part.top + part.bottom) // (2 * height))]
    return f"{down} {across}".strip() or "middle"


def in_order(tried: Tried) -> list[int]:
    """The parts whose changes count, the largest first."""
    counted = tried.counted
    places = [i for i, change in enumerate(counted) if change and not math.isnan(change)]
    return sorted(places, key=lambda i: -abs(counted[i]))


def strongest(tried: Tried) -> list[int]:
    """The part that raises the score most, and the one that lowers it most: the larger change first."""
    places = in_order(tried)
    up = [i for i in places if tried.changes[i] > 0]
    down = [i for i in places if tried.changes[i] < 0]
    return sorted(up[:1] + down[:1], key=places.index)


def why_no_score(reason: str, missing: Sequence[str]) -> str:
    """Why a sample has no score, and the option that may help.

    Args:
        reason: what the reward's plugin says of the prompt; perhaps empty.
        missing: what the prompt does not have, of "prompt", "target" and "source".

    >>> why_no_score("there is no target", ["prompt", "target"])
    'there is no target. Give --target FILE|TEXT.'
    >>> why_no_score("", ["prompt", "source"])
    'the reward cannot score it. It may need --prompt TEXT or --source FILE.'
    """
    if reason:
        named = [name for name in missing if name in reason] or [name for name in missing if name == "prompt"]
        return f"{reason}. Give {_OPTIONS[named[0]]}." if named else f"{reason}."
    options = " or ".join(_OPTIONS[name] for name in missing)
    return f"the reward cannot score it.{options and f' It may need {options}.'}"


def about_needs(tried: Tried, *, compares: bool) -> str:
    """What the reward needed of the prompt."""
    needed = [name for name, score in tried.needs.items() if score is None]
    read = {name: score for name, score in tried.needs.items() if score is not None}
    moves = [f"the {name} (without it: {figure(score)})" for name, score in read.items() if _differs(score, tried)]
    idle = [f"the {name}" for name, score in read.items() if not _differs(score, tried)]
    sentences = []
    if needed:
        sentences.append(f"It needs the {' and the '.join(needed)}: there is no score without.")
    if moves:
        sentences.append(f"It reads {' and '.join(moves)}.")
    if idle:
        sentences.append(f"It makes no use of {' or '.join(idle)}.")
    if compares:
        sentences.append("It compares the samples of a group: here all that have the same prompt.")
    elif not tried.needs:
        sentences.append("It needs nothing but the sample.")
    return " ".join(sentences)


def _differs(score: float, tried: Tried) -> bool:
    return abs(score - tried.score) > tried.chance


def about_parts(tried: Tried) -> list[str]:
    """Where the score of a sample comes from, and how far that can be trusted."""
    divided = tried.divided
    if divided is None:
        return []
    is_text = isinstance(divided.whole, str)
    if not divided.parts:
        return ["The text has no words to leave out."]
    sentences = []
    unscored = sum(math.isnan(change) for change in tried.changes)
    if unscored:
        kind = "words" if is_text else "squares"
        sentences.append(f"Without {unscored} of {len(tried.changes)} {kind} there was no score at all.")
    if unscored < len(tried.changes):
        sentences.append(_worth(tried, divided, is_text) or _nothing(tried, is_text))
    if not math.isnan(tried.empty) and (tried.largest or tried.empty != tried.score):
        bare = "The empty text" if is_text else "With the whole picture covered it"
        sentences.append(f"{bare} scores {figure(tried.empty)}.")
    sentences += [_noise(tried)] if not tried.repeatable else []
    return [*sentences, *tried.notes]


def _worth(tried: Tried, divided: Divided, is_text: bool) -> str:
    """The part that raises the score most, and the one that lowers it most."""
    sentences = []
    for i in strongest(tried):
        name = name_of(divided, i)
        part = name if is_text else f"the square {'in' if name == 'middle' else 'at'} the {name}"
        worth = figure(tried.changes[i], sign="+")
        if tried.changes[i] > 0:
            sentences.append(f"Worth most is {part}: {worth}.")
        else:
            sentences.append(f"{part[:1].upper()}{part[1:]} lowers the score most: {worth}.")
    return " ".join(sentences)


def _nothing(tried: Tried, is_text: bool) -> str:
    """That no part changes the score."""
    part, act = ("word", "leaving out") if is_text else ("square", "covering")
    changes = [change for change in tried.changes if not math.isnan(change)]
    if any(changes):
        return f"No single {part} changes the score by more than the reward's own noise."
    if len(changes) < len(tried.changes):
        return f"The other {part}s are worth nothing."
    if math.isnan(tried.empty):
        return f"Nothing changes the score: {act} any {part} leaves it as it is."
    if abs(tried.empty - tried.score) <= tried.chance:
        return f"Nothing changes the score: {act} any {part} or all of them leaves it as it is."
    hint = "Parts that say the same stand in for each other" + ("." if is_text else ": try fewer, larger --squares.")
    return f"No single {part} changes the score, only all of them together. {hint}"


def _noise(tried: Tried) -> str:
    low, high = min(tried.scores), max(tried.scores)
    return (
        f"The reward is not repeatable: {len(tried.scores)} scores of the same sample range from {figure(low)} to "
        f"{figure(high)}. Changes below {tried.chance:.2g} may be chance and are not shown."
    )
