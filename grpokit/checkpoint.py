"""Checkpoints: weights, optimizer state and position in a folder that is complete or not there.

Everything random follows from the seed and the step's number, so nothing else is needed to go on exactly. Tensors
are safetensors, the rest is JSON; nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpokit.errors import RunError
from grpokit.policy import Policy

FORMAT = 1


def save(folder: Path, *, policy: Policy, optimizer: Any, step: int) -> None:
    """Write a checkpoint, replacing one of the same name; `folder` appears only once all of it is on disk.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        (temporary / "policy").mkdir(parents=True)
        policy.save(temporary / "policy")
        tensors, numbers = _split(optimizer.state_dict()["state"])
        save_file(tensors, temporary / "optimizer.safetensors")
        state = {"format": FORMAT, "step": step, "optimizer": numbers}
        (temporary / "state.json").write_text(json.dumps(state))
        _flush(temporary)
        former = folder.with_name(f".{folder.name}.former")
        shutil.rmtree(former, ignore_errors=True)
        if folder.exists():
            os.replace(folder, former)
        os.replace(temporary, folder)
        shutil.rmtree(former, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # a full disk is the second, where safetensors meets it
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(f"The checkpoint {folder} cannot be written: {error}.") from error


def load(folder: Path, *, policy: Policy, optimizer: Any) -> int:
    """Read a checkpoint into the policy and the optimizer; returns the number of completed steps.

    Raises:
        RunError: something is missing, torn, or from a newer grpokit.
    """
    try:
        state = json.loads((folder / "state.json").read_text())
        tensors = load_file(folder / "optimizer.safetensors")
        if state["format"] > FORMAT:
            raise RunError(f"The checkpoint {folder} has format {state['format']}; this grpokit reads up to {FORMAT}.")
        full = optimizer.state_dict()
        full["state"] = _join(tensors, state["optimizer"])
        step = int(state["step"])
        optimizer.load_state_dict(full)
        policy.load(folder / "policy")
        return step
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise RunError(f"{folder} is no usable checkpoint: {type(error).__name__}: {error}.") from error


def latest(folder: Path) -> Path | None:
    """The checkpoint of the highest step in a run's `checkpoints` folder, or None."""
    found = {p.name.removeprefix("step_"): p for p in folder.glob("step_*") if (p / "state.json").exists()}
    numbers = [name for name in found if name.isdecimal()]
    return found[max(numbers, key=int)] if numbers else None


def _split(state: dict[int, dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, dict[str, float]]]:
    """Optimizer state -> tensors named "index.key", and the plain numbers."""
    tensors, numbers = {}, {}
    for index, entries in state.items():
        plain = {}
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{key}"] = value.contiguous()
            else:
                plain[key] = value
        numbers[str(index)] = plain
    return tensors, numbers


def _join(tensors: dict[str, Tensor], numbers: dict[str, dict[str, float]]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {int(index): dict(plain) for index, plain in numbers.items()}
    for name, tensor in tensors.items():
        index, _, key = name.partition(".")
        state[int(index)][key] = tensor
    return state


def _flush(folder: Path) -> None:
    """Force every file to disk before the rename makes the checkpoint visible."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
