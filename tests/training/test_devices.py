"""Devices: what is moved, and what is left where it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpokit.training.devices import find_device, place


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
        (["cuda:0", "cuda:0"], "cuda:0", False),
        (["cuda:0", "cpu"], "cuda:0", True),
        (["cuda:0"], "cuda:1", True),
        (["cpu"], "cpu", False),
        (["cuda:0"], "cpu", True),
        ([], "cuda:0", False),
    ],
)
def test_a_module_is_moved_only_if_it_is_elsewhere(devices: list[str], wanted: str, moved: bool) -> None:
    """Quantised modules raise where they are moved, even to where they are."""
    module: Any = Moves(*devices)
    place({"model": module}, torch.device(wanted))
    assert module.moved is moved


@pytest.mark.parametrize(("name", "expected"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cpu", "cpu")])
def test_a_gpu_has_its_number(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter's device has one, too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert find_device(name) == torch.device(expected)
