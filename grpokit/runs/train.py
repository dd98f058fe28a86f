"""Trains as a config says, in the run's own folder."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from grpokit.config.schema import RunConfig
from grpokit.processes.rendezvous import join
from grpokit.runs import signals
from grpokit.runs.run import Result as Result
from grpokit.runs.run import Run
from grpokit.runs.run import Watcher as Watcher
from grpokit.runs.saved_on_error import no_exit, saved_on_error


def train(
    config: RunConfig,
    *,
    name: str = "run",
    resume: bool = False,
    overwrite: bool = False,
    force: bool = False,
    watcher: Watcher | None = None,
) -> Result:
    """Train as the config says, and leave a run folder.

    In the main thread the first Ctrl-C, SIGTERM or SIGHUP (of a closed terminal) ends the run after its step, and a
    second one, or one before the first step, is a KeyboardInterrupt.

    Args:
        config: the run.
        name: names the folder where the config does not.
        resume: continue from the folder's last checkpoint; without one, start over.
        overwrite: start over, and delete what is in the folder.
        force: resume even though the config or the prompts have changed.
        watcher: callbacks for progress.

    Raises:
        UsageError: bad input, a folder in which another process trains, one that is in use without `resume` or
            `overwrite`, or a resume whose config or prompts differ from the run's without `force`.
        RunError, RewardError: the run failed; the message says what is left.
    """
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    team = join(config.run.process_timeout)  # before anything is built, since it takes this process's GPU
    folder = Path(config.run.dir or Path("runs") / name).absolute()  # the code of a component may call os.chdir
    run = Run(config, folder, watcher or Watcher(), team)
    early = signals.handled(signal.default_int_handler, *signals.ENDS)  # leaves all tidy, too
    with early, ExitStack() as stack:
        with team.failing_together(), no_exit():
            run.read(stack, resume=resume, overwrite=overwrite)
            run.build(force=force)
            run.begin()
        with signals.stopping(tell=team.rank == 0) as stop, saved_on_error(run), team.failing_together(), no_exit():
            ended = run.ended
            while not ended and not any(team.gather(stop.is_set())):
                run.step()
                ended = run.ended
            run.save()
        with saved_on_error(run), team.failing_together(), no_exit():
            if ended:
                run.evaluate()
        with team.failing_together(), no_exit():
            return team.first(partial(run.end, ended=ended))
