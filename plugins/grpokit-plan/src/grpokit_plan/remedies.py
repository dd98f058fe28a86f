"""What to change so that a run fits: tries changes in order, asks the plan again after each, and keeps few of them.

Changes that keep the result come first: smaller micro-batches, and fewer rows drawn at a time. Then come
those that the policy's plan names. They are added up, each at its strongest, until all fits. Then each is taken back,
or made as mild as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from grpokit.errors import GrpokitError
from grpokit_plan.needs import Job, Needs, Remedy

Fits: TypeAlias = Callable[[tuple[str, ...]], tuple[Needs, bool]]
"""`key=value` words -> the needs with them, and whether these fit."""

_Ladder: TypeAlias = tuple[Remedy, ...]  # one kind of change, from mild to strong


def advise(job: Job, needs: Needs, fits: Fits) -> list[Remedy]:
    """Find changes with which a run fits; if none do, all at their strongest, which come nearest.

    Args:
        job: the step without changes.
        needs: of the policy without changes.
        fits: plans again. It may raise a GrpokitError for words that do not go with the config; these are passed over.
    """
    waiting = [*_batches(job), *((remedy,) for remedy in needs.remedies)]
    seen = set(waiting)
    chosen: list[_Ladder] = []
    while waiting:
        ladder = waiting.pop(0)
        together = _together([*chosen, ladder], fits)
        if not together:
            continue
        chosen = together
        further, enough = fits(words(each[-1] for each in chosen))
        if enough:
            return _mildest(chosen, fits)
        new = [(remedy,) for remedy in further.remedies if (remedy,) not in seen]  # such as 4 bits, once there is LoRA
        waiting = [*new, *waiting]
        seen.update(new)
    return [ladder[-1] for ladder in chosen]


def _together(ladders: list[_Ladder], fits: Fits) -> list[_Ladder]:
    """Those that go with the last one, which may exclude some, as LoRA does a copy in 16 bits; none if it cannot be."""
    *others, last = ladders
    if _planned([each[-1] for each in ladders], fits):
        return ladders
    fitting = [each for each in others if _planned([each[-1], last[-1]], fits)]
    fitting.append(last)
    return fitting if _planned([each[-1] for each in fitting], fits) else []


def words(remedies: Iterable[Remedy]) -> tuple[str, ...]:
    """What to type after the name of a preset or file."""
    return tuple(word for remedy in remedies for word in remedy.words)


def _batches(job: Job) -> list[_Ladder]:
    rounding = "the same result to rounding, in smaller passes, which are slower"
    size = _halves(job.micro_batch(1)[0])
    most = _halves(job.rollout_rows)
    ladders = [
        tuple(Remedy(words=(f"trainer.micro_batch_size={rows}",), price=rounding) for rows in size),
        tuple(Remedy(words=(f"trainer.rollout_batch_size={rows}",), price="drawing takes longer") for rows in most),
    ]
    return [ladder for ladder in ladders if ladder]


def _halves(size: int) -> list[int]:
    """8 -> 4, 2, 1."""
    return [size >> shift for shift in range(1, size.bit_length())]


def _mildest(chosen: Sequence[_Ladder], fits: Fits) -> list[Remedy]:
    """The last changes are the dearest, so they are taken back first where they can be."""
    steps: list[Remedy | None] = [ladder[-1] for ladder in chosen]
    for i in reversed(range(len(chosen))):
        for milder in (None, *chosen[i][:-1]):
            others = [*steps[:i], milder, *steps[i + 1 :]]
            if _fit([remedy for remedy in others if remedy is not None], fits):
                steps = others
                break
    return [remedy for remedy in steps if remedy is not None]


def _fit(remedies: Sequence[Remedy], fits: Fits) -> bool:
    planned = _planned(remedies, fits)
    return planned is not None and planned[1]


def _planned(remedies: Sequence[Remedy], fits: Fits) -> tuple[Needs, bool] | None:
    """The needs with these changes, and whether they fit; None if the config refuses them."""
    try:
        return fits(words(remedies))
    except GrpokitError:
        return None
