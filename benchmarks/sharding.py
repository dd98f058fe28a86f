"""Memory of each process with and without `run.sharding`: a transformer of 100 million weights, trained in full.

    python benchmarks/sharding.py
    OMP_NUM_THREADS=1 torchrun --nproc-per-node 4 benchmarks/sharding.py --sharding fsdp2

It prints what process 0 holds between two steps, and the most that it holds during one, beyond what Python and torch
take by themselves. Linux only, since it reads /proc.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from grpokit import Prompt, Sample, Trainer
from grpokit_toy.lm import CHARACTERS, END, LENGTH, PROMPT_CHARACTERS, ToyLM
from grpokit_toy.transformer import Shape, Transformer

PROCESS = Path("/proc/self")


class LargeLM(ToyLM):
    """toy-lm with more and wider layers, from random weights.

    Args:
        width: features per position.
        layers: number of blocks.
    """

    def __init__(self, width: int, layers: int) -> None:
        torch.manual_seed(0)
        shape = Shape(
            prompt_vocab=len(PROMPT_CHARACTERS) + 1,
            vocab=END + 1,
            prompt_length=5,
            response_length=LENGTH,
            width=width,
            layers=layers,
            heads=8,
        )
        super(ToyLM, self).__init__(Transformer(shape), eos=END)


def digits(samples: Sequence[Sample]) -> list[float]:
    """How many of the characters are digits."""
    return [float(sum(letter in CHARACTERS[:10] for letter in sample.output)) for sample in samples]


def main() -> None:
    """Train a few steps and print the memory of process 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sharding", choices=["fsdp2"])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    wanted = parser.parse_args()
    before = status("VmRSS")
    policy = LargeLM(wanted.width, wanted.layers)
    weights = sum(p.nbytes for p in policy.model.parameters())
    trainer = Trainer(
        policy,
        [digits],
        [Prompt(text=f"{i}+{i}") for i in range(10, 18)],
        steps=wanted.steps,
        prompts_per_step=4,
        group_size=4,
        learning_rate=1e-5,
        sharding=wanted.sharding,
        progress=False,
        device="cpu",
    )
    for step in range(wanted.steps):
        start = time.perf_counter()
        if step:  # the optimizer has its moments by now
            (PROCESS / "clear_refs").write_text("5")
        report = trainer.step()
        gc.collect()
        if trainer.team.rank == 0:
            held, peak = (status(key) - before for key in ("VmRSS", "VmHWM"))
            print(
                f"{trainer.team.size} process(es), step {step + 1}: loss {report.metrics['loss']:.7f}, "
                f"{time.perf_counter() - start:.1f} s; weights {weights / 2**20:,.0f} MiB, "
                f"held {held / weights:.2f} times that, at most {peak / weights:.2f} times",
                flush=True,
            )
    if trainer.team.size > 1:
        os._exit(0)


def status(key: str) -> int:
    """An entry of this process's status, in bytes."""
    lines = (PROCESS / "status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    main()
