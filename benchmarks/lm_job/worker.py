"""One contender's process: `python -m lm_job.worker NAME JOB`; steps on request (see `turns`)."""

from __future__ import annotations

import sys

from lm_job.job import Job


def main(name: str, line: str) -> None:
    """Run a contender until there are no more turns."""
    job = Job.loads(line)
    import torch

    torch.set_num_threads(job.threads)
    from lm_job.turns import Turns

    turns = Turns(job)
    if name == "peaks":
        from lm_job import floor

        while turns.begin():
            turns.clock.stop()
            turns.reply(peaks=floor.measure(job))
        return
    if name == "check":
        from lm_job import equality

        while turns.begin():
            turns.reply(**equality.check(job))
        return
    turns.clock.watch_training()
    if name == "plain":
        from lm_job.plain import run
    elif name == "grpokit":
        from lm_job.with_grpokit import run
    else:
        from lm_job.with_trl import run as run_trl

        run_trl(job, turns, checkpointing=name == "trl-checkpointing")
        return
    run(job, turns)


if __name__ == "__main__":
    main(*sys.argv[1:])
