"""How fast and how small a GRPO step of an image generator is: grpokit, and a page of code over the stock classes.

    python benchmarks/images.py                      # both jobs, printed
    python benchmarks/images.py --part flow --write  # one of them, written into docs/benchmarks.md
    python benchmarks/images.py --tiny               # in seconds, to see that the script works

The parts: `tokens` trains a small GLM-Image's autoregressive half, `flow` a small Stable Diffusion 3; both with random
weights on a CPU. Each contender has a process of its own, and they take turns. Before the first round, the pages' log-
probs and gradients are compared with grpokit's on the same samples. A step that makes another number of pictures,
decisions or updates stops the benchmark.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

from images_job.job import CONTENDERS, PHASES, Job, job_of
from lm_job import tables
from lm_job.rounds import FailedError, Step, UnequalError, started

from grpokit.errors import plural

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PACKAGES = ("torch", "transformers", "diffusers", "peft", "grpokit")


def main() -> None:
    """Print the tables, and perhaps write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--part", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), help="default: all")
    add("--rounds", type=int, default=3, help="steps of each contender (default: %(default)s)")
    add("--threads", type=int, default=1, help="of torch (default: %(default)s)")
    add("--tiny", action="store_true", help="models of a megabyte, and small pictures")
    add("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    given = parser.parse_args()
    if given.tiny and given.write:
        parser.error("--write is for real figures; those of --tiny mean nothing")
    if min(given.rounds, given.threads) < 1:
        parser.error(f"--rounds and --threads must be at least 1, got {given.rounds} and {given.threads}")
    try:
        for part in given.part:
            job = job_of(part, tiny=given.tiny, threads=given.threads)
            equal = check(job)
            machine, steps = play(job, given.rounds)
            text = markdown(job, machine, steps, sys.argv[1:], equal)
            print(f"\n## {part}\n\n{text}", flush=True)
            if given.write:
                tables.write(PAGE, f"images {part}", text)
    except (FailedError, UnequalError) as error:
        sys.exit(f"images.py: {error}")


def check(job: Job) -> str:
    """Compare the pages' log-probs and gradients with grpokit's, in a process of its own.

    Raises:
        UnequalError: they differ.
    """
    with started("check", "", job, Path(sys.executable), module="images_job.worker") as worker:
        worker.ask()
        reply = worker.ask("go")
    if reply["problem"]:
        raise UnequalError(reply["problem"])
    return str(reply["words"])


def play(job: Job, rounds: int) -> tuple[Mapping[str, Any], dict[str, list[Step]]]:
    """Let the contenders take turns; returns the machine, and what each did.

    Raises:
        UnequalError: one of them did other work than the job's.
        FailedError: a process ended early.
    """
    with ExitStack() as stack:
        workers = [
            stack.enter_context(started(name, "", job, Path(sys.executable), module="images_job.worker"))
            for name in CONTENDERS[job.part]
        ]
        ready = [worker.ask() for worker in workers]
        for number in range(rounds):
            for worker in workers:
                step = Step(**worker.ask("go"))
                check_work(job, worker.name, step)
                worker.steps.append(step)
                at = f"{job.part}, round {number + 1} of {rounds}: {worker.name}"
                print(f"{at} {step.total('wall'):.2f} s, {step.facts['peak']:.0f} MiB", file=sys.stderr)
        return ready[0]["machine"], {worker.name: worker.steps for worker in workers}


def check_work(job: Job, name: str, step: Step) -> None:
    """Refuse a step with other numbers than the job's."""
    wanted = {"pictures": job.rows, "decisions": job.decisions(name), "updates": 1}
    did = {what: step.facts[what] for what in wanted}
    if did != wanted:
        raise UnequalError(f"{name} did {did} in a step; the job has {wanted}.")


def markdown(
    job: Job, machine: Mapping[str, Any], steps: Mapping[str, Sequence[Step]], options: Sequence[str], equal: str
) -> str:
    """The table of a part, with what it was measured on; ratios are medians of those in each round."""
    units = next(iter(steps.values()))
    rows = [["contender", "time", "CPU time", "peak memory, MiB", *PHASES]]
    for name, own in steps.items():
        pairs = list(zip(own, units, strict=True))
        wall = [step.total("wall") / unit.total("wall") for step, unit in pairs]
        cpu = statistics.median(step.total("cpu") / unit.total("cpu") for step, unit in pairs)
        parts = [statistics.median(s.wall.get(phase, 0.0) / u.total("wall") for s, u in pairs) for phase in PHASES]
        spread = f" ({min(wall):.2f} to {max(wall):.2f})" if own is not units else ""
        peak = max(step.facts["peak"] for step in own)
        cells = [f"{statistics.median(wall):.2f}{spread}", f"{cpu:.2f}", f"{peak:,.0f}"]
        rows.append([name, *cells, *(f"{part:.2f}" for part in parts)])
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    command = shlex.join(["python", "benchmarks/images.py", *options])
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    lines = [
        f"{machine['cpu']}, {job.threads} of {machine['cores']} cores, {machine['instructions']}, fp32; {versions}; "
        f"{datetime.date.today().isoformat()}; {plural(len(units), 'round')}; `{command}`.",
        f"Before: {equal}.",
        "\n".join("| " + " | ".join(row) + " |" for row in rows),
    ]
    if job.tiny:
        lines.insert(1, "Models of a megabyte: these figures say nothing.")
    return "\n\n".join(lines)


if __name__ == "__main__":
    main()
