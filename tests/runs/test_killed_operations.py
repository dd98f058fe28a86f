"""A kill at any operation on a file leaves what the same command, or `--resume`, completes as if nothing had been."""

from __future__ import annotations

import builtins
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import Call, config, rows, steady
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
        for name in ("replace", "rename", "mkdir", "unlink", "remove", "rmdir"):
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


ALL = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.very_slow)])  # of the operations


@pytest.mark.slow
@ALL
def test_a_kill_at_any_operation_of_a_run(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with snapshots() as states:
        small()
    assert any(Path("runs/out/.versions.json.partial") in state for state in states)
    assert_each_is_accepted(states[::every], monkeypatch)


@pytest.mark.slow
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


EVALUATION = {"data": {"prompts": "held.jsonl"}, "rewards": [{"use": "tiny_policies:digit_sum"}], "samples": 2}
SHORT = ("trainer.steps=2", "run.save_every=1", "run.keep_last=1")


def numbers(state: Tree) -> dict[Path, Any]:
    """Every path and, for those that hold them, the numbers but for what a clock says."""
    return {path: steady(rows(path)) if path.suffix == ".jsonl" else None for path in state}


def assert_each_is_completed(again: Callable[[], None], every: int) -> None:
    """After a kill at any operation of a command, the same command leaves what it leaves without one."""
    before = tree()
    with snapshots() as states:
        again()
    whole = numbers(tree())
    for number, state in enumerate([before, *states][::every]):
        restore(state)
        again()
        assert numbers(tree()) == whole, f"state {number} of {len(states)}"


@pytest.fixture
def commands(call: Call, tmp_path: Path) -> Callable[..., None]:
    """Runs commands that must succeed, beside a config and an evaluation."""
    config(tmp_path)
    (tmp_path / "digits.yaml").write_text(json.dumps(EVALUATION))

    def run(*words: str) -> None:
        done = call(*words)
        assert done.code == 0, done.err

    return run


@pytest.mark.slow
@ALL
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("earlier", [False, True])
def test_a_kill_at_any_operation_of_an_evaluation(every: int, commands: Callable[..., None], *, earlier: bool) -> None:
    commands("train", "c.yaml", *SHORT, "run.dir=runs/out")
    evaluate = ("evaluate", "runs/out", "--with", "digits.yaml", "--out", "runs/digits")
    if earlier:
        commands(*evaluate)
    assert_each_is_completed(lambda: commands(*evaluate), every)


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_a_kill_at_any_operation_of_a_report(commands: Callable[..., None]) -> None:
    commands("train", "c.yaml", *SHORT, "run.dir=runs/out")
    commands("train", "c.yaml", *SHORT, "run.dir=runs/other", "seed=8")
    assert_each_is_completed(lambda: commands("report", "runs/out"), every=1)
    assert_each_is_completed(lambda: commands("report", "runs/out", "runs/other"), every=1)


@pytest.mark.slow
@ALL
def test_a_kill_at_any_operation_of_a_sweep(every: int, commands: Callable[..., None]) -> None:
    sweep = ("sweep", "c.yaml", *SHORT, "eval.every=0", "seed=1..2", "--dir", "runs/seeds")
    assert_each_is_completed(lambda: commands(*sweep), 4 * every)
