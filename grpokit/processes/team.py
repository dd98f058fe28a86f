"""The processes that train together, each with a copy of the policy.

Each draws and scores its own whole groups; what follows from all rows, each decides alike from gathered values. A
process that fails inside `failing_together` meets the others once more, with its error, which they read where they
meet next; so anything that can fail between a meeting and a later collective call is done before the meeting. Gradients
are summed once for each optimizer step, outside of the policy: there is no wrapper, and no forward pass waits.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from grpokit.errors import GrpokitError, RunError, UsageError, error_line, reword

_T = TypeVar("_T")

_SOURCE = re.compile(r"\[[^\]]*\.cc:\d+\] ")  # where gloo's own code noticed it
_BUCKET = 32 * 2**20  # bytes of gradients that are summed at a time
_PATIENCE = 10.0  # seconds that a process with an error waits for others that may wait for it inside of a pass


class Team:
    """The processes that train one policy, as torchrun has started them; or this one alone, without `messages`."""

    def __init__(self, messages: distributed.ProcessGroup | None = None) -> None:
        self.rank = 0
        self.size = 1
        if messages is not None:
            self.rank = distributed.get_rank()
            self.size = distributed.get_world_size()
        self._messages = messages

    def share(self, count: int) -> range:
        """This process's part of `count` things, which may be empty. Parts follow each other in the ranks' order."""
        start = count * self.rank // self.size
        stop = count * (self.rank + 1) // self.size
        return range(start, stop)

    def gather(self, value: _T) -> list[_T]:
        """The values of all processes, in the ranks' order; all must call it, with tensors on the CPU.

        It raises the error of another process that has failed or ended.
        """
        if self.size == 1:
            return [value]
        answers: list[Any] = [None] * self.size
        with meeting():
            distributed.all_gather_object(answers, (value, None), group=self._messages)
        for rank, (_, failure) in enumerate(answers):
            if failure is not None:
                raise reword(failure, f"In process {rank} of {self.size}: {failure}")
        return [answer for answer, _ in answers]

    def gather_in_first(self, value: _T) -> list[_T]:
        """As `gather`, for values that are large: process 0 gets those of all, the others get none."""
        if self.size == 1:
            return [value]
        self.gather(None)
        answers: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with meeting():
            distributed.gather_object(value, answers, group=self._messages)
        return answers or []

    def first(self, work: Callable[[], _T]) -> _T:
        """Do work in process 0 alone; returns its result to all."""
        return self.gather(work() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace the gradients by their sums over the processes; one that nobody has stays None.

        Those of sharded parameters are sums already, and stay as they are.
        """
        if self.size == 1:
            return
        parameters = [p for p in parameters if not is_sharded(p)]
        has_gradient = self.gather([p.grad is not None for p in parameters])
        anywhere = map(any, zip(*has_gradient, strict=True))
        learning = list(itertools.compress(parameters, anywhere))
        with meeting():
            for bucket in _buckets(learning):
                gradients = []
                for p in bucket:
                    gradient = torch.zeros_like(p) if p.grad is None else p.grad
                    gradients.append(gradient.reshape(-1))
                flat = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
                distributed.all_reduce(flat)
                totals = flat.split([p.numel() for p in bucket])
                for p, total in zip(bucket, totals, strict=True):
                    p.grad = total.view_as(p)

    @contextmanager
    def failing_together(self, *, passes: bool = False) -> Iterator[None]:
        """Around a stretch of work: an error in one process is an error in all, and all leave the stretch together.

        `passes`: processes wait for each other inside of the policy, as with sharded weights. Those that wait there for
        one that has failed hear nothing until it has ended.
        """
        try:
            yield
        except Exception as error:
            if self.size == 1 or hasattr(error, "agreed"):
                raise
            if passes and (isinstance(error, distributed.DistError) or _SOURCE.search(str(error))):
                raise _ended(error) from error
            error.agreed = self._tell(error, _PATIENCE if passes else None)  # type: ignore[attr-defined]
            raise
        self.gather(None)

    def _tell(self, error: Exception, patience: float | None) -> bool:
        """Tell the others of an error where they meet next; False if they do not hear it in so many seconds."""
        words = error if isinstance(error, GrpokitError) else RunError(error_line(error))
        message = reword(words, str(words))  # of a class that all processes have
        message.agreed = True  # type: ignore[attr-defined]
        answers: list[Any] = [None] * self.size

        def meet() -> None:
            with suppress(RuntimeError):
                distributed.all_gather_object(answers, (None, message), group=self._messages)

        thread = Thread(target=meet, daemon=True)
        thread.start()
        thread.join(patience)
        return None not in answers


def all_know(error: BaseException) -> bool:
    """Whether all processes have this error already, and go on together.

    Its `agreed` is True then, and False where they cannot meet any more; an error without it is told to the others.
    """
    return bool(getattr(error, "agreed", False))


@contextmanager
def meeting() -> Iterator[None]:
    """Around a meeting of all processes: another one that does not come is an error with words."""
    try:
        yield
    except torch.OutOfMemoryError as error:  # the others wait in vain, and this one says why
        error.agreed = False  # type: ignore[attr-defined]
        raise
    except RuntimeError as error:
        raise _ended(error) from error


def _ended(error: Exception) -> RunError:
    """The message of a process that waits in vain."""
    ended = RunError(
        "Another process has ended, or has not answered in time (run.process_timeout). Its own message says why. "
        f"Here: {_SOURCE.sub('', error_line(error))}."
    )
    ended.agreed = False  # type: ignore[attr-defined]
    return ended


def wait_for_first() -> None:
    """Wait until process 0 has ended, since the launcher may end it when another one ends, and it may still save."""
    if distributed.is_initialized():
        with suppress(RuntimeError):
            distributed.all_reduce(torch.zeros(1))  # it never comes


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has a part of the tensor only."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return part


def fingerprints(tensors: Iterable[Tensor]) -> list[list[float]]:
    """The sum and the norm, in fp64, of what this process has of tensors; any real update changes one of them."""
    numbers = []
    for tensor in tensors:
        part = local(tensor.detach())
        numbers.append(torch.sum(part, dtype=torch.float64))
        numbers.append(torch.linalg.vector_norm(part, dtype=torch.float64))
    return torch.stack(numbers).view(-1, 2).tolist()


def refuse_other_weights(team: Team, weights: Mapping[str, torch.nn.Parameter]) -> None:
    """Make sure that all processes start from the same weights, given as name -> trainable parameter."""
    if team.size == 1:
        return
    own = dict(zip(weights, fingerprints(weights.values()), strict=True))
    first, *others = team.gather(own)
    for rank, theirs in enumerate(others, start=1):
        names = first | theirs
        different = [name for name in names if first.get(name) != theirs.get(name)]
        if different:
            raise UsageError(
                f"Process {rank} of {team.size} has other weights than process 0: {different[0]}, and "
                f"{len(different) - 1} more. A policy must start from the same weights in every build; draw them with "
                "a generator that has a fixed seed."
            )


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters of one kind next to each other, in lists of at most 32 MiB, or of a single larger one."""
    buckets: list[list[torch.nn.Parameter]] = []
    room = 0
    kind = None
    for p in parameters:
        if (p.device, p.dtype) != kind or p.nbytes > room:
            buckets.append([])
            room = _BUCKET
            kind = (p.device, p.dtype)
        buckets[-1].append(p)
        room -= p.nbytes
    return buckets
