"""How fast and how small a GRPO step of a language model is: grpokit, TRL and a plain loop on the same job.

    python benchmarks/lm.py --prepare                # once: an environment with TRL, beside this one
    python benchmarks/lm.py                          # the job of the options below, printed
    python benchmarks/lm.py --table all              # all tables, written into docs/benchmarks.md
    python benchmarks/lm.py --device cuda --table main

A Llama with random weights learns to draw even tokens: prompts of one length, exactly N new tokens per sample, one
update per rollout, KL to a frozen reference, entropy logged, gradients clipped at 1.0. Each contender has a process
of its own, and they take turns. A step that draws another number of tokens stops the benchmark, and so do first steps
of other entropies. With grpokit among the contenders, its loss and gradient are first compared with the plain loop's.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from lm_job import tables
from lm_job.job import Job
from lm_job.rounds import CONTENDERS, PEERS, FailedError, UnequalError, check, play
from peers import CACHE, prepare

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PINS = Path(__file__).parent / "lm_peers.txt"

GPU_SIZES = {
    "hidden": 1536,
    "intermediate": 8960,
    "layers": 28,
    "heads": 12,
    "kv_heads": 2,
    "vocab": 151936,
    "prompt_tokens": 200,
    "new_tokens": 512,
}
"""About 1.8 billion weights, in the shape of a Qwen2.5-1.5B with an output layer of its own."""


def main() -> None:
    """Print or write the tables."""
    parser = _parser()
    given = parser.parse_args()
    if given.prepare:
        prepare(given.peers, PINS, same=("torch", "transformers", "peft"))
        return
    sizes = {field.name: getattr(given, field.name, None) for field in dataclasses.fields(Job)}
    defaults: dict[str, Any] = GPU_SIZES if given.device == "cuda" else {}
    try:
        job = Job(**defaults | {name: size for name, size in sizes.items() if size is not None})
        wanted = tables.wanted(given.table, given.device)
        sets = {table: tables.jobs(table, job) for table in wanted} or {"": {"": job}}
    except ValueError as error:
        parser.error(str(error))
    names = given.contenders.split(",")
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown or len(set(names)) < len(names):
        parser.error(f"--contenders are some of {', '.join(CONTENDERS)}, each once; got {given.contenders!r}")
    python = given.peers.absolute() / "bin" / "python"
    if PEERS & set(names) and not python.exists():
        parser.error(
            f"there is no environment with TRL in {given.peers}: make it by `python benchmarks/lm.py --prepare`, or "
            "leave TRL out with --contenders grpokit,plain"
        )
    if given.device == "cuda" and not _has_cuda():
        parser.error("--device cuda needs a GPU, and torch finds none; leave it out for the CPU")
    if given.device == "cuda" and given.clock == "cpu":
        parser.error("--clock cpu counts what the CPU does while a GPU works; leave it out")

    try:
        if "grpokit" in names:
            print(check(job))
        for table, jobs in sets.items():
            results = play(
                jobs,
                names,
                rounds=given.rounds,
                warmup=given.warmup,
                clock=given.clock,
                peers_python=python,
                environment=tables.AVX2 if table == "avx2" else {},
            )
            text = tables.markdown(results)
            print(text)
            if table:
                tables.write(PAGE, f"lm {table} {given.device}", text)
    except (FailedError, UnequalError, ValueError) as error:
        sys.exit(f"lm.py: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options]", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--prepare", action="store_true", help="make the environment of TRL, and stop")
    add("--peers", type=Path, default=CACHE / "lm_peers", help="where that environment is (default: %(default)s)")
    add("--contenders", default="grpokit,trl,trl-checkpointing,plain", help="comma-separated (default: %(default)s)")
    add("--table", choices=[*tables.TABLES, "all"], help="measure a table's jobs, and write it into docs/benchmarks.md")
    add("--rounds", type=_count, default=5, help="counted steps of each contender (default: %(default)s)")
    add("--warmup", type=_count, default=1, help="steps before those (default: %(default)s)")
    add("--clock", choices=["wall", "cpu"], default="wall", help="cpu: CPU seconds, where others use the machine too")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    small = Job()
    add("--ragged", action="store_true", help="log-normal lengths")
    for name in ("threads", "prompts", "prompt_tokens", "group", "new_tokens", "micro", "lora", "vocab", "hidden"):
        add("--" + name.replace("_", "-"), type=int, help=_sizes(small, name))
    for name in ("intermediate", "layers", "heads", "kv_heads"):
        add("--" + name.replace("_", "-"), type=int, help=_sizes(small, name))
    return parser


def _sizes(small: Job, name: str) -> str:
    """The defaults of a size."""
    value = getattr(small, name)
    return f"default: {value}" + (f", on a GPU {GPU_SIZES[name]}" if name in GPU_SIZES else "")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == "__main__":
    main()
