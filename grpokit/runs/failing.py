"""What happens when a run fails: it is saved, and the message says what is left and how to go on."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from grpokit import report
from grpokit.errors import GrpokitError, RunError, UsageError, reworded, typed_line
from grpokit.files import step_name
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.processes.team import Team, all_know
from grpokit.runs.journal import Journal
from grpokit.runs.signals import without_ends
from grpokit.training import checkpoint


@contextmanager
def no_exit() -> Iterator[None]:
    """Code in here that would end the process, such as a policy's, fails the run with words instead."""
    try:
        yield
    except SystemExit as end:
        place = traceback.extract_tb(end.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}, in {place.name}"
        raise RunError(f"The run was ended from inside by sys.exit ({where}). Raise an error there instead.") from end


@dataclass(frozen=True)
class Others:
    """The processes without which sharded weights cannot be saved."""

    team: Team

    def called(self, error: Exception, *, wanted: bool) -> None:
        """In process 0, after an error: let the others help to save, or tell them that it is not wanted.

        Raises:
            RunError: they cannot hear it.
        """
        if not all_know(error):
            raise RunError("its weights are spread over processes that cannot meet any more")
        self.team.gather(wanted)

    @contextmanager
    def helping(self, save: Callable[[], Path]) -> Iterator[None]:
        """In the other processes."""
        try:
            yield
        except Exception as error:
            if all_know(error) and self.team.gather(False)[0]:  # process 0 says it
                save()
            raise


@contextmanager
def saved_on_error(
    folder: Path, journal: Journal, trainer: PhasedTrainer, save: Callable[[], Path], others: Others | None
) -> Iterator[None]:
    """After an error in here, the run is saved, the report is written, and the message says how to go on."""
    try:
        yield
    except Exception as error:
        with without_ends():
            left = _left(error, folder, journal, trainer, save, others)
        if isinstance(error, GrpokitError):
            raise reworded(error, f"{error}\n{left}.") from error
        error.add_note(f"{left}.")  # a bug: it shows its traceback
        raise


def _left(
    error: Exception,
    folder: Path,
    journal: Journal,
    trainer: PhasedTrainer,
    save: Callable[[], Path],
    others: Others | None,
) -> str:
    """What is left of a run that failed, after saving what can be saved and writing the report."""
    remedy, resume = "correct the cause, then", "--resume"
    if isinstance(error, UsageError):
        remedy, resume = "correct the input, then", "--resume (and --force, where that changes prompts)"
    checkpoints = folder / "checkpoints"
    last, place = checkpoint.latest(checkpoints), checkpoints / step_name(trainer.completed)
    go_on = f"{remedy} go on from {last} with {resume}" if last else "start again with --overwrite"
    learning = trainer.current.trainer
    updates = learning.updates
    try:
        half = updates.incomplete or journal.last_step != trainer.completed  # an update, or a gap in the journal
        saved = place.exists()
        if others is not None:
            others.called(error, wanted=not half and not saved)
        if half:
            left = f"This state was not saved: {go_on}"
        elif saved:
            left = f"The state after step {trainer.completed} is saved in {place}; {remedy} go on with {resume}"
        elif updates.done:
            left = (
                f"The weights after {updates.done} of {learning.updates_per_step} updates of step "
                f"{trainer.completed + 1} are saved in {save()}; {remedy} go on with {resume}, which draws that step "
                "again"
            )
        else:
            left = f"The state after step {trainer.completed} is saved in {save()}; {remedy} go on with {resume}"
    except Exception as second:  # a policy may fail in its `state_dict`, too
        why = "" if str(second) == str(error) else f" ({_words(second)})"
        left = f"The state after step {trainer.completed} could not be saved{why}; {go_on}"
    with suppress(GrpokitError, OSError):  # a full disk may be the very cause
        journal.end("failed", trainer.steps, _words(error))
        report.write(folder)
    return left


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, GrpokitError) else typed_line(error)
