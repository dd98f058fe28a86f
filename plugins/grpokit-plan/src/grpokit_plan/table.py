"""The tables of `grpokit plan`: one card in full, or one line for each card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from grpokit_plan.cards import GIB, USABLE, Card
from grpokit_plan.estimate import Estimate
from grpokit_plan.needs import BANDWIDTH, MFU, Remedy
from grpokit_plan.remedies import words

_LEAST = 0.005  # GiB or seconds that are shown as a number


def memory(estimate: Estimate) -> Table:
    """Parts of memory, with a column for each moment of a step; in MiB where all is below a GiB."""
    _, most = estimate.peak
    unit, word = (GIB, "GiB") if most >= GIB else (GIB / 1024, "MiB")
    table = _table(f"memory, {word}", *estimate.moments)
    for name, row in estimate.parts().items():
        cells = [row.get(moment, 0.0) / unit for moment in estimate.moments]
        if any(cells):
            numbers = [number(cell) if cell else "-" for cell in cells]
            table.add_row(Text(name), *numbers)
    sums = [total / unit for total in estimate.sums().values()]
    table.add_row("sum", *map(number, sums))
    return table


def time(estimate: Estimate) -> Table | None:
    """Seconds of a step by phase; None if the card's speeds are not known."""
    seconds = estimate.seconds()
    if not seconds:
        return None
    table = _table("time, s", *seconds, "sum")
    cells = [*seconds.values(), sum(seconds.values())]
    table.add_row("", *map(number, cells))
    return table


def cards(estimates: Sequence[Estimate], advice: Mapping[str, Sequence[Remedy]]) -> Table:
    """A line for each card.

    Args:
        estimates: one for each card.
        advice: card -> what makes it fit, for those that it does not fit on.
    """
    table = _table("card", "room, GiB", "needs", "fits", "seconds a step")
    table.add_column("what makes it fit")
    for estimate in estimates:
        remedies = advice.get(estimate.card.name, ())
        table.add_row(
            estimate.card.name,
            f"{estimate.card.usable / GIB:.1f}",
            number(estimate.peak[1] / GIB),
            "yes" if estimate.fits else "no",
            number(sum(estimate.seconds().values())),
            Text("-" if estimate.fits else " ".join(words(remedies)) or "no known change"),
        )
    return table


def title(card: Card) -> str:
    """The card with its numbers, in a line."""
    if card.bandwidth is None or card.bf16 is None:
        return f"{card.name}: {card.memory / GIB:.1f} GiB; its speeds are not known, so there are no times"
    return (
        f"{card.name}: {card.memory / GIB:.1f} GiB, {card.bandwidth / 1e9:,.0f} GB/s, {card.bf16 / 1e12:,.0f} TFLOP/s "
        f"in bf16 ({card.source})"
    )


def assumptions(estimate: Estimate) -> list[str]:
    """What the numbers rest on, a sentence each."""
    return [
        *estimate.needs.assumptions,
        "Every sample has the most tokens that it may have.",
        f"{USABLE:.0%} of a card's memory can be filled.",
        f"Products reach {MFU:.0%} of the card's FLOP/s, and decoding {BANDWIDTH:.0%} of its memory's speed, unless "
        "said otherwise.",
        "Rewards take the memory of their default models, and their time is not counted.",
    ]


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=None, pad_edge=False)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def number(x: float) -> str:
    """A number of GiB or seconds, with about three digits."""
    if x < _LEAST:
        return "<0.01"
    digits = 2 if x < 10 else 1 if x < 1000 else 0
    return f"{x:,.{digits}f}"
