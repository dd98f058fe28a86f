"""What it gives and costs to score elsewhere: `ssim` on 64 pictures of 512 x 512, in the run's process and in others.

The others are worker processes, services of `grpokit serve-reward` on this machine, or actors of Ray, for which
grpokit-ray must be installed.

    OMP_NUM_THREADS=1 python benchmarks/workers.py [--how workers|services|actors] [--number 2] [--passes 4]

The ways take turns, and the fastest pass of each counts. Scores must be equal.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from PIL import Image

from grpokit import PooledReward, Prompt, Sample, create

SIDE, PICTURES, GROUP = 512, 64, 8
TIMEOUT = 600.0  # seconds


def main() -> None:
    """Print the speed of the other way, the run's own process being 1."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--how", choices=["workers", "services", "actors"], default="workers")
    parser.add_argument("--number", type=int, default=2)
    parser.add_argument("--passes", type=int, default=4)
    wanted = parser.parse_args()
    prompt = Prompt(text="noise", target=_noise(60))
    samples = [Sample(prompt=prompt, output=_noise(20 + i), group=i // GROUP) for i in range(PICTURES)]
    own: Callable[[Sequence[Sample]], Sequence[float]] = create("reward", "ssim")
    with ExitStack() as services:
        other: Any
        if wanted.how == "services":
            urls = [services.enter_context(_service()) for _ in range(wanted.number)]
            other = create("placement", "http", {"urls": urls})("ssim", {}, TIMEOUT)
        elif wanted.how == "actors":
            other = create("placement", "ray", {"replicas": wanted.number})("ssim", {}, TIMEOUT)
        else:
            other = PooledReward("ssim", workers=wanted.number)
        _compare({"own process": own, f"{wanted.number} {wanted.how}": other}, samples, wanted.passes)
        other.close()


def _compare(
    ways: dict[str, Callable[[Sequence[Sample]], Sequence[float]]], samples: Sequence[Sample], passes: int
) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    scores = {name: reward(samples) for name, reward in ways.items()}  # processes start, nothing is timed
    assert all(found == scores["own process"] for found in scores.values())
    for _ in range(passes):
        for name, reward in ways.items():
            start = time.perf_counter()
            reward(samples)
            seconds[name].append(time.perf_counter() - start)
    for name, found in seconds.items():
        print(f"{name:<13} {min(seconds['own process']) / min(found):.2f}")


@contextmanager
def _service() -> Iterator[str]:
    """The address of a service."""
    command = [sys.executable, "-m", "grpokit", "serve-reward", "ssim", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split(" at ")[1].split()[0]
        process.terminate()


def _noise(sigma: float) -> Image.Image:
    return Image.effect_noise((SIDE, SIDE), sigma).convert("RGB")


if __name__ == "__main__":
    main()
