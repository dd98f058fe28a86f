"""One contender's process: `python -m images_job.worker NAME JOB`; a step for each "go" (see `lm_job.turns`)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import torch
from lm_job.clock import Clock, status
from lm_job.turns import Turns
from torch.optim.optimizer import register_optimizer_step_post_hook

from images_job import equality, pages, with_grpokit
from images_job.job import Job


def contender(name: str, job: Job, clock: Clock) -> Callable[[int, int], dict[str, float]]:
    """A function of a number of prompts and of samples for each, which takes a step and counts what it did."""
    if name.startswith("grpokit"):
        return with_grpokit.stepper(job, clock, all_steps=name.endswith("all steps"))
    if job.part == "tokens":
        return pages.Tokens(job, clock, at_once=1 if name == "loop" else job.rows).step
    return pages.Flow(job, clock, window=job.window if name.endswith("window") else None).step


def main(name: str, line: str) -> None:
    """Run a contender until there are no more turns."""
    job = Job.loads(line)
    torch.set_num_threads(job.threads)
    warnings.filterwarnings("ignore")
    turns = Turns(job)
    if name == "check":
        while turns.begin():
            turns.reply(**equality.check(job))
        return
    turns.clock.watch(torch.Tensor, "backward", "train")
    step = contender(name, job, turns.clock)
    updates: list[int] = []
    register_optimizer_step_post_hook(lambda *_: updates.append(turns.step))
    step(1, 2)  # what libraries set up in their first step is not measured
    while turns.begin():
        done = step(job.prompts, job.group)
        turns.end(tokens=done["decisions"], **done, updates=updates.count(turns.step), peak=status("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
