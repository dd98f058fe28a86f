"""One thread (small nets run faster so), no network, and a clean view of the plugins for every test."""

from __future__ import annotations

import gc
import os
import sys
from types import ModuleType

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "agg")

import pytest
import torch

torch.set_num_threads(1)

pytest_plugins = [
    "browser",
    "command_line",
    "distributions",
    "made_plugins",
    "skips",
    "small_drafts",
]  # fixtures, and the summary of skips


@pytest.fixture(autouse=True)
def _quiet_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delenv("GRPOKIT_STRICT", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where a test computes."""
    return str(request.param)


@pytest.fixture
def fake_cuda() -> ModuleType:
    """The fake CUDA device of `make gpu`; what it alone can tell is not asked of a real one."""
    if "fake_cuda" not in sys.modules:
        pytest.skip("asks the fake CUDA device alone")
    return sys.modules["fake_cuda"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs CUDA (make gpu)"))


@pytest.fixture(autouse=True, scope="module")
def _imports_are_no_garbage() -> None:
    """What is imported stays: looking through it in every garbage collection would take a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
