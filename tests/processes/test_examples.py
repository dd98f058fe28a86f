"""The job files of examples/ start `grpokit train` anew, and go on from a checkpoint where there is one."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("job", ["slurm", "sky"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_job_starts_a_run_or_goes_on(tmp_path: Path, job: str, begun: bool) -> None:
    run = tmp_path / "run"
    if begun:
        (run / "checkpoints" / "step_000001").mkdir(parents=True)
    programs = {"scontrol": "echo first", "srun": '"$@"', "torchrun": 'echo "$@"'}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment |= {"SLURM_JOB_NODELIST": "a", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    command = ["bash", str(EXAMPLES / "slurm.sh"), "toy-lm", str(run)]
    if job == "sky":
        task = yaml.safe_load((EXAMPLES / "sky.yaml").read_text())
        environment |= {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "first"}
        environment |= task["envs"] | {"SKYPILOT_NUM_GPUS_PER_NODE": "8", "FOLDER": str(run)}
        command = ["bash", "-c", task["run"]]

    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert "--nnodes 2" in output
    assert "--nproc-per-node 8" in output
    assert "first" in output
    assert output.strip().endswith(f"train {run} --resume" if begun else f"train toy-lm run.dir={run}")
