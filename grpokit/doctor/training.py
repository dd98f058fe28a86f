"""Looks for weights and a GPU, and trains a little: `python -m grpokit.doctor.training` prints what it finds."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import platform
import shutil
import tempfile
from collections.abc import Iterator

import psutil
import torch

from grpokit.config import schema
from grpokit.doctor.environment import MARK, Finding, weights
from grpokit.errors import error_line
from grpokit.runs import build, build_rewards

_CONFIG = """
policy: {use: grpokit.doctor.toy:Table}
data: {use: grpokit.doctor.toy:toy_prompts}
rewards: [{use: grpokit.doctor.toy:ones}]
trainer: {steps: 10, prompts_per_step: 4, group_size: 8, learning_rate: 0.2}
"""


def device_findings() -> Iterator[Finding]:
    """Platform, memory and GPUs, and why CUDA is missing, if it is."""
    memory = psutil.virtual_memory().total / 2**30
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    what = ", ".join([platform.platform(), f"{memory:.1f} GiB", *gpus])
    yield Finding(area="machine", state="ok", what=what)
    cuda = torch.version.cuda
    has_driver = shutil.which("nvidia-smi") is not None
    build = f"torch is built for {f'CUDA {cuda}' if cuda else 'ROCm' if torch.version.hip else 'CPUs'}"
    if torch.cuda.is_available():
        yield Finding(area="torch", state="ok", what=f"{build} and finds {torch.cuda.device_count()} GPU(s)")
    elif has_driver and cuda:
        what = f"{build} and there is an NVIDIA driver, but torch finds no GPU"
        advice = f"The driver may be older than CUDA {cuda} needs, or CUDA_VISIBLE_DEVICES hides the GPU. Update the "
        advice += "driver, or install a torch that is built for an older CUDA."
        yield Finding(area="torch", state="problem", what=what, advice=advice)
    elif has_driver:
        advice = "Runs use the CPU. For the GPU, install a CUDA build of torch."
        yield Finding(area="torch", state="note", what=f"{build}, and there is an NVIDIA driver", advice=advice)
    else:
        yield Finding(area="torch", state="ok", what=f"{build}, and there is no NVIDIA driver: runs use the CPU")


def torchvision() -> Iterator[Finding]:
    """Whether it fits torch; most libraries of models import it."""
    try:
        if importlib.util.find_spec("torchvision"):
            importlib.import_module("torchvision")
    except Exception as error:
        what = f"torchvision cannot be imported with torch {torch.__version__}: {error_line(error)}"
        build = (torch.__version__.partition("+")[2] or "cpu").removeprefix("git")
        advice = "It is usually built for another torch. Rewards and models that import it fail, too. Install both as "
        advice += f"one build: pip install uv && uv pip install --reinstall --torch-backend={build} torch torchvision"
        yield Finding(area="torchvision", state="problem", what=what, advice=advice)


def self_test() -> Iterator[Finding]:
    """Importance ratio, learning and exact resume of a toy, by a config."""
    torch.set_num_threads(1)  # with several, a sum on the CPU may round differently each time
    config = schema.parse(_CONFIG, "self-test")
    prompts, _ = build.prompts(config)
    policies = [build.policies(config) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder, build_rewards.all_rewards(config) as (terms, _):
        whole, resumed = (build.trainer(config, each, terms, prompts) for each in policies)
        first = whole.step().metrics
        whole.save(folder)
        resumed.load(folder)
        last = [report.metrics for report in whole][-1]
        for _ in resumed:
            pass
    ratio, before, after = first["ratio/max"], first["reward"], last["reward"]
    one, other = (policy[""].state_dict()["0"] for policy in policies)
    same = torch.equal(one, other)
    device = whole.current.trainer.torch_device.type
    what = f"on {device}: the importance ratio begins at {ratio:.6g}, the reward goes from {before:.2f} "
    what += f"to {after:.2f}, and a resumed run ends with {'the same' if same else 'other'} weights"
    well = abs(ratio - 1) < 1e-4 and after > before and same
    advice = "The ratio should be 1, the reward should rise, and the weights should be the same. Training cannot be "
    advice += "trusted on this machine: fix what is listed above, then try with device: cpu."
    yield Finding(area="self-test", state="ok" if well else "problem", what=what, advice="" if well else advice)


if __name__ == "__main__":
    for look in (weights, device_findings, self_test, torchvision):
        for finding in look():
            print(f"\n{MARK}{json.dumps(dataclasses.asdict(finding))}", flush=True)
