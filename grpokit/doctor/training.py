"""Looks for weights and a GPU, and trains a little: `python -m grpokit.doctor.training` prints what it finds."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate.commands.env import env_command, env_command_parser

from grpokit.doctor.environment import MARK, Finding, weights
from grpokit.errors import typed_line
from grpokit.scaffold import write
from grpokit.trainer import Trainer


def device() -> Iterator[Finding]:
    """What `accelerate env` says, and why CUDA is missing, if it is."""
    facts = env_command(env_command_parser().parse_args([]))
    names = ("Platform", "System RAM", "PyTorch accelerator", "GPU type")
    what = ", ".join(f"{name}: {facts[name]}" for name in names if name in facts)
    yield Finding(area="machine", state="ok", what=what)
    cuda, has_driver = torch.version.cuda, shutil.which("nvidia-smi") is not None
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
        what = f"torchvision cannot be imported with torch {torch.__version__}: {typed_line(error)}"
        build = (torch.__version__.partition("+")[2] or "cpu").removeprefix("git")
        advice = "It is usually built for another torch. Rewards and models that import it fail, too. Install both as "
        advice += f"one build: pip install uv && uv pip install --reinstall --torch-backend={build} torch torchvision"
        yield Finding(area="torchvision", state="problem", what=what, advice=advice)


def self_test() -> Iterator[Finding]:
    """Importance ratio, learning and exact resume of the policy that `grpokit new policy` writes."""
    torch.set_num_threads(1)  # with several, a sum on the CPU may round differently each time
    with tempfile.TemporaryDirectory() as folder:
        package = write.new("policy", "doctor-toy", folder=Path(folder)).folder
        sys.path.insert(0, str(package / "src"))
        policy, task = (importlib.import_module(f"grpokit_doctor_toy.{module}") for module in ("policy", "task"))
        rewards, prompts = {"right": task.letters_right}, task.prompts("train")
        whole, resumed = (
            Trainer(
                policy.LetterTable(), rewards, prompts, steps=10, learning_rate=0.2, group_size=16, micro_batch_size=64
            )
            for _ in range(2)
        )
        first = whole.step().metrics
        whole.save(package / "first")
        resumed.load(package / "first")
        last, _ = ([report.metrics for report in trainer][-1] for trainer in (whole, resumed))
    ratio, before, after = first["ratio/max"], first["reward"], last["reward"]
    same = torch.equal(*(trainer.policy.state_dict()["weight"] for trainer in (whole, resumed)))
    what = (
        f"on {whole.torch_device.type}: the importance ratio begins at {ratio:.6g}, the reward goes from {before:.2f} "
    )
    what += f"to {after:.2f}, and a resumed run ends with {'the same' if same else 'other'} weights"
    well = abs(ratio - 1) < 1e-4 and after > before and same
    advice = "The ratio should be 1, the reward should rise, and the weights should be the same. Training cannot be "
    advice += "trusted on this machine: fix what is listed above, then try with device: cpu."
    yield Finding(area="self-test", state="ok" if well else "problem", what=what, advice="" if well else advice)


if __name__ == "__main__":
    for look in (weights, device, self_test, torchvision):
        for finding in look():
            print(f"\n{MARK}{json.dumps(dataclasses.asdict(finding))}", flush=True)
