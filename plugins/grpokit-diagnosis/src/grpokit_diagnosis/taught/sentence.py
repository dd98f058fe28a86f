"""What a reward taught, in words."""

from __future__ import annotations

from collections.abc import Sequence

from grpokit.evaluation.paired import Change
from grpokit_diagnosis.taught.measure import LEAST, Shift


def sentence(shifts: Sequence[Shift], explains: Shift | None, fallen: Sequence[Change], *, rose: bool) -> str:
    """The answer in a line or two.

    Args:
        shifts: the changes that are named, the largest first.
        explains: the statistic that explains the reward, if one does.
        fallen: the rewards that nobody trained on and that fell while the trained ones rose.
        rose: whether the trained reward got better; if not, nobody knows that it made the changes.
    """
    parts = [_taught(shifts, rose=rose)]
    if explains is not None:
        lower, higher = explains.words
        word = higher if (explains.correlation or 0.0) > 0 else lower
        share = f"{100 * explains.explained:.0f} %"
        parts.append(f"Within a group, '{explains.name}' explains {share} of the reward (favours {word}).")
    if fallen:
        parts.append(_fell(fallen))
    return " ".join(parts)


def _fell(fallen: Sequence[Change]) -> str:
    """That some rewards fell, and by how much."""
    first, *others = [(change.name, _figures(-(change.change or 0.0), change.width or 0.0)) for change in fallen]
    parts = [f"{first[0]} fell by {first[1]}"]
    parts += [f"{name} by {figures}" for name, figures in others]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    return f"But {listed}."


def _taught(shifts: Sequence[Shift], *, rose: bool) -> str:
    if not shifts:
        return f"No statistic changed beyond chance by {LEAST:g} standard deviations or more."
    changes = []
    for shift in shifts:
        lower, higher = shift.words
        change = shift.change or 0.0
        figures = _figures(change, shift.width or 0.0, sign="+")
        changes.append(f"{higher if change > 0 else lower} ({figures})")
    return f"{'It taught' if rose else 'The outputs changed'}: {', '.join(changes)}."


def _figures(value: float, width: float, *, sign: str = "") -> str:
    """A change with its interval, with as many digits as the interval needs.

    >>> _figures(1.93, 0.21, sign="+"), _figures(-0.5, 0.04), _figures(0.123, 0.0456)
    ('+1.9 ± 0.2', '-0.50 ± 0.04', '0.12 ± 0.05')
    """
    digits = 1 if width >= 0.095 else 2 if width >= 0.0095 else 3
    return f"{value:{sign}.{digits}f} ± {width:.{digits}f}"
