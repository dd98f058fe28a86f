"""Goes on in smaller pieces where memory runs out.

A step is a pure function of the seed and the weights, and a loss is a sum over rows: so what did not fit can be done
again in halves, with the same result to rounding. What counts as running out of memory is accelerate's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from grpokit.errors import RunError

T = TypeVar("T")


def fitting(attempt: Callable[[int], T], size: int, *, what: str) -> tuple[T, int]:
    """Call `attempt(size)`, halving the size as long as memory runs out.

    Args:
        attempt: starts from nothing whenever it is called.
        size: rows at a time, to begin with.
        what: names the work in the error, such as "drawing".

    Returns:
        What `attempt` returned, and the size that fitted.

    Raises:
        RunError: a single row does not fit.
    """
    while True:
        try:
            return attempt(size), size
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            said = shortened(error)
        # Out of the handler: the exception held the frames, and with them the tensors that did not fit.
        clear_device_cache(garbage_collection=True)
        if size == 1:
            raise RunError(
                f"Out of memory while {what}, with a single row at a time: {said} Remedies: mixed_precision: bf16, "
                "LoRA, gradient checkpointing in the policy, smaller outputs, or a GPU with more memory."
            )
        size //= 2


def shrinking(
    attempt: Callable[[int], T], owner: Any, name: str, *, most: int | None, what: str, warnings: list[str]
) -> T:
    """As `fitting`, with a size that an object keeps: what memory forced stays, and is reported.

    Args:
        attempt: starts from nothing whenever it is called.
        owner: has the size; None there stands for `most`.
        name: of the size, a knob of the trainer.
        most: the most rows that there are, where that is known.
        what: names the work, such as "drawing samples".
        warnings: takes a sentence where the size had to shrink.
    """
    size: int = getattr(owner, name) or most or 1
    size = size if most is None else min(size, most)
    result, fitted = fitting(attempt, size, what=what)
    if fitted < size:
        setattr(owner, name, fitted)
        warnings.append(
            f"memory did not hold {size} rows at a time while {what}: trainer.{name} is now {fitted}. What was under "
            "way was done again, with the same result to rounding"
        )
    return result


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Work that cannot be halved: running out of memory in here is an error of the run.

    Args:
        what: names the work, such as "making an update".

    Raises:
        RunError: in place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not should_reduce_batch_size(error):
            raise
        raise RunError(
            f"Out of memory while {what}: {shortened(error)} Remedies: a smaller trainer.micro_batch_size, LoRA, or a "
            "GPU with more memory."
        ) from error


def shortened(error: BaseException) -> str:
    """The part of an out-of-memory error that a person reads: how much was asked for."""
    text = " ".join(str(error).split())
    end = text.find("GiB. GPU")
    return text[: end + 4] if end > 0 else text[:200].rstrip(".") + "."
