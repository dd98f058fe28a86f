"""Processes that torchrun starts use a GPU each, also for what they build before any training. This needs no GPU."""

from __future__ import annotations

import pytest
import torch

from grpokit import UsageError, create
from grpokit.processes import rendezvous


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the devices that become current, on a machine that says it has two."""
    numbers: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", numbers.append)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())  # which waits until CUDA is used
    return numbers


@pytest.mark.parametrize(("local_rank", "expected"), [(None, []), ("1", [1]), ("3", [1])])
def test_it_is_current_before_anything_is_built(
    local_rank: str | None, expected: list[int], chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor of Ray has the number of the process that started Ray, and sees fewer GPUs."""
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    create("reward", "length", {"maximum": 3})
    assert chosen == expected


def test_processes_that_share_a_gpu_are_refused() -> None:
    rendezvous._refuse_shared_gpus(["GPU-1 of a", "GPU-2 of a", "GPU-1 of b"])
    with pytest.raises(UsageError, match=r"The processes 0 and 2 of 3 have the same GPU, GPU-1 of a, but each needs"):
        rendezvous._refuse_shared_gpus(["GPU-1 of a", "GPU-2 of a", "GPU-1 of a"])
