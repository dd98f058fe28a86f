"""Devices: what is moved, and what is left where it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpokit.training.devices import place


class Moves:
    """A module with parameters on some devices; no GPU is needed."""

    def __init__(self, *devices: str) -> None:
        self.devices, self.moved = devices, False

    def parameters(self) -> list[Any]:
        return [SimpleNamespace(device=torch.device(device)) for device in self.devices]

    def to(self, device: torch.device) -> None:
        self.moved = True


@pytest.mark.parametrize(
    ("devices", "wanted", "moved"),
    [
        (["cuda:0", "cuda:0"], "cuda", False),
        (["cuda:0", "cpu"], "cuda", True),
        (["cuda:1"], "cuda", True),
        (["cuda:0"], "cuda:1", True),
        (["cuda:1"], "cuda:1", False),
        (["cpu"], "cpu", False),
        (["cuda:0"], "cpu", True),
        ([], "cuda", False),
    ],
)
def test_a_module_is_moved_only_if_it_is_elsewhere(
    devices: list[str], wanted: str, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quantised modules raise where they are moved, even to where they are."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    module: Any = Moves(*devices)
    place({"model": module}, torch.device(wanted))
    assert module.moved is moved
