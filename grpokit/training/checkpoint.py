"""Checkpoints: weights, optimizer state and position in a folder that is complete or does not exist.

All randomness follows from the seed and the step's number, so this is enough for an exact resume. Tensors are stored as
safetensors, the rest as JSON; nothing is pickled. The learning rate follows from the position. `notes` hold the config
and the versions, so a checkpoint can be used without its run folder. `state.json` holds digests of all files and of
itself: one changed bit is enough to refuse a checkpoint, and not to go on as another run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpokit.errors import CheckpointError, GrpokitError, RunError, UsageError, one_line, typed_line
from grpokit.files import read_json, replacing, step_number
from grpokit.policy import Policy
from grpokit.training.parts import Part, restore, split

FORMAT = 4
STATE, OPTIMIZER, PARTS = "state.json", "optimizer.safetensors", "parts.safetensors"
POLICY = "policy"
_PHASES, _POLICIES = "phases", "policies"


@dataclass(frozen=True, kw_only=True)
class Learner:
    """What a checkpoint keeps of a trainer besides the policy's weights.

    Attributes:
        optimizer: a torch optimizer that knows its parameters' names.
        parts: the trainer's parts by name.
        position: plain data; `step` is the number of completed steps.
    """

    optimizer: Any
    parts: Mapping[str, Part]
    position: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """What a checkpoint has kept of a trainer.

    Attributes:
        parts: part -> its plain data.
        optimizer: for the optimizer's `load_state_dict`.
        tensors: the tensors of the parts.
    """

    parts: Mapping[str, Any]
    optimizer: dict[str, Any]
    tensors: dict[str, Tensor]


def save(
    folder: Path, *, policies: Mapping[str, Policy], learners: Mapping[str, Learner], state: Mapping[str, Any]
) -> None:
    """Write a checkpoint, replacing one of the same name; `folder` appears only once all of it is on disk.

    Args:
        folder: where to write it.
        policies: each writes its own weights, into `folder/policy/<name>`; a single one is called "".
        learners: what is to be kept of each trainer, by the name of its phase; a single one is called "".
        state: further plain data. With several learners it has the number of completed steps, `step`.

    Raises:
        UsageError: the folder is a file, or contains files that are not a checkpoint.
        RunError: the disk is full or the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; a checkpoint is a folder. Choose another name.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / STATE).is_file():
        raise UsageError(
            f"{folder} contains files that are not a checkpoint; saving would replace them. Choose another folder."
        )
    states = {name: split(learner.parts) for name, learner in learners.items()}
    _put_back(folder)
    former = _former(folder)
    try:
        with replacing(folder) as temporary:
            for name, policy in policies.items():
                own = temporary / POLICY / name
                own.mkdir(parents=True)
                with policy_writes("save"):
                    policy.save(own)
            entries = {
                name: _write_learner(_place_of(temporary, name), learner, *states[name])
                for name, learner in learners.items()
            }
            kept = entries.get("") or {_PHASES: entries, _POLICIES: list(policies)}
            content = {"format": FORMAT, **state, **kept, "files": _digests(temporary)}
            text = json.dumps({**content, "digest": _digest_of(content)})
            (temporary / STATE).write_text(text, encoding="utf-8")
            _flush(temporary)
            _discard(former)
            if folder.exists():
                os.replace(folder, former)
        _discard(former)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        if former.exists() and not folder.exists():
            os.replace(former, folder)
        raise RunError(f"The checkpoint {folder} cannot be written: {error}.") from error


def _write_learner(
    place: Path, learner: Learner, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Write the tensors of a learner with the state of its parts; returns what belongs into `state.json`."""
    place.mkdir(parents=True, exist_ok=True)
    moments, numbers = _split(learner.optimizer.state_dict()["state"])
    save_file(moments, place / OPTIMIZER)
    if tensors:
        save_file({name: x.detach().cpu().contiguous() for name, x in tensors.items()}, place / PARTS)
    parameters = _parameters(learner.optimizer)
    return {**learner.position, "parts": plain, "parameters": parameters, "optimizer": numbers}


@contextmanager
def policy_writes(method: str) -> Iterator[None]:
    """Inside, a policy writes; other libraries' errors, as over a full disk or over NaN, count as an `OSError` too.

    Args:
        method: the policy's, for the message.
    """
    try:
        yield
    except (RuntimeError, ValueError, TypeError, SafetensorError) as error:
        raise OSError(f"the policy's {method} raised {typed_line(error)}") from error


def load(folder: Path, *, policies: Mapping[str, Policy], learners: Mapping[str, Learner]) -> Mapping[str, Any]:
    """Read a checkpoint into policies, optimizers and the trainers' parts; all of them are checked first.

    Args:
        folder: the checkpoint.
        policies: as in `save`.
        learners: as in `save`; their positions are not read.

    Returns:
        All plain data; `learners_of` gives that of each learner.

    Raises:
        CheckpointError: something is missing, damaged, of another policy, or from a newer grpokit.
    """
    state = read_state(folder)
    if state["format"] < FORMAT:  # an older format lacks parts of the state
        raise CheckpointError(
            f"The checkpoint {folder} was written by an earlier version of grpokit, and training cannot continue from "
            "it. Start a new run in another run.dir; `grpokit sample` and `grpokit evaluate` still read it.",
            page="guards#checkpoints",
        )
    entries = learners_of(state)
    for what, theirs, ours in (
        ("phases", list(entries), list(learners)),
        ("policies", state.get(_POLICIES, [""]), list(policies)),
    ):
        if sorted(theirs) != sorted(ours):
            raise CheckpointError(
                f"The checkpoint {folder} belongs to a run with {_named(what, theirs)}, and this one has "
                f"{_named(what, ours)}. Resume with the run's own config.",
                page="guards#checkpoints",
            )
    for name, learner in learners.items():
        _check_parameters(folder, entries[name]["parameters"], _parameters(learner.optimizer))
    with _explained(folder):
        _check_files(folder, state)
    loaded = {name: _read(folder, name, entries[name], learner) for name, learner in learners.items()}
    for name, learner in learners.items():
        restore(learner.parts, loaded[name].parts, loaded[name].tensors)
    for name, policy in policies.items():
        _load_policy(folder, policy, name)
    for name, learner in learners.items():
        learner.optimizer.load_state_dict(loaded[name].optimizer)
    return state


def _named(what: str, names: Sequence[str]) -> str:
    return f"no {what}" if list(names) == [""] else f"the {what} {', '.join(map(repr, names))}"


def _check_parameters(folder: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Compare the parameters that a checkpoint's run has trained with those of now.

    Raises:
        CheckpointError: they differ, in other things than their order.
    """
    if theirs == ours:
        return
    changes = {
        "only in the checkpoint": [name for name in theirs if name not in ours],
        "only in this policy": [name for name in ours if name not in theirs],
        "with another shape": [n for n in theirs if n in ours and theirs[n] != ours[n]],
    }
    difference = "; ".join(f"{_few(names)} {how}" for how, names in changes.items() if names)
    raise CheckpointError(
        f"The checkpoint {folder} belongs to another policy, with other trainable parameters ({difference}). "
        "Resume with the policy of the run's config.",
        page="guards#checkpoints",
    )


def _read(folder: Path, name: str, entry: Mapping[str, Any], learner: Learner) -> _Loaded:
    """Read what a checkpoint has kept of a trainer; nothing is changed."""
    place = _place_of(_place(folder), name)
    ours, theirs = _parameters(learner.optimizer), entry["parameters"]
    try:
        moments = load_file(place / OPTIMIZER)
        tensors = load_file(place / PARTS) if (place / PARTS).is_file() else {}
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, f"{error}") from error
    moments_by_place = _join(moments, entry["optimizer"])
    index = {parameter: i for i, parameter in enumerate(ours)}
    ordered = {index[parameter]: moments_by_place[i] for i, parameter in enumerate(theirs) if i in moments_by_place}
    return _Loaded(
        parts=entry["parts"],
        optimizer={**learner.optimizer.state_dict(), "state": ordered},  # by name, in our own order
        tensors=tensors,
    )


def load_policies(folder: Path, policies: Mapping[str, Policy]) -> list[str]:
    """Read only the weights of a checkpoint: of those policies that its run has trained.

    Args:
        folder: the checkpoint.
        policies: by name, as in `save`.

    Returns:
        The names of those policies.

    Raises:
        CheckpointError: the weights were changed, a policy cannot read them, or there is none of that name.
    """
    state = read_state(folder)
    trained: list[str] = state.get(_POLICIES, [""])
    if not set(trained) <= set(policies):
        raise CheckpointError(
            f"The checkpoint {folder} belongs to a run with {_named('policies', trained)}, and the config gives "
            f"{_named('policies', list(policies))}.",
            page="guards#checkpoints",
        )
    with _explained(folder):
        _check_files(folder, state, below=f"{POLICY}/")
    for name in trained:
        _load_policy(folder, policies[name], name)
    return trained


def _load_policy(folder: Path, policy: Policy, name: str) -> None:
    try:
        policy.load(_place(folder) / POLICY / name)
    except GrpokitError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise _damaged(folder, f"the policy cannot read its weights ({one_line(error)})") from error


class _DamageError(Exception):
    """What is wrong with a checkpoint, in words."""


def read_state(folder: Path) -> dict[str, Any]:
    """The plain data of a checkpoint.

    Raises:
        CheckpointError: it does not exist, is damaged, or is from a newer grpokit.
    """
    if not (_place(folder) / STATE).is_file():
        others = f" {_remedy(folder)}" if step_number(folder.name) is not None and _undamaged(folder) else ""
        raise CheckpointError(f"{folder} is not a checkpoint of grpokit: it has no {STATE}.{others}")
    with _explained(folder):
        return _state(folder)


def learners_of(state: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """The plain data of each learner by its name, with what its `position` was."""
    learners: Mapping[str, Mapping[str, Any]] = state.get(_PHASES, {"": state})
    return learners


def broken_off(state: Mapping[str, Any]) -> tuple[str, int] | None:
    """Where a checkpoint was saved in the middle of a step, its phase and how many of its updates were made."""
    made = {name: entry.get("updates_done", 0) for name, entry in learners_of(state).items()}
    return next(((name, updates) for name, updates in made.items() if updates), None)


def _state(folder: Path) -> dict[str, Any]:
    try:
        state = read_json(_place(folder) / STATE)
    except (OSError, ValueError) as error:
        raise _DamageError(f"{STATE} is not JSON ({one_line(error)})") from error
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise CheckpointError(f"{folder} is not a checkpoint of grpokit: its {STATE} has no format.")
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"The checkpoint {folder} has format {state['format']}; this grpokit reads up to {FORMAT}. Update grpokit.",
            page="guards#checkpoints",
        )
    changed = state["format"] == FORMAT and state.pop("digest", None) != _digest_of(state)
    if changed or not isinstance(state.get("step"), int):
        raise _DamageError(f"{STATE} was changed after it was written")
    return state


def _check_files(folder: Path, state: Mapping[str, Any], *, below: str = "") -> None:
    """Compare a checkpoint's files with their digests; those of an earlier format have none.

    Raises:
        _DamageError: names the first file that is missing or was changed.
    """
    place = _place(folder)
    for name, digest in state.get("files", {}).items():
        if name.startswith(below):
            try:
                same = _digest(place / name) == digest
            except OSError as error:
                raise _DamageError(f"{name} cannot be read ({error.strerror})") from error
            if not same:
                raise _DamageError(f"{name} was changed after it was written")


def _digests(folder: Path) -> dict[str, str]:
    """The digest of each file, by its name in the folder."""
    return {p.relative_to(folder).as_posix(): _digest(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(json.loads(json.dumps(state))).encode()).hexdigest()  # as it is read again


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn damage into an error for the user."""
    try:
        yield
    except _DamageError as damage:
        raise _damaged(folder, str(damage)) from damage


def _damaged(folder: Path, why: str) -> CheckpointError:
    """The error for a damaged checkpoint; it names an undamaged one of the same run, if there is any."""
    return CheckpointError(f"The checkpoint {folder} is damaged: {why}. {_remedy(folder)}")


def _remedy(folder: Path) -> str:
    others = _undamaged(folder)
    if others:
        return f"{others[-1]} is undamaged: delete {folder} to continue from there."
    return "There is no undamaged checkpoint beside it: start a new run with --overwrite."


def _undamaged(folder: Path) -> list[Path]:
    """The undamaged checkpoints beside one."""
    return [place for place in steps(folder.parent) if place != folder and _whole(place)]


def _whole(folder: Path) -> bool:
    """Whether a checkpoint is as it was written."""
    if not (_place(folder) / STATE).is_file():
        return False
    try:
        _check_files(folder, _state(folder))
    except (_DamageError, GrpokitError):
        return False
    return True


def steps(folder: Path) -> list[Path]:
    """The checkpoints `step_...` in a run's `checkpoints` folder, the earliest first."""
    places = {_own(p) for p in folder.glob("*step_*")}  # includes those that wait at `_former`
    numbered = sorted((number, p) for p in places if (number := step_number(p.name)) is not None)
    return [p for _, p in numbered if _place(p).is_dir()]  # without its state it is damaged, and says so when read


def latest(folder: Path) -> Path | None:
    """The last checkpoint `step_...` in a run's `checkpoints` folder, or None."""
    return next(reversed(steps(folder)), None)


def prune(folder: Path, keep_last: int | None) -> None:
    """Delete all but the last `keep_last` checkpoints `step_...` (None keeps all), and clean up after a kill.

    Only the process that trains in the folder may call it.

    Raises:
        RunError: the folder cannot be written.
    """
    for former in folder.glob(".*.former"):
        _put_back(_own(former))
    readable = [place for place in steps(folder) if (_place(place) / STATE).is_file()]
    for old in readable[: -keep_last if keep_last else 0]:
        try:
            _discard(_former(old))
            _discard(old)
        except OSError as error:
            raise RunError(f"The old checkpoint {old} cannot be deleted: {error}.") from error
    for rest in [*folder.glob(".*.deleted"), *folder.glob(".*.partial")]:  # from a killed deletion or save
        shutil.rmtree(rest, ignore_errors=True)


def _former(folder: Path) -> Path:
    """Where a checkpoint is kept while a new one replaces it."""
    return folder.with_name(f".{folder.name}.former")


def _own(folder: Path) -> Path:
    """The checkpoint whose `_former` this is; any other folder is returned unchanged."""
    return folder.with_name(folder.name.removeprefix(".").removesuffix(".former"))


def _place(folder: Path) -> Path:
    """Where to read a checkpoint: at its `_former` between the two renames of a replacement, else in its folder."""
    return _former(folder) if not folder.exists() and (_former(folder) / STATE).is_file() else folder


def _place_of(folder: Path, learner: str) -> Path:
    """Where the tensors of a learner are."""
    return folder / _PHASES / learner if learner else folder


def _put_back(folder: Path) -> None:
    """Undo a replacement that was killed between its two renames; not for readers, since it may still be running."""
    if _place(folder) != folder:
        with suppress(OSError):  # the next write reports a folder that cannot be written
            os.replace(_former(folder), folder)


def _discard(folder: Path) -> None:
    """Delete a folder; it is renamed first, so that a kill cannot leave a half-deleted checkpoint under its name."""
    trash = folder.with_name(f".{folder.name.removeprefix('.')}.deleted")
    shutil.rmtree(trash, ignore_errors=True)
    if folder.exists():
        os.replace(folder, trash)
        shutil.rmtree(trash, ignore_errors=True)


def _parameters(optimizer: Any) -> dict[str, list[int]]:
    """The names and shapes of an optimizer's parameters, in the order of the numbers in its state."""
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
    """Write every file through to disk, before the rename makes the checkpoint visible."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
