"""The trained model of a run: which of its checkpoints is meant, and a policy with the weights of that one."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from grpokit.config import presets, schema
from grpokit.config.schema import RunConfig
from grpokit.errors import UsageError, brief
from grpokit.files import step_name, step_number
from grpokit.policy import Policy
from grpokit.run_folder.names import CHECKPOINTS, CONFIG
from grpokit.runs import build
from grpokit.training import checkpoint

CheckpointStep = int | Literal["last", "best"]


def load(run: str | Path, *, step: CheckpointStep = "last", overrides: Sequence[str] = ()) -> Policy:
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
        CheckpointError: the checkpoint is damaged.
    """
    if isinstance(overrides, str):
        raise UsageError(f"overrides must be a list of texts such as ['trainer.device=cpu'], got {brief(overrides)}.")
    folder = Path(run)
    if not os.path.isdir(folder):  # unlike Path's, it is False for a name that no file can have
        hint = " A preset has no trained weights." if presets.names_preset(str(run)) else ""
        raise UsageError(f"There is no run folder {folder} (looked in {Path.cwd()}).{hint}")
    config, place = checkpoint_of(folder, overrides, step=step)
    policies = build.policies(config)
    checkpoint.load_policies(place, policies)
    return build.evaluation_policy(policies)


def checkpoint_of(
    folder: Path, overrides: Sequence[str] = (), *, step: CheckpointStep = "last"
) -> tuple[RunConfig, Path]:
    """The config of a run, and one of its checkpoints.

    Args:
        folder: of the run, or the checkpoint itself.
        overrides: changes to the config.
        step: which checkpoint, as in `load`.

    Raises:
        UsageError: it is neither, or the run has no such checkpoint.
    """
    folder = folder.absolute()  # the code of a component may call os.chdir
    if (folder / checkpoint.STATE).is_file():
        if step != "last":
            raise UsageError(f"{folder} is a checkpoint already; give its run folder to choose one by step.")
        return config_of(folder, overrides), folder
    if not (folder / CONFIG).is_file():
        raise UsageError(f"{folder} is neither a run folder (it has no {CONFIG}) nor a checkpoint.")
    config, _ = presets.read_config(folder, overrides)
    places = checkpoint.steps(folder / CHECKPOINTS)
    if not places:
        raise UsageError(f"The run {folder} has no checkpoint yet. Train it first.")
    if step == "last":
        place = places[-1]
    else:
        name = step_name(step) if type(step) is int else str(step)
        place = folder / CHECKPOINTS / name
    if not (place / checkpoint.STATE).is_file() and place not in places:
        numbers = ", ".join(str(step_number(other.name)) for other in places)
        raise UsageError(
            f"The run {folder} has no checkpoint {brief(step)}. It has those of the steps {numbers}. run.save_every, "
            "run.keep_last and run.best decide which ones stay."
        )
    return config, place


def config_of(place: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The config that a checkpoint keeps, with changes to it."""
    settings = checkpoint.read_state(place).get("notes", {}).get("config")
    return schema.parse(json.dumps(settings), f"the config in {place}", overrides)
