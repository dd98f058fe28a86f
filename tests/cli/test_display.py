"""Displays that are gone or that know few characters, and other ways to be told to end."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import config, rows

HERE = Path(__file__).parents[1]


def start(folder: Path, *overrides: str, encoding: str = "utf-8", **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment |= {"PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "grpokit", "train", str(config(folder)), "run.eval_every=0", *overrides]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, **options)


def after_steps(process: subprocess.Popen[bytes], folder: Path, steps: int) -> None:
    metrics, deadline = folder / "out/metrics.jsonl", time.monotonic() + 90
    while not (metrics.exists() and metrics.read_text().count("\n") >= steps):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step was taken"
        time.sleep(0.02)


@pytest.mark.parametrize(("how", "complaint"), [("pipe", ""), ("full disk", os.strerror(errno.ENOSPC)), ("closed", "")])
def test_a_display_that_is_gone(tmp_path: Path, how: str, complaint: str) -> None:
    """A closed one ends nothing; what a full disk has lost is said."""
    read, out = os.pipe() if how == "pipe" else (os.open(os.devnull, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY))
    os.close(read)
    closing = {"preexec_fn": lambda: os.close(1)} if how == "closed" else {}
    command = [sys.executable, "-m", "grpokit", "plugins"]
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, timeout=60, **closing)
    os.close(out)
    expected = complaint and f"error: What was printed could not be written: {complaint}.\n"
    assert (done.returncode, done.stderr.decode()) == (1 if complaint else 0, expected)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_lines_are_shown_at_once_where_python_does_not_buffer(stream: str) -> None:
    """As PYTHONUNBUFFERED=1 asks for in a container, whose last lines would be lost with its process."""
    code = (
        f"import os, sys; from grpokit.cli import display; display.prepare(); print(1, file=sys.{stream}); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, timeout=60)
    assert getattr(done, stream) == b"1\n"


def test_a_display_of_ascii_shows_a_whole_run(tmp_path: Path) -> None:
    process = start(tmp_path, encoding="ascii", stdout=subprocess.PIPE)
    said, complaint = process.communicate(timeout=120)
    assert (process.returncode, complaint) == (0, b"")
    (scores,) = (line for line in said.decode("ascii").splitlines() if line.startswith("reward"))
    assert scores.count(" +- ") == 2
    assert "step 5/5" in said.decode("ascii")
    assert b"\\u" not in said


SLOW = "import time\n\n\ndef score(samples):\n    time.sleep(0.2)\n    return [float(len(s.output)) for s in samples]\n"


@pytest.mark.parametrize("how", ["Ctrl-C beside tee", "closed terminal"])
def test_a_run_is_saved_when_its_terminal_ends(tmp_path: Path, how: str) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    slow = ("rewards=[{use: 'slow:score'}]", "trainer.steps=8", "data.eval_jsonl=null")
    reads, writes = pty.openpty() if how == "closed terminal" else os.pipe()
    process = start(tmp_path, *slow, stdout=writes)
    os.close(writes)
    after_steps(process, tmp_path, 2)
    os.close(reads)  # as when `tee` has died of the same Ctrl-C
    process.send_signal(signal.SIGINT if how == "Ctrl-C beside tee" else signal.SIGHUP)
    _, complaint = process.communicate(timeout=120)
    steps = len(rows(tmp_path / "out/metrics.jsonl"))
    assert (process.returncode, complaint) == (130, b"")
    assert steps < 8
    state = json.loads((tmp_path / f"out/checkpoints/step_{steps:06d}/state.json").read_text())
    assert state["step"] == steps
