"""Displays that are gone or that know few characters, and other ways to be told to end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import config, rows

HELPERS = Path(__file__).parents[1] / "helpers"

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@pytest.mark.parametrize("how", ["pipe", "closed"])
def test_a_display_that_is_gone(how: str) -> None:
    read, out = os.pipe()
    os.close(read)
    closing = {"preexec_fn": lambda: os.close(1)} if how == "closed" else {}
    command = [sys.executable, "-m", "grpokit", "plugins"]
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, timeout=60, **closing)
    os.close(out)
    assert (done.returncode, done.stderr) == (0, b"")


@needs_full
@pytest.mark.parametrize("command", ["plugins", "--version"])  # more than a buffer, and what is written at the end
def test_a_full_disk_behind_the_output_is_told_once(command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "grpokit", command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left" in done.stderr


@needs_full
def test_a_full_disk_behind_both_streams_leaves_an_exit_code() -> None:
    command = f"{sys.executable} -m grpokit plugins > /dev/full 2> /dev/full"
    assert subprocess.run(command, shell=True, timeout=60).returncode == 1


@pytest.mark.slow
@needs_full
def test_a_run_goes_on_without_its_full_display(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = f"exec {sys.executable} -m grpokit train {config(tmp_path, eval={})} trainer.steps=2 > /dev/full"
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert json.loads((tmp_path / "out/end.json").read_text())["state"] == "finished"


def test_a_working_folder_that_was_deleted(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    command = f"rmdir {here}; exec {sys.executable} -m grpokit plugins"
    done = subprocess.run(command, shell=True, cwd=here, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "working folder" in done.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_lines_are_shown_at_once_where_python_does_not_buffer(stream: str) -> None:
    """As PYTHONUNBUFFERED=1 asks for in a container, whose last lines would be lost with its process."""
    start = "import os, sys; from grpokit.cli import display; display.prepare_streams()"
    code = f"{start}; print(1, file=sys.{stream}); os._exit(0)"
    done = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, timeout=60)
    assert getattr(done, stream) == b"1\n"


def test_a_display_of_ascii_shows_what_it_can() -> None:
    code = "from grpokit.cli import display; display.prepare_streams(); print('1 ± 0')"
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, env=ascii_only)
    assert (done.returncode, done.stdout) == (0, b"1 ? 0\n")


SLOW = "import time\n\n\ndef score(samples):\n    time.sleep(0.2)\n    return [float(len(s.output)) for s in samples]\n"


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
def test_a_run_is_saved_when_its_terminal_closes(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    settings = ("rewards=[{use: 'slow:score'}]", "trainer.steps=8", "eval={}")
    environment = {**os.environ, "PYTHONPATH": f"{HELPERS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "grpokit", "train", str(config(tmp_path)), *settings]
    reads, writes = pty.openpty()
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    metrics, deadline = tmp_path / "out/metrics.jsonl", time.monotonic() + 90
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step was taken"
        time.sleep(0.02)
    os.close(reads)
    process.send_signal(signal.SIGHUP)
    _, complaint = process.communicate(timeout=120)
    steps = len(rows(metrics))
    assert (process.returncode, complaint) == (130, b"")
    assert steps < 8
    state = json.loads((tmp_path / f"out/checkpoints/step_{steps:06d}/state.json").read_text())
    assert state["step"] == steps


def test_bitsandbytes_does_not_tell_of_a_product_that_is_not_used() -> None:
    """As it does on some CPUs while peft imports it; anything else is told."""
    code = """
import logging, sys
from grpokit.cli.app import main
sys.argv = ["grpokit", "--version"]
try:
    main()
except SystemExit:
    log = logging.getLogger("bitsandbytes.backends.cpu.ops")
    log.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s", "No module named 'kernels'")
    log.warning("anything else")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "anything else\n"
