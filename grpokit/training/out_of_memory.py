"""Retries work in smaller batches when memory runs out.

A step is a pure function of the seed and the weights, and a loss is a sum over rows. So work that did not fit can be
repeated in halves, with the same result to rounding, which may change a draw in low precision.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias, TypeVar

from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from grpokit.errors import RunError
from grpokit.settings import TrainerSettings
from grpokit.training.micro_batches import Cut, Limit
from grpokit.training.state import State

_T = TypeVar("_T")
Warn: TypeAlias = Callable[[str], None]


# As cudaMalloc, cuBLAS and cuDNN say it, which accelerate does not know.
_FURTHER = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def ran_out(error: RuntimeError) -> bool:
    """Whether an error means that a device's memory ran out."""
    return should_reduce_batch_size(error) or any(words in str(error) for words in _FURTHER)


def fitting(attempt: Callable[[int], _T], size: int, *, what: str, used: Callable[[int], int] = int) -> tuple[_T, int]:
    """Call `attempt(size)`, halving the size as long as memory runs out; returns its result and the size that fitted.

    `used` tells what the work takes at a time with a size, which may be far less, and is below 2 for a single row.
    """
    while True:
        try:
            return attempt(size), size
        except RuntimeError as error:
            if not ran_out(error):
                raise
            reason = shortened(error)
        # After the handler: inside it the exception keeps the frames, and so the tensors that did not fit.
        clear_device_cache(garbage_collection=True)
        size = used(size) // 2
        if not size:
            remedies = "mixed_precision: bf16, LoRA, gradient checkpointing in the policy, smaller outputs"
            raise _out_of_memory(f"{what}, with a single row at a time", reason, remedies)


class Halving:
    """Draws samples in calls of at most `size` rows, half as many from then on where memory runs out."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, draw: Callable[[int], _T]) -> _T:
        """What `draw` gives for the size that fits."""
        result, self.size = fitting(draw, self.size, what="drawing samples")
        return result


class Sizes:
    """How much work is done at a time: what the settings say until memory runs out, then what fits.

    The last bits of a run depend on these, so checkpoints keep them.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self.micro_batch_size = settings.micro_batch_size
        self.micro_batch_tokens = settings.micro_batch_tokens
        self.rollout_batch_size = settings.rollout_batch_size
        self._wanted = vars(self).copy()

    @property
    def limit(self) -> Limit:
        """The bounds of a micro-batch."""
        return Limit(rows=self.micro_batch_size, tokens=self.micro_batch_tokens)

    def draw(self, attempt: Callable[[int], _T], rows: int, warn: Warn) -> _T:
        """Draw `rows` rows by `attempt(most rows of a call)`."""
        size = min(self.rollout_batch_size or rows, rows)
        result, fits = fitting(attempt, size, what="drawing samples")
        if fits < size:
            same = "with the same samples in float32; in a lower precision some may be others"
            warn(_reduced("drawing samples", f"{size} rows", "rollout_batch_size", fits, same))
            self.rollout_batch_size = fits
        return result

    def score(self, attempt: Callable[[Limit], _T], cut: Callable[[Limit], Sequence[Cut]], warn: Warn) -> _T:
        """Score samples by `attempt(limit)` in the micro-batches that `cut(limit)` gives.

        The bound on decisions is reduced if there is one, and else the bound on rows. With both, it is the bound on
        decisions that makes the passes of long rows as large as they are.
        """
        by_rows = self.micro_batch_tokens is None
        name, unit = ("micro_batch_size", "rows") if by_rows else ("micro_batch_tokens", "decisions")
        size: int = getattr(self, name)

        def limit(size: int) -> Limit:
            return replace(self.limit, rows=size) if by_rows else replace(self.limit, tokens=size)

        def largest(size: int) -> int:
            micro_batches = cut(limit(size))
            if by_rows:
                return max((len(each.rows) for each in micro_batches), default=0)
            passes = [each.passes for each in micro_batches if len(each.rows) > 1]
            return max(itertools.chain.from_iterable(passes), default=0)

        result, fits = fitting(lambda size: attempt(limit(size)), size, what="scoring samples", used=largest)
        if fits < size:
            same = "with the same result to rounding"
            warn(_reduced("scoring samples", f"{largest(size)} {unit}", name, fits, same))
            setattr(self, name, fits)
        return result

    def state_dict(self) -> State:
        """Name -> the size that was wanted, and the one that fits, where these differ."""
        sizes = {name: [wanted, getattr(self, name)] for name, wanted in self._wanted.items()}
        return {name: both for name, both in sizes.items() if both[0] != both[1]}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`, except for a size whose setting has changed."""
        for name, size in self._wanted.items():
            wanted, fits = state.get(name, (size, size))
            setattr(self, name, fits if wanted == size else size)


def _reduced(what: str, load: str, name: str, size: int, same: str) -> str:
    now = f"trainer.{name} is now {size}"
    return f"memory ran out while {what} with {load} at a time: {now}. The work was repeated, {same}"


@contextmanager
def explain_memory(what: str, *, remedies: str) -> Iterator[None]:
    """For work that cannot be halved, such as "making an update": running out of memory is an error of the run."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        raise _out_of_memory(what, shortened(error), remedies) from error


def _out_of_memory(what: str, reason: str, remedies: str) -> RunError:
    message = f"Out of memory while {what}: {reason} Remedies: {remedies}, or a GPU with more memory."
    return RunError(message, page="memory#when-memory-runs-out")


def shortened(error: BaseException) -> str:
    """The beginning of an out-of-memory error: how much memory was requested."""
    text = " ".join(str(error).split())
    end = text.find("GiB. GPU")
    return text[: end + 4] if end > 0 else text[:200].rstrip(".") + "."
