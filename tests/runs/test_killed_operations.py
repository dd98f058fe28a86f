"""A kill at any operation on a file leaves a run that `--resume` or `--overwrite` accepts."""

from __future__ import annotations

import builtins
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpokit import UsageError, report
from small_runs import train, write_prompts
from switched import Switch

ROOT = Path("runs")
Tree = dict[Path, bytes | None]  # None is a folder


def tree() -> Tree:
    return {p: p.read_bytes() if p.is_file() else None for p in sorted(ROOT.rglob("*")) if p.suffix != ".lock"}


def restore(state: Tree) -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir()
    for path, content in state.items():
        path.mkdir() if content is None else path.write_bytes(content)


@contextmanager
def snapshots() -> Iterator[list[Tree]]:
    """Collects what a kill before each operation would leave, and a kill between opening a file and writing to it."""
    states: list[Tree] = []
    looking = False

    def note(opened: Path | None = None) -> None:
        nonlocal looking
        looking = True
        state = tree()
        looking = False
        states.extend([] if state in states else [state])
        if opened is not None and opened not in state:
            states.append(dict(sorted({**state, opened: b""}.items())))

    def watched(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not looking:
                note()
            return operation(*arguments, **options)

        return call

    def opening(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not looking and set(mode) & set("wax+") and not isinstance(file, int):
            path = Path(file)
            note(path if path.is_relative_to(ROOT) and path.suffix != ".lock" else None)
        return plain_open(file, mode, *arguments, **options)

    plain_open = io.open
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "mkdir", "unlink", "remove", "rmdir"):
            patch.setattr(os, name, watched(getattr(os, name)))
        patch.setattr(io, "open", opening)
        patch.setattr(builtins, "open", opening)
        yield states


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Switch.off()
    monkeypatch.chdir(tmp_path)
    write_prompts(["1", "2"])
    ROOT.mkdir()


def small(**options: Any) -> Any:
    return train(
        "runs/out",
        trainer__steps=2,
        trainer__prompts_per_step=1,
        trainer__group_size=2,
        run__save_every=1,
        eval__every=1,
        **{"run__keep_last": 1, **options},
    )


def assert_each_is_accepted(states: list[Tree], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", lambda run: run)  # its curves take most of a run's time
    for number, state in enumerate(states):
        restore(state)
        try:
            assert small(resume=True).steps == 2
        except UsageError as refused:
            try:
                assert small(overwrite=True).steps == 2
            except UsageError as error:
                names = [str(path) for path in state]
                raise AssertionError(f"state {number} of {len(states)}, {names}: {refused} {error}") from error
        assert os.listdir("runs/out/checkpoints") == ["step_000002"], f"state {number}"


ALL = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])  # of the operations


@pytest.mark.long
@ALL
def test_a_kill_at_any_operation_of_a_run(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with snapshots() as states:
        small()
    assert any(Path("runs/out/.versions.json.partial") in state for state in states)
    assert_each_is_accepted(states[::every], monkeypatch)


@pytest.mark.long
@ALL
def test_a_kill_at_any_operation_of_an_overwrite_or_a_resume(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "write", lambda run: run)
    small(run__keep_last=None)
    with snapshots() as states:
        small(overwrite=True)
    small(overwrite=True, run__keep_last=None)
    shutil.rmtree("runs/out/checkpoints/step_000002")  # so that a resume has something to cut off and to do
    with snapshots() as more:
        small(resume=True)
    assert_each_is_accepted([*states, *more][::every], monkeypatch)
