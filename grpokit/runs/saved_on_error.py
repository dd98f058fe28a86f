"""What happens when a run fails: it is saved, and the message says what is left and how to continue."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from grpokit import report
from grpokit.errors import GrpokitError, RunError, UsageError, error_line, raised_at, reword
from grpokit.processes.team import all_know
from grpokit.rewards.remote import ENDING
from grpokit.runs.run import Run
from grpokit.runs.signals import ENDS, handled
from grpokit.training import checkpoint


@contextmanager
def no_exit() -> Iterator[None]:
    """Code inside that would end the process, such as a policy's, fails the run with a message instead."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit, or a cancelled task
        raise RunError(
            f"The run was ended from inside by {error_line(error)} {raised_at(error)}. Raise an ordinary error instead."
        ) from error


@contextmanager
def saved_on_error(run: Run) -> Iterator[None]:
    """After an error inside, the run is saved, the report is written, and the message says how to continue."""
    try:
        yield
    except Exception as error:
        if run.team.rank:  # process 0 says it
            together = run.config.run.sharding and all_know(error)
            if together and run.team.gather(False)[0]:
                run.write_checkpoint()
            raise
        with handled(signal.SIG_IGN, *ENDS):  # torchrun sends SIGTERM as soon as another process is lost
            left = _left(error, run)
        if isinstance(error, GrpokitError):
            raise reword(error, f"{error}\n{left}.") from error
        error.add_note(f"{left}.")  # a bug: it shows its traceback
        raise


def _left(error: Exception, run: Run) -> str:
    """What is left of a run that failed, after saving what can be saved and writing the report."""
    remedy, resume = "correct the cause, then ", "--resume"
    if ENDING.is_set():  # the run was to end, and what it waited for is no fault
        remedy = ""
    elif isinstance(error, UsageError):
        remedy, resume = "correct the input, then ", "--resume (and --force, where that changes prompts)"
    trainer = run.trainer
    place = run.checkpoint
    last = checkpoint.latest(run.checkpoints)
    go_on = f"{remedy}continue from {last} with {resume}" if last else "start again with --resume"
    learning = trainer.current.trainer
    try:
        half = learning.updates.incomplete or run.journal.last_step != trainer.completed  # or a gap in the journal
        saved = place.exists()
        if run.config.run.sharding:  # the weights of all processes are needed
            if not all_know(error):
                raise RunError("its weights are spread over processes that cannot meet any more")
            run.team.gather(not half and not saved)
        if not half and not saved:
            run.write_checkpoint()
        state, again = f"The state after step {trainer.completed} is saved in {place}", ""
        if half:
            state = "This state was not saved"
        elif learning.updates.done and not saved:
            state = (
                f"The weights after {learning.updates.done} of {learning.updates_per_step} updates of step "
                f"{trainer.completed + 1} are saved in {place}"
            )
            again = ", which draws that step again"
        left = f"{state}: {go_on}" if half else f"{state}; {remedy}continue with {resume}{again}"
    except Exception as second:  # a policy may fail in its `state_dict`, too
        why = "" if str(second) == str(error) else f" ({_words(second)})"
        left = f"The state after step {trainer.completed} could not be saved{why}; {go_on}"
    with suppress(GrpokitError, OSError):  # a full disk may be the very cause
        goes_on = ENDING.is_set() and checkpoint.latest(run.checkpoints)
        run.journal.end("stopped" if goes_on else "failed", trainer.steps, _words(error))
        report.write(run.folder)
    return left


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, GrpokitError) else error_line(error)
