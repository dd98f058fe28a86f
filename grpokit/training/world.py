"""The processes that train together, each with a copy of the policy.

Each process draws and scores whole groups of its own. Everything that is decided from all rows is decided by every
process alike, from numbers that all have. Two rules keep them together: work that may fail in one process alone is done
inside `each`, `together` or `first`, where a failure in one is an error in all; and gradients are summed once for each
optimizer step, outside of the policy. There is no wrapper around the modules, and a forward pass waits for nobody.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from grpokit.errors import GrpokitError, RunError, UsageError, reworded, typed_line
from grpokit.registry.own_gpu import take_own_gpu

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

TIMEOUT = 1800.0
"""Seconds that a process waits for the others before it gives up."""

_timeout = TIMEOUT
_SOURCE = re.compile(r"\[[^\]]*\.cc:\d+\] ")  # where gloo's own code noticed it
_BUCKET = 32 * 2**20  # bytes of gradients that are summed at a time


class World:
    """One process that trains alone, and what all kinds of worlds can do.

    Attributes:
        rank: this process, from 0.
        size: how many there are.
    """

    rank = 0
    size = 1

    def share(self, count: int) -> range:
        """This process's part of `count` things, which may be empty. Parts follow each other in the ranks' order."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def each(self, work: Callable[[], T]) -> list[T]:
        """Do work in every process; returns the results of all, in the ranks' order.

        Args:
            work: what it returns goes to all processes, so tensors must be on the CPU.

        Raises:
            GrpokitError: the work failed in another process, whose message it has.
        """
        return [work()]

    def together(self, work: Callable[[], T]) -> T:
        """Do work in every process; returns the own result, once the work has succeeded in all.

        Raises:
            GrpokitError: as `each`.
        """
        results: list[T] = []
        self.each(lambda: results.append(work()))
        return results[0]

    def first(self, work: Callable[[], T]) -> T:
        """Do work in process 0 alone; returns its result to all.

        Raises:
            GrpokitError: as `each`.
        """
        return self.each(lambda: work() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def to_first(self, work: Callable[[], T]) -> list[T]:
        """As `each`, for results that are large: process 0 gets those of all, the others get none."""
        return [work()]

    @contextmanager
    def in_first(self, context: AbstractContextManager[Any]) -> Iterator[None]:
        """A context that process 0 alone enters.

        Raises:
            GrpokitError: it could not be entered.
        """
        with ExitStack() as stack:
            self.first(lambda: stack.enter_context(context) and None)
            yield

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace the gradients by their sums over the processes; one that nobody has stays None.

        Those of sharded parameters are sums already, and stay as they are.
        """


class Processes(World):
    """Several processes, as torchrun starts them, over torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def each(self, work: Callable[[], T]) -> list[T]:
        """As in `World`."""
        result: T | None = None
        own: Exception | None = None
        try:
            result = work()
        except Exception as error:
            if all_know(error) or is_lost(error):
                raise
            own = error
        answers: list[Any] = [None] * self.size
        with _meeting(own):
            distributed.all_gather_object(answers, (result, own and _Failure(own)))
        if own is not None:
            raise _agreed(own)
        for rank, (_, failure) in enumerate(answers):
            if failure is not None:
                raise failure.elsewhere(rank, self.size)
        return [answer for answer, _ in answers]

    def to_first(self, work: Callable[[], T]) -> list[T]:
        """As in `World`."""
        result = self.together(work)
        results: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with _meeting():
            distributed.gather_object(result, results)
        return results or []

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """As in `World`."""
        parameters = [p for p in parameters if not is_sharded(p)]
        with _meeting():
            has = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
            distributed.all_reduce(has, distributed.ReduceOp.MAX)
            for bucket in _buckets([p for p, some in zip(parameters, has.tolist(), strict=True) if some]):
                gradients = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket]
                flat = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
                distributed.all_reduce(flat)
                for p, total in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                    p.grad = total.view_as(p)


def here(timeout: float = TIMEOUT) -> World:
    """The world that this process was started in; with torchrun, it waits for the other processes.

    Args:
        timeout: seconds that a process waits for the others, here and later; only the first call sets it.

    Raises:
        UsageError: the environment does not say where they are.
        RunError: they do not come.
    """
    global _timeout
    if not distributed.is_initialized():
        _timeout = timeout
        if not _has_others():
            return World()
        cuda = torch.cuda.is_available()
        if cuda:
            take_own_gpu()
        patience = datetime.timedelta(seconds=timeout)
        with _meeting():
            store, rank, size = next(rendezvous("env://", timeout=patience))
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                store=_unused_part(store, rank, size, timeout),
                rank=rank,
                world_size=size,
                timeout=patience,
            )
        if cuda:
            own = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
            _refuse_shared_gpus(Processes().each(lambda: f"{own} of {socket.gethostname()}"))
    return Processes() if distributed.get_world_size() > 1 else World()


def _has_others() -> bool:
    """Whether the environment speaks of other processes.

    Raises:
        UsageError: it does not say how to meet them.
    """
    size = os.environ.get("WORLD_SIZE") or "1"
    if size.isdecimal() and int(size) <= 1:
        return False
    rank, port = os.environ.get("RANK", ""), os.environ.get("MASTER_PORT", "")
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    numbers = {"WORLD_SIZE": size, "RANK": rank, "MASTER_PORT": port}
    lack = ""
    if missing:
        lack = f"these are not set: {', '.join(missing)}"
    elif wrong := [name for name, text in numbers.items() if not text.isdecimal()]:
        lack = f"{wrong[0]}={numbers[wrong[0]]} is no number"
    elif int(rank) >= int(size):
        lack = f"RANK={rank} is none of them"
    if lack:
        raise UsageError(
            f"WORLD_SIZE={size} speaks of other processes, but {lack}. Start the run with torchrun, or unset "
            "WORLD_SIZE to train in one process."
        )
    return True


def _refuse_shared_gpus(gpus: Sequence[str]) -> None:
    """Each process needs a GPU of its own, since two cannot share one under NCCL.

    Args:
        gpus: of all processes.

    Raises:
        UsageError: two have the same.
    """
    for rank, gpu in enumerate(gpus):
        if gpu in gpus[:rank]:
            raise UsageError(
                f"The processes {gpus.index(gpu)} and {rank} of {len(gpus)} have the same GPU, {gpu}, and each needs "
                "one of its own. Give torchrun --nproc-per-node no more than the machine has, or set "
                "CUDA_VISIBLE_DEVICES= (empty) to train on the CPU."
            )


def new_group() -> distributed.ProcessGroup:
    """All processes once more, for calls that must not mix with others; all of them make it."""
    group: distributed.ProcessGroup = distributed.new_group(timeout=datetime.timedelta(seconds=_timeout))
    return group


def _unused_part(store: Store, rank: int, size: int, timeout: float) -> Store:
    """A part of the store in which nothing stands that processes have left which were there before.

    torchrun starts processes again with the store of those that have ended, and their addresses still stand in it. So
    each puts a word of its own there, and the part is named after the words that all see.

    Raises:
        RuntimeError: the others do not come in time.
    """
    words, names = [f"word/{i}" for i in range(size)], [f"name/{i}" for i in range(size)]
    store.set(words[rank], uuid.uuid4().hex)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        name = b" ".join(store.multi_get(words))  # waits until all are there
        store.set(names[rank], name.decode())
        if all(other == name for other in store.multi_get(names)):
            return PrefixStore(hashlib.sha256(name).hexdigest(), store)
        time.sleep(0.1)
    raise RuntimeError(f"no {size} processes at the same time in {timeout:g} seconds")


def wait_for_first() -> None:
    """Wait until process 0 has ended, for whoever started them all may end it when one ends, and it may still save."""
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


def refuse_other_weights(world: World, weights: Mapping[str, torch.nn.Parameter]) -> None:
    """Make sure that all processes start from the same weights.

    Args:
        world: the processes.
        weights: name -> trainable parameter.

    Raises:
        UsageError: with the first name that differs.
    """
    if world.size == 1:
        return

    def digests() -> dict[str, tuple[float, float]]:
        exactly = torch.float64
        return {
            name: (float(p.sum(dtype=exactly)), float(torch.linalg.vector_norm(p, dtype=exactly)))
            for name, p in weights.items()
        }

    with torch.no_grad():
        parts = world.each(digests)
    for rank, part in enumerate(parts):
        different = [name for name in parts[0] if part.get(name) != parts[0][name]] + [*(part.keys() - parts[0].keys())]
        if different:
            raise UsageError(
                f"Process {rank} of {world.size} has other weights than process 0: {different[0]}, and "
                f"{len(different) - 1} more. A policy must start from the same weights in every build; draw them with "
                "a generator that has a fixed seed."
            )


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Parameters of one kind next to each other, in lists of at most 32 MiB, or of a single larger one."""
    buckets: list[list[torch.nn.Parameter]] = []
    room, kind = 0, None
    for p in parameters:
        if (p.device, p.dtype) != kind or p.nbytes > room:
            buckets.append([])
            room, kind = _BUCKET, (p.device, p.dtype)
        buckets[-1].append(p)
        room -= p.nbytes
    return buckets


def all_know(error: BaseException) -> bool:
    """Whether all processes have this error already, and go on together."""
    return bool(getattr(error, "agreed", False))


def is_lost(error: BaseException) -> bool:
    """Whether the processes cannot meet any more after this error."""
    return bool(getattr(error, "lost", False))


@contextmanager
def unmet() -> Iterator[None]:
    """Around passes in which processes wait for each other inside of the policy, so that none can tell of an error.

    Raises:
        RunError: another process has ended.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, distributed.DistError) or _SOURCE.search(str(error)):
            raise _ended(error) from error
        error.lost = True  # type: ignore[attr-defined]
        raise


class _Failure:
    """An error on its way to the other processes."""

    def __init__(self, error: Exception) -> None:
        own = error if isinstance(error, GrpokitError) else RunError(typed_line(error))
        self.kind, self.text, self.page = type(reworded(own, "")), str(own), own.page

    def elsewhere(self, rank: int, size: int) -> GrpokitError:
        """The error that the other processes raise."""
        return _agreed(self.kind(f"In process {rank} of {size}: {self.text}", page=self.page))


def _agreed(error: E) -> E:
    """Mark an error that all processes have: they need not meet again because of it."""
    error.agreed = True  # type: ignore[attr-defined]
    return error


@contextmanager
def _meeting(own: Exception | None = None) -> Iterator[None]:
    """Around a meeting of all processes: another one that does not come is an error with words.

    Args:
        own: what has failed here; it is raised in place of that error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:  # the others wait in vain, and this one says why
        error.lost = True  # type: ignore[attr-defined]
        raise
    except RuntimeError as error:
        if own is not None:
            raise own from error
        raise _ended(error) from error


def _ended(error: Exception) -> RunError:
    """What a process says that waits in vain."""
    ended = RunError(
        "Another process has ended, or has not come in time (run.process_timeout). Its own message says why. "
        f"Here: {_SOURCE.sub('', typed_line(error))}."
    )
    ended.lost = True  # type: ignore[attr-defined]
    return ended
