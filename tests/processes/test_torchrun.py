"""The command under torchrun: one process speaks, all end, and are started again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import Call
from in_processes import train
from several import together
from whole_runs import SMALL, assert_same, newest

pytestmark = pytest.mark.several


def torchrun(folder: Path, *words: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    run = [*start, "-m", "grpokit"]
    helpers = str(Path(__file__).parents[1] / "helpers")
    paths = os.pathsep.join(filter(None, [helpers, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run([*run, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", [("train", "toy-lm", "--dry-run"), ("evaluate", "run")])
def test_what_is_for_one_process(words: tuple[str, ...], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    expected = f"error: grpokit {words[0]}{' --dry-run' * (words[0] == 'train')} runs in one process."
    assert call(*words).err.startswith(expected)


@pytest.mark.parametrize(("local_rank", "speaks"), [("0", True), ("1", False)])
def test_a_mistake_in_the_config_is_said_once_on_each_machine(
    local_rank: str, speaks: bool, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": local_rank}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "grpokit.processes.team", raising=False)

    def end(seconds: float) -> None:
        sys.exit(1)  # as torchrun does, since the first process has failed

    monkeypatch.setattr("time.sleep", end)
    assert ("got 'nine'" in call("train", "toy-lm", "trainer.steps=nine").err) == speaks
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the others have found nothing
    assert "got 'nine'" in call("train", "toy-lm", "trainer.steps=nine").err


def test_a_rank_that_was_left_in_the_environment_silences_nothing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert "got 'nine'" in call("train", "toy-lm", "trainer.steps=nine").err


def test_a_process_without_the_first_one_says_so(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    done = call("train", "toy-lm", "run.process_timeout=1")
    assert done.code == 1
    assert "error: Another process has ended, or has not answered in time (run.process_timeout)." in done.err


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def test_two_processes_speak_as_one(tmp_path: Path) -> None:
    short = (*SMALL, "trainer.steps=2", "data.limit=8", "run.dir=run")
    failed = torchrun(tmp_path, "train", "toy-lm", *short, "rewards=[{use: 'in_processes:fails_later'}]")
    assert failed.returncode == 1
    assert failed.stdout.count("step 1/2") == 1
    assert [line.count("In process 1 of 2: Reward 'fails_later' raised ValueError") for line in errors(failed)] == [1]
    assert newest(tmp_path / "run/checkpoints") == 1


def test_a_process_that_is_killed_lets_the_others_save(tmp_path: Path) -> None:
    """Though torchrun sends them SIGTERM at once, and saving takes seconds."""
    rewards = "rewards=[{use: 'in_processes:killed_later'}]"
    short = (*SMALL, "trainer.steps=3", "data.limit=8", "run.dir=run", "policy.use=in_processes:SlowToSave", rewards)
    failed = torchrun(tmp_path, "train", "toy-lm", *short)
    assert failed.returncode == 1
    (error,) = errors(failed)
    assert error.startswith("error: Another process has ended, or has not answered in time (run.process_timeout).")
    saved = tmp_path / "run/checkpoints/step_000001"
    assert f"The state after step 1 is saved in {saved}; correct the cause" in failed.stderr
    assert newest(tmp_path / "run/checkpoints") == 1
    assert (tmp_path / "run/report.html").is_file()


def test_a_signal_to_one_process_stops_all_after_the_step(tmp_path: Path) -> None:
    short = (*SMALL, "trainer.steps=9", "data.limit=8", "run.dir=run", "rewards=[{use: 'in_processes:told_to_stop'}]")
    stopped = torchrun(tmp_path, "train", "toy-lm", *short)
    assert stopped.returncode == 1  # torchrun's own
    assert stopped.stdout.count("Stopped after step 2; the state is saved. Continue with:") == 1
    assert "\n  torchrun --nproc-per-node 2 -m grpokit train toy-lm" in stopped.stdout
    assert newest(tmp_path / "run/checkpoints") == 2


def test_a_process_without_others(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    error = call("train", "toy-lm").err
    assert error.startswith("error: WORLD_SIZE=2 announces other processes, but they cannot be found: ")
    assert "environment variable RANK expected, but not set. Start the run with torchrun" in error


def test_torchrun_starts_a_run_again_that_has_lost_a_process(tmp_path: Path) -> None:
    """In the third step one of two is killed. The run goes on after the second, to the same bits."""
    reward = "rewards=[{use: 'in_processes:killed_once'}]"
    assert together(2, train, tmp_path / "whole", 4, None, False, [reward]) == [4, 4]
    saving = ("run.save_every=1", "eval.every=2", "run.record=true", "run.keep_last=2", "run.dir=run")
    same = (*SMALL, "trainer.steps=4", "trainer.kl_coef=0.05", "trainer.device=cpu", "data.limit=20", *saving, reward)
    done = torchrun(tmp_path, "train", "toy-lm", *same, "--resume", options=("--max-restarts=1",))
    assert done.returncode == 0, done.stderr
    assert f"resuming after step 2 of 4 from {tmp_path}/run/checkpoints/step_000002" in done.stdout + done.stderr
    assert_same(tmp_path / "whole", tmp_path / "run")
