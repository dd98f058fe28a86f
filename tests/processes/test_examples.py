"""The job files of examples/ start `grpokit train`, or go on with it, and come back when their time is over."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.several

EXAMPLES = Path(__file__).parents[2] / "examples"


def start(folder: Path, job: str, torchrun: str) -> subprocess.Popen[str]:
    """A job with stand-ins for the programs of a cluster."""
    programs = {"scontrol": 'echo first "$@"', "srun": 'exec "$@"', "torchrun": torchrun}
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    environment |= {"SLURM_JOB_NODELIST": "a", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    command = ["bash", str(EXAMPLES / "slurm.sh"), "toy-lm", "run"]
    if job == "sky":
        task = yaml.safe_load((EXAMPLES / "sky.yaml").read_text())
        environment |= {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "first"}
        environment |= task["envs"] | {"SKYPILOT_NUM_GPUS_PER_NODE": "8", "FOLDER": "run"}
        command = ["bash", "-c", task["run"]]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("job", ["slurm", "sky"])
def test_a_job_starts_a_run_or_goes_on(tmp_path: Path, job: str) -> None:
    process = start(tmp_path, job, 'echo "$@"')
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 0
    for part in ("--nnodes 2", "--nproc-per-node 8", "first", "--max-restarts 3"):
        assert part in output
    assert output.strip().endswith("train toy-lm run.dir=run --resume")


@pytest.mark.parametrize(("code", "queued"), [(1, True), (0, False)])
def test_a_slurm_job_whose_time_is_over_goes_back_into_the_queue(tmp_path: Path, code: int, queued: bool) -> None:
    """But not one that was complete. One process of the run hears of it first, and has the time that its step takes."""
    loop = "for i in {1..300}; do sleep 0.05; done"
    run = "-m grpokit train toy-lm run.dir=run"
    worker = f"trap 'sleep 0.5; echo saved; exit 130' TERM; touch {tmp_path}/begun; {loop}"
    (tmp_path / "worker").write_text(worker)
    work = f"bash {tmp_path}/worker {run} &\ntrap 'echo ended; exit {code}' TERM\n{loop}"
    process = start(tmp_path, "slurm", work)
    end = time.monotonic() + 20
    while not (tmp_path / "begun").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    output = process.communicate(timeout=30)[0]
    assert output.split()[:2] == ["saved", "ended"]
    assert ("requeue 7" in output) == queued
    assert (process.returncode == 0) != queued
