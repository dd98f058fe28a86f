"""The trained model of a run: which of its checkpoints is meant, and a policy with the weights of that one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from grpokit.config import presets, schema
from grpokit.config.schema import RunConfig
from grpokit.errors import UsageError, shown
from grpokit.files import step_name, step_number
from grpokit.policy import Policy
from grpokit.run_folder.names import CHECKPOINTS, CONFIG
from grpokit.runs import build
from grpokit.training import checkpoint

Step = int | Literal["last", "best"]


def load(run: str | Path, *, step: Step = "last", overrides: Sequence[str] = ()) -> Policy:
    """The policy of a run with the weights of one of its checkpoints, ready to draw.

    Args:
        run: a run folder, or one of its checkpoints.
        step: "last", "best" (by the held-out score that `run.best` names), or a number of completed steps.
        overrides: changes to the run's config, such as `["trainer.device=cpu"]`.

    Returns:
        The policy, on the device of the config. Of several policies over one model it is the one that draws samples for
        evaluations; all of them have the run's weights.

    Raises:
        UsageError: there is no such run, or it has no such checkpoint; the message lists those that it has.
            Or overrides is no list of texts.
        CheckpointError: the checkpoint is damaged.
    """
    texts = isinstance(overrides, Sequence) and all(isinstance(word, str) for word in overrides)
    if isinstance(overrides, str) or not texts:
        raise UsageError(f"overrides must be a list of texts such as ['trainer.device=cpu'], got {shown(overrides)}.")
    if not isinstance(run, (str, Path)):
        raise UsageError(f"run must be a run folder such as 'runs/toy-glyph', got {shown(run)}.")
    folder = Path(run)
    if not os.path.isdir(folder):  # unlike Path's, it is False for a name that no file can have
        hint = (
            f" '{run}' is a preset, which has no trained weights: grpokit.create('policy', ...) gives an untrained "
            "policy."
            if presets.names_preset(str(run))
            else ""
        )
        raise UsageError(f"There is no run folder {folder} (looked in {Path.cwd()}).{hint}")
    config, place = read(folder, overrides, step=step)
    policies = build.policies(config)
    checkpoint.load_policies(place, policies)
    return build.drawing(policies)


def read(folder: Path, overrides: Sequence[str] = (), *, step: Step = "last") -> tuple[RunConfig, Path]:
    """The config of a run, and one of its checkpoints.

    Args:
        folder: of the run, or the checkpoint itself.
        overrides: changes to the config.
        step: which checkpoint, as in `load`.

    Raises:
        UsageError: it is neither, or the run has no such checkpoint.
    """
    if (folder / checkpoint.STATE).is_file():
        if step != "last":
            raise UsageError(f"{folder} is a checkpoint already; give its run folder to choose one by step.")
        settings = json.dumps(checkpoint.read_state(folder).get("notes", {}).get("config"))
        return schema.parse(settings, f"the config in {folder}", overrides), folder
    if not (folder / CONFIG).is_file():
        raise UsageError(f"{folder} is neither a run folder (it has no {CONFIG}) nor a checkpoint.")
    config, _ = presets.read_config(folder, overrides)
    return config, _checkpoint(folder, config, step)


def _checkpoint(folder: Path, config: RunConfig, step: Step) -> Path:
    places = checkpoint.steps(folder / CHECKPOINTS)
    if not places:
        raise UsageError(f"The run {folder} has no checkpoint yet. Train it first.")
    numbers = [str(step_number(place.name)) for place in places]
    kept = f"It has checkpoints of {'step' if len(numbers) == 1 else 'steps'} {', '.join(numbers)}."
    if step == "last":
        return places[-1]
    if step == "best":
        best = folder / CHECKPOINTS / "best"
        if (best / checkpoint.STATE).is_file():
            return best
        why = (
            "run.best names no held-out score, such as run.best=reward"
            if config.run.best is None
            else f"it was not evaluated after a step, so no score '{config.run.best}' was the best"
        )
        raise UsageError(f"The run {folder} has kept no best checkpoint: {why}. {kept}")
    if isinstance(step, bool) or not isinstance(step, int):
        raise UsageError(f"step must be 'last', 'best' or a number of completed steps, got {shown(step)}.")
    place = folder / CHECKPOINTS / step_name(step)
    if place not in places:
        raise UsageError(
            f"The run {folder} has no checkpoint of step {step}. {kept} run.save_every and run.keep_last decide which "
            "ones stay."
        )
    return place
