"""Processes that torchrun starts use a GPU each, also for what they build before any training. This needs no GPU."""

from __future__ import annotations

import pytest
import torch

from grpokit import UsageError, create
from grpokit.training import world


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the devices that become current, on a machine that says it has two."""
    numbers: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", numbers.append)
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


def test_more_processes_than_gpus_are_refused(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "4")
    for name, value in {"RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"4 processes were started on a machine with 2 GPUs, .*per-node 2, or"):
        world.here()
    assert not chosen
