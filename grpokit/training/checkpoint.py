"""Checkpoints: weights, optimizer state and position in a folder that is complete or not there.

Everything random follows from the seed and the step's number, so nothing else is needed to go on exactly. Tensors
are safetensors, the rest is JSON; nothing is pickled. The schedule is a function of the position; `notes` hold the
config and the versions, so that a checkpoint can be used without its run folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpokit.errors import CheckpointError, GrpokitError, RunError, UsageError, one_line, typed_line
from grpokit.files import replacing, step_number
from grpokit.policy import Policy

FORMAT = 3
STATE, OPTIMIZER, PARTS = "state.json", "optimizer.safetensors", "parts.safetensors"


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a checkpoint holds beside the weights.

    Attributes:
        step: completed steps.
        state: the plain data given to `save`.
        optimizer: what the optimizer's `load_state_dict` takes.
        tensors: those given to `save`.
    """

    step: int
    state: Mapping[str, Any]
    optimizer: dict[str, Any]
    tensors: dict[str, Tensor]


def save(
    folder: Path, *, policy: Policy, optimizer: Any, state: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a checkpoint, replacing one of the same name; `folder` appears only once all of it is on disk.

    Args:
        folder: its place.
        policy: writes its own weights, into `folder/policy`.
        optimizer: a torch optimizer that knows its parameters' names.
        state: plain data; `step` is the number of completed steps.
        tensors: of the trainer's parts; no file where there is none.

    Raises:
        UsageError: the folder holds something else than a checkpoint.
        RunError: the disk is full or the folder cannot be written.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / STATE).is_file():
        raise UsageError(f"{folder} holds files that are no checkpoint, and would be replaced. Choose another folder.")
    _put_back(folder)
    former = _former(folder)
    try:
        with replacing(folder) as temporary:
            (temporary / "policy").mkdir(parents=True)
            _save_policy(temporary / "policy", policy)
            moments, numbers = _split(optimizer.state_dict()["state"])
            save_file(moments, temporary / OPTIMIZER)
            if tensors:
                save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, temporary / PARTS)
            names = {"parameters": _parameters(optimizer), "tensors": sorted(moments), "optimizer": numbers}
            text = json.dumps({"format": FORMAT, **state, **names})
            (temporary / STATE).write_text(text, encoding="utf-8")
            _flush(temporary)
            _discard(former)
            if folder.exists():
                os.replace(folder, former)
        _discard(former)
    except (OSError, SafetensorError) as error:  # a full disk is the second, where safetensors meets it
        if former.exists() and not folder.exists():
            os.replace(former, folder)
        raise RunError(f"The checkpoint {folder} cannot be written: {error}.") from error


def _save_policy(folder: Path, policy: Policy) -> None:
    """Let the policy write; what other ways of writing raise where the disk is full counts as that."""
    try:
        policy.save(folder)
    except (RuntimeError, ValueError, TypeError) as error:
        raise OSError(f"the policy's save raised {typed_line(error)}") from error


def read(folder: Path, *, optimizer: Any) -> Loaded:
    """Read a checkpoint and hold it against the optimizer; nothing is changed.

    Raises:
        CheckpointError: something is missing, torn, of another policy, or from a newer grpokit.
    """
    state = read_state(folder)
    if state["format"] < FORMAT:  # it kept other things
        raise CheckpointError(
            f"The checkpoint {folder} was written by an earlier state of grpokit, and training cannot go on from it. "
            "Start anew in another run.dir; `grpokit sample` and `grpokit evaluate` still take it."
        )
    ours, theirs = _parameters(optimizer), state.get("parameters")
    if not isinstance(theirs, dict):
        raise _damaged(folder, f"the parameters in {STATE} are not what was saved")
    if theirs != ours:  # whatever their order
        changes = {
            "only there": [name for name in theirs if name not in ours],
            "only here": [name for name in ours if name not in theirs],
            "of another shape": [n for n in theirs if n in ours and theirs[n] != ours[n]],
        }
        difference = "; ".join(f"{_few(names)} {how}" for how, names in changes.items() if names)
        raise CheckpointError(
            f"The checkpoint {folder} is of another policy: its trainable parameters are not those of this one "
            f"({difference}). Resume with the policy of the run's config."
        )
    place = _place(folder)
    try:
        moments = load_file(place / OPTIMIZER)
        tensors = load_file(place / PARTS) if (place / PARTS).is_file() else {}
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, f"{error}") from error
    try:
        entries = _join(moments, state["optimizer"])
        lost = [name for name in state["tensors"] if name not in moments]
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(folder, f"the optimizer's numbers in {STATE} are not what was saved ({error})") from error
    if lost:
        raise _damaged(folder, f"{OPTIMIZER} lacks {_few(lost)}")
    index = {name: i for i, name in enumerate(ours)}
    entries = {index[name]: entries[i] for i, name in enumerate(theirs) if i in entries}  # by name, in our own order
    return Loaded(
        step=state["step"], state=state, optimizer={**optimizer.state_dict(), "state": entries}, tensors=tensors
    )


def load_policy(folder: Path, policy: Policy) -> None:
    """Read a checkpoint's weights alone.

    Raises:
        CheckpointError: the policy cannot read them.
    """
    try:
        policy.load(_place(folder) / "policy")
    except GrpokitError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise _damaged(folder, f"the policy cannot read its weights ({one_line(error)})") from error


def read_state(folder: Path) -> dict[str, Any]:
    """The plain data of a checkpoint.

    Raises:
        CheckpointError: it is not there, torn, or from a newer grpokit.
    """
    path = _place(folder) / STATE
    if not path.is_file():
        raise CheckpointError(f"{folder} is no checkpoint of grpokit: it has no {STATE}.")
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{STATE} is no JSON ({error})") from error
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise CheckpointError(f"{folder} is no checkpoint of grpokit: its {STATE} names no format.")
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"The checkpoint {folder} has format {state['format']}; this grpokit reads up to {FORMAT}. Update grpokit."
        )
    if not isinstance(state.get("step"), int) or not isinstance(state.get("optimizer"), dict):
        raise _damaged(folder, f"{STATE} lacks the step or the optimizer's numbers")
    return state


def _damaged(folder: Path, why: str) -> CheckpointError:
    """Says what is wrong, and which earlier checkpoint of the run can be used instead."""
    others = [p for p in steps(folder.parent) if p != folder and _whole(p)]
    remedy = (
        f"{others[-1]} is whole: delete {folder} to go on from there."
        if others
        else "There is no other whole checkpoint beside it: start anew with --overwrite."
    )
    return CheckpointError(f"The checkpoint {folder} is damaged: {why}. {remedy}")


def _whole(folder: Path) -> bool:
    """Whether a checkpoint's own files can be read; the policy's weights are not tried."""
    try:
        read_state(folder)
        load_file(_place(folder) / OPTIMIZER)
    except (OSError, SafetensorError, GrpokitError):
        return False
    return True


def steps(folder: Path) -> list[Path]:
    """The checkpoints `step_...` in a run's `checkpoints` folder, the earliest first."""
    places = {_own(p) for p in folder.glob("*step_*")}  # those of `_former` with them
    numbered = sorted((number, p) for p in places if (number := step_number(p.name)) is not None)
    return [p for _, p in numbered if (_place(p) / STATE).exists()]


def latest(folder: Path) -> Path | None:
    """The checkpoint of the highest step in a run's `checkpoints` folder, or None."""
    return next(reversed(steps(folder)), None)


def prune(folder: Path, keep_last: int | None) -> None:
    """Delete all but the last `keep_last` checkpoints `step_...` (None keeps all), and mend what a kill has left.

    Only for the process that trains in the folder.

    Raises:
        RunError: the folder cannot be written.
    """
    for former in folder.glob(".*.former"):
        _put_back(_own(former))
    for old in steps(folder)[: -keep_last if keep_last else 0]:
        try:
            _discard(_former(old))
            _discard(old)
        except OSError as error:
            raise RunError(f"The old checkpoint {old} cannot be deleted: {error}.") from error
    for rest in [*folder.glob(".*.deleted"), *folder.glob(".*.partial")]:  # of a deletion or a save that was killed
        shutil.rmtree(rest, ignore_errors=True)


def _former(folder: Path) -> Path:
    """Where a checkpoint waits while another takes its place."""
    return folder.with_name(f".{folder.name}.former")


def _own(folder: Path) -> Path:
    """The checkpoint that waits at a `_former`; any other folder is its own."""
    return folder.with_name(folder.name.removeprefix(".").removesuffix(".former"))


def _place(folder: Path) -> Path:
    """Where to read a checkpoint: between the two renames of a replacement, under way or killed, at its `_former`."""
    return _former(folder) if not folder.exists() and (_former(folder) / STATE).is_file() else folder


def _put_back(folder: Path) -> None:
    """Undo a replacement that was killed between its two renames; a reader must not, it may be under way."""
    if _place(folder) != folder:
        with suppress(OSError):  # what comes next reports a folder that cannot be written
            os.replace(_former(folder), folder)


def _discard(folder: Path) -> None:
    """Delete a folder, at once out of sight and then piece by piece: what a kill leaves of it is never put back."""
    gone = folder.with_name(f".{folder.name.removeprefix('.')}.deleted")
    shutil.rmtree(gone, ignore_errors=True)
    if folder.exists():
        os.replace(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def _parameters(optimizer: Any) -> dict[str, list[int]]:
    """The names and shapes of an optimizer's parameters, in the order by which its state numbers them."""
    groups = optimizer.param_groups
    return {n: list(p.shape) for group in groups for n, p in zip(group["param_names"], group["params"], strict=True)}


def _few(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


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
        state.setdefault(int(index), {})[key] = tensor
    return state


def _flush(folder: Path) -> None:
    """Force every file to disk before the rename makes the checkpoint visible."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
