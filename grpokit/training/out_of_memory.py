"""Retries work in smaller batches when memory runs out.

A step is a pure function of the seed and the weights, and a loss is a sum over rows. So work that did not fit can be
repeated in halves, with the same result to rounding. accelerate decides which errors mean out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from grpokit.errors import RunError
from grpokit.knobs import TrainerSettings
from grpokit.training.micro_batches import Cut, Limit
from grpokit.training.parts import State

T = TypeVar("T")


def _all(size: int) -> int:
    return size


def fitting(attempt: Callable[[int], T], size: int, *, what: str, used: Callable[[int], int] = _all) -> tuple[T, int]:
    """Call `attempt(size)`, halving the size as long as memory runs out.

    Args:
        attempt: starts from scratch in every call.
        size: the rows at a time in the first attempt, or whatever it bounds.
        what: names the work in the error, such as "drawing".
        used: a size -> what the work takes at a time with it, which may be far less; below 2 for a single row.

    Returns:
        The result of `attempt`, and the size that fitted.

    Raises:
        RunError: a single row does not fit.
    """
    while True:
        try:
            return attempt(size), size
        except RuntimeError as error:
            if not should_reduce_batch_size(error):
                raise
            reason = shortened(error)
        # After the handler: inside it the exception keeps the frames, and so the tensors that did not fit.
        clear_device_cache(garbage_collection=True)
        size = used(size) // 2
        if not size:
            raise RunError(
                f"Out of memory while {what}, with a single row at a time: {reason} Remedies: mixed_precision: bf16, "
                "LoRA, gradient checkpointing in the policy, smaller outputs, or a GPU with more memory.",
                page="memory#when-memory-runs-out",
            )


def shrinking(
    attempt: Callable[[int], T],
    owner: Any,
    name: str,
    *,
    most: int | None,
    what: str,
    warnings: list[str],
    unit: str = "rows",
    used: Callable[[int], int] = _all,
) -> T:
    """Like `fitting`, with a size that is an attribute of an object; a reduced size is stored there and reported.

    Args:
        attempt: starts from scratch in every call.
        owner: has the size; None there means `most`.
        name: the attribute, a knob of the trainer.
        most: the total number of rows, if there is one.
        what: names the work, such as "drawing samples".
        warnings: gets a message if the size was reduced.
        unit: what the size counts.
        used: as in `fitting`.
    """
    size: int = getattr(owner, name) or most or 1
    size = size if most is None else min(size, most)
    result, room = fitting(attempt, size, what=what, used=used)
    if room < size:
        setattr(owner, name, room)
        warnings.append(
            f"memory ran out while {what} with {used(size)} {unit} at a time: trainer.{name} is now {room}. The work "
            "was repeated, with the same result to rounding"
        )
    return result


def shrinking_micro_batches(
    attempt: Callable[[Limit], T],
    settings: TrainerSettings,
    cut: Callable[[Limit], Sequence[Cut]],
    *,
    warnings: list[str],
) -> T:
    """Like `shrinking`, for samples that are scored in micro-batches.

    The bound on decisions is reduced if there is one, and else the bound on rows. With both, it is the bound on
    decisions that makes the passes of long rows as large as they are.

    Args:
        attempt: starts from scratch in every call.
        settings: of the trainer; its bounds are reduced there.
        cut: the micro-batches that a limit gives.
        warnings: gets a message if a bound was reduced.
    """
    shrink = partial(shrinking, owner=settings, most=None, what="scoring samples", warnings=warnings)
    if settings.micro_batch_tokens is None:

        def largest(rows: int) -> int:
            return max(len(micro_batch.rows) for micro_batch in cut(Limit(rows=rows)))

        return shrink(lambda rows: attempt(Limit(rows=rows)), name="micro_batch_size", used=largest)

    def limit(tokens: int) -> Limit:
        return Limit(rows=settings.micro_batch_size, tokens=tokens)

    def largest_of_several_rows(tokens: int) -> int:
        return max(
            (micro_batch.largest_pass for micro_batch in cut(limit(tokens)) if len(micro_batch.rows) > 1), default=0
        )

    return shrink(
        lambda tokens: attempt(limit(tokens)),
        name="micro_batch_tokens",
        unit="decisions",
        used=largest_of_several_rows,
    )


class ForcedSizes:
    """The sizes of a trainer that memory has reduced; the last bits depend on them, so they belong into checkpoints.

    Args:
        owner: has the sizes.
        names: the attributes.
    """

    def __init__(self, owner: Any, names: Sequence[str]) -> None:
        self.owner, self.wanted = owner, {name: getattr(owner, name) for name in names}

    def state(self) -> State:
        """Name -> the size that was wanted, and the one that fits, where these differ."""
        return {
            name: [size, getattr(self.owner, name)]
            for name, size in self.wanted.items()
            if getattr(self.owner, name) != size
        }

    def restore(self, state: State) -> None:
        """Take over a result of `state`, except for a size that is now wanted to be another."""
        for name, size in self.wanted.items():
            wanted, fits = state.get(name, (size, size))
            setattr(self.owner, name, fits if wanted == size else size)


@contextmanager
def explained(what: str, *, remedies: str) -> Iterator[None]:
    """For work that cannot be halved: running out of memory inside is an error of the run.

    Args:
        what: names the work, such as "making an update".
        remedies: what makes the work smaller, such as "LoRA".

    Raises:
        RunError: instead of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not should_reduce_batch_size(error):
            raise
        raise RunError(
            f"Out of memory while {what}: {shortened(error)} Remedies: {remedies}, or a GPU with more memory.",
            page="memory#when-memory-runs-out",
        ) from error


def shortened(error: BaseException) -> str:
    """The beginning of an out-of-memory error: how much memory was requested."""
    text = " ".join(str(error).split())
    end = text.find("GiB. GPU")
    return text[: end + 4] if end > 0 else text[:200].rstrip(".") + "."
