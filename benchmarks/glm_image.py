"""What a GRPO step of GLM-Image takes on a GPU: memory and seconds, of the released architecture with random weights.

    python benchmarks/glm_image.py --part memory             # one table for 1024 x 1024, printed
    python benchmarks/glm_image.py --part tokens gap --size 512
    python benchmarks/glm_image.py --part memory --write     # and written into docs/benchmarks.md
    python benchmarks/glm_image.py --tiny                    # all parts on a CPU, to see that the script works

The parts: `memory` of whole training steps, seconds of their `phases`, `tokens` per second of decoding, a `loop` over
the stock pipeline beside all samples together, and the `gap` between log-probs of drawing and of training. Each builds
its model on the GPU, in bfloat16, and needs no files. A part at 1024 x 1024 should take less than ten minutes on an
H100; --rounds 1 and fewer --prompts make it shorter.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch
from glm_image_job.job import TINY, Job
from glm_image_job.parts import PARTS, Row, Table
from lm_job import tables

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PACKAGES = ("torch", "transformers", "diffusers", "peft", "grpokit")


def main() -> None:
    """Print the tables, and perhaps write them."""
    parser = _parser()
    given = parser.parse_args()
    if given.tiny and given.write:
        parser.error("--write is for figures of a GPU; those of --tiny mean nothing")
    if not given.tiny and not torch.cuda.is_available():
        parser.error("this needs a GPU, and torch finds none; --tiny tries every part on a CPU")
    changes = {field.name: getattr(given, field.name, None) for field in dataclasses.fields(Job)}
    changes = {name: value for name, value in changes.items() if value is not None and name not in ("tiny", "size")}
    base = TINY if given.tiny else Job()
    try:
        jobs = [dataclasses.replace(base, size=size, **changes) for size in given.size or [base.size]]
    except ValueError as error:
        parser.error(str(error))
    for job in jobs:
        for part in given.part:
            text = markdown(PARTS[part](job), job, sys.argv[1:])
            print(f"\n## {part}, {job.size} x {job.size}\n\n{text}", flush=True)
            if given.write:
                tables.write(PAGE, f"glm-image {part} {job.size}", text)


def markdown(table: Table, job: Job, options: Sequence[str]) -> str:
    """A table with what it was measured on, and how."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    machine = "CPU" if job.tiny else f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    command = shlex.join(["python", "benchmarks/glm_image.py", *options])
    lines = [f"{machine}; {versions}; {datetime.date.today().isoformat()}; `{command}`."]
    if job.tiny:
        lines.append("A random model of a megabyte on a CPU: these figures say nothing about GLM-Image.")
    head, *body = table.rows
    rule: Row = ["---", *["---:"] * (len(head) - 1)]
    rows = "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))
    return "\n\n".join([*lines, table.note, rows])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, default = parser.add_argument, Job()
    add("--part", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    add("--tiny", action="store_true", help="a random model of a megabyte on a CPU")
    add("--size", type=int, nargs="+", help=f"height and width in pixels (default: {default.size})")
    add("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    helps = {
        "group": "samples per prompt",
        "prompts": "in the largest step",
        "steps": "of denoising, where pictures are timed",
        "micro": "the most rows in one forward and backward pass",
        "rank": "of the adapter",
        "rounds": "counted repetitions, after one that is not counted",
        "loop_samples": "samples of the stock pipeline's loop that are measured",
    }
    for name, meaning in helps.items():
        add("--" + name.replace("_", "-"), type=int, help=f"{meaning} (default: {getattr(default, name)})")
    add("--guidance", type=float, help=f"where pictures have guidance (default: {default.guidance})")
    add("--mixed-precision", choices=["no", "bf16"], help=f"default: {default.mixed_precision}")
    add("--offload", choices=["none", "idle"], help=f"of the half that is not at work (default: {default.offload})")
    return parser


if __name__ == "__main__":
    main()
