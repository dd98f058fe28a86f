"""How a process joins the others that torchrun has started with it."""

from __future__ import annotations

import hashlib
import os
import socket
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from grpokit.errors import UsageError, one_line
from grpokit.processes.own_gpu import take_own_gpu
from grpokit.processes.team import Team, meeting

TIMEOUT = 1800.0
"""Seconds that a process waits for the others before it gives up."""

_team: Team | None = None
_timeout = timedelta(seconds=TIMEOUT)


def join(timeout: float = TIMEOUT) -> Team:
    """The team that this process was started in; with torchrun, it waits for the other processes.

    Only the first call sets for how many seconds it waits, here and later.
    """
    global _team, _timeout
    if not distributed.is_initialized():
        if (os.environ.get("WORLD_SIZE") or "1") == "1":
            return Team()
        _timeout = timedelta(seconds=timeout)
        _meet_others()
    if _team is None:
        _team = Team(new_group("gloo") if distributed.get_world_size() > 1 else None)
        if torch.cuda.is_available():
            own = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
            _refuse_shared_gpus(_team.gather(f"{own} of {socket.gethostname()}"))
    return _team


def new_group(backend: str | None = None) -> distributed.ProcessGroup:
    """All processes once more, for calls that must not mix with others; all of them make it."""
    group: distributed.ProcessGroup = distributed.new_group(timeout=_timeout, backend=backend)
    return group


def _meet_others() -> None:
    take_own_gpu()
    with meeting():
        try:
            store, rank, size = next(rendezvous("env://", timeout=_timeout))
        except ValueError as error:
            raise UsageError(
                f"WORLD_SIZE={os.environ['WORLD_SIZE']} announces other processes, but they cannot be found: "
                f"{one_line(error)}. Start the run with torchrun, or unset WORLD_SIZE to train in one process."
            ) from error
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=_unused_part(store, rank, size),
            rank=rank,
            world_size=size,
            timeout=_timeout,
        )


def _unused_part(store: Store, rank: int, size: int) -> Store:
    """A part of the store without the entries of earlier processes.

    torchrun starts processes again with the store of those that have ended, and it still has their addresses. So each
    process adds a random word, and the part is named after the words that all see: TORCHELASTIC_RESTART_COUNT
    differs between machines, of which only that of the lost process counts the restart.
    """
    words = [f"word/{i}" for i in range(size)]
    names = [f"name/{i}" for i in range(size)]
    store.set(words[rank], uuid.uuid4().hex)
    end = time.monotonic() + _timeout.total_seconds()
    while time.monotonic() < end:
        name = b" ".join(store.multi_get(words))  # waits until all are there
        store.set(names[rank], name.decode())
        if all(other == name for other in store.multi_get(names)):
            return PrefixStore(hashlib.sha256(name).hexdigest(), store)
        time.sleep(0.1)
    raise RuntimeError(f"no {size} processes at the same time in {_timeout}")


def _refuse_shared_gpus(gpus: Sequence[str]) -> None:
    """Refuse two processes with one GPU, which NCCL cannot serve."""
    for rank, gpu in enumerate(gpus):
        if gpu in gpus[:rank]:
            raise UsageError(
                f"The processes {gpus.index(gpu)} and {rank} of {len(gpus)} have the same GPU, {gpu}, but each needs "
                "its own. Give torchrun --nproc-per-node no more than the machine has, or set "
                "CUDA_VISIBLE_DEVICES= (empty) to train on the CPU."
            )
