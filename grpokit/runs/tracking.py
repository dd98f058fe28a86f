"""A run's trackers: steps come from the trainer, evaluations and the config from here.

`trackers.json` in the run folder keeps what a resume needs to continue the same W&B run without doubled entries.
TensorBoard itself hides what is after the checkpoint.
"""

from __future__ import annotations

import io
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from grpokit.config.schema import RunConfig, TrackersConfig, to_dict
from grpokit.evaluation.evaluation import Evaluation
from grpokit.files import read_json, write_text
from grpokit.images import Drawable
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.run_folder.journal import finite, sample_indices
from grpokit.run_folder.names import EVALUATIONS, METRICS, TRACKERS
from grpokit.run_folder.reader import read_rows
from grpokit.tracking import trackers


class Tracking:
    """The trackers of one run."""

    def __init__(self) -> None:
        self._trackers: list[trackers.Tracker] = []

    def finish(self, kind: object, error: BaseException | None, at: object) -> None:
        """End them with the run, as an `ExitStack` calls it."""
        for tracker in self._trackers:
            tracker.finish(failed=error is not None)

    def start(self, config: RunConfig, folder: Path, trainer: PhasedTrainer, *, warn: Callable[[str], None]) -> None:
        """Start what the config names, and give it to the trainer; the journal has not been cut yet.

        Args:
            config: the run's.
            folder: the run's.
            trainer: at the step where it begins.
            warn: gets a sentence about a tracker that fails later on.

        Raises:
            UsageError: a tracker cannot be started.
        """
        chosen = config.trackers
        if not chosen.use:
            return
        state = _state(folder) if "wandb" in chosen.use else {}
        session = _wandb_session(state) if "wandb" in chosen.use else {}
        self._trackers = trackers.start(
            chosen.use,
            folder,
            project=chosen.project or os.environ.get("WANDB_PROJECT") or "grpokit",
            options=_options(chosen, folder, trainer.completed, session),
            warn=warn,
        )
        for tracker in self._trackers:
            if isinstance(tracker, trackers.WandB):
                tracker.has_step = state.get("step", 0)
                tracker.has_evaluation = state.get("evaluation", -1)
                now = state | {"wandb": tracker.started.run.id, "group": session.get("group")}
                write_text(folder / TRACKERS, json.dumps(now))
        settings = to_dict(config)
        settings["run"]["dir"] = str(folder)
        for tracker in self._trackers:
            tracker.config(settings, trainer.completed)
        trainer.loggers = list(self._trackers)

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Log an evaluation: its scores, and the samples that the run folder keeps."""
        if self._trackers:
            samples = [_shown(evaluation, i) for i in sample_indices(evaluation)]
            summary = evaluation.summary
            scores = {**summary.means, **{f"{name}/ci95": width for name, width in summary.ci95.items()}}
            numbers = {name: score for name, score in scores.items() if score is not None}
            for tracker in self._trackers:
                tracker.evaluation(step, numbers, samples)


def _wandb_session(state: Mapping[str, Any]) -> dict[str, str]:
    """Which run of W&B a session writes: that of the last one, or offline one of its own, with the others in a group.

    A session without a connection cannot go on with a run: its file begins at step 0, and replaces those of the same id
    when it is synchronised.
    """
    import wandb

    group = state.get("group")
    if group is None and wandb.setup().settings.mode != "offline":
        return {"id": state["wandb"]} if "wandb" in state else {}
    own = secrets.token_hex(4)
    return {"id": own, "group": group or state.get("wandb", own)}


def _options(
    chosen: TrackersConfig, folder: Path, completed: int, session: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """What each tracker's own arguments are; an environment variable of W&B counts where the config says nothing."""
    name = chosen.name or folder.resolve().name
    wandb: dict[str, Any] = {"dir": str(folder), "resume": "allow", "tags": chosen.tags or None}
    wandb |= session
    if chosen.name or "WANDB_NAME" not in os.environ:
        wandb["name"] = name
    return {
        "tensorboard": {"purge_step": completed + 1} if completed else {},
        "wandb": wandb,
        "mlflow": {"run_name": name, "tags": dict.fromkeys(chosen.tags, "")},
    }


def _state(folder: Path) -> dict[str, Any]:
    """What W&B has of this run: its id, the last step and the last evaluation; empty where it has nothing.

    Steps after the checkpoint count too, so this looks at the journal before a resume cuts it.
    """
    if not (folder / TRACKERS).is_file():
        return {}
    state: dict[str, Any] = read_json(folder / TRACKERS)
    for key, file in (("step", METRICS), ("evaluation", EVALUATIONS)):
        steps = [state.get(key, -1)]
        steps += [row["step"] for row in read_rows(folder / file)]
        state[key] = max(steps)
    return state


def _shown(evaluation: Evaluation, index: int) -> trackers.Shown:
    scores = evaluation.scores
    sample = evaluation.samples[index]
    row = {"reward": float(scores.totals[index])}
    row |= zip(scores.names, scores.matrix[index].tolist(), strict=True)
    output = sample.output
    if isinstance(output, Drawable):
        output = Image.open(io.BytesIO(output._repr_png_()))
    return trackers.Shown(
        prompt=sample.prompt.text,
        output=output if isinstance(output, (Image.Image, str)) else repr(output),
        scores=finite(row),
    )
