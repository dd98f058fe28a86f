"""Checkpoints: a folder with everything that a run needs to continue, either complete or absent.

All randomness follows from the seed and the step's number, so this is enough for an exact resume. Tensors are stored as
safetensors, the rest as JSON; nothing is pickled. `notes` hold the config and the versions, so a checkpoint can be used
without its run folder. `state.json` holds digests of all files and of itself: one changed bit is enough to refuse it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpokit.errors import CheckpointError, GrpokitError, RunError, UsageError, error_line, one_line, reword
from grpokit.files import delete, read_json, replacing, step_number, writing
from grpokit.policy import Policy
from grpokit.processes import fsdp2
from grpokit.processes.forks import forks_ended
from grpokit.processes.team import Team, is_sharded
from grpokit.training.state import State, Stateful, split

FORMAT = 5
STATE = "state.json"
POLICY, POSITION, PHASES, REWARDS, BEST = "policy", "position", "phases", "rewards", "best"


def part_name(prefix: str, name: str) -> str:
    """The name of a part that may be the only one of its kind: "policy", or "policy/ar"."""
    return f"{prefix}/{name}" if name else prefix


def save(
    folder: Path, parts: Mapping[str, Stateful], *, step: int, notes: Mapping[str, Any], team: Team, together: bool
) -> None:
    """Write a checkpoint, in process 0; `folder` appears only once all of it is on disk, in place of an earlier one.

    Where processes hold tensors `together`, all must call this. `step` counts the completed ones.
    """
    if team.rank and not together:
        return
    with team.failing_together() if together else nullcontext():
        tensors, plain = {}, {}
        for name, part in parts.items():
            tensors[name], plain[name] = _whole(name, part)
        if team.rank == 0:
            _write(folder, tensors, {"format": FORMAT, "step": step, "notes": notes, "parts": plain})


@forks_ended()
def _whole(name: str, part: Stateful) -> tuple[dict[str, Any], State]:
    """The tensors of a part, which all processes gather where they hold them together, and its plain data."""
    tensors, plain = split(name, part)
    return {key: fsdp2.full(x) if is_sharded(x) else x for key, x in tensors.items()}, plain


def _write(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], content: State) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; a checkpoint is a folder. Choose another name.")
    has_files = folder.is_dir() and any(folder.iterdir())
    if has_files and not (folder / STATE).is_file():
        raise UsageError(
            f"{folder} contains files that are not a checkpoint; saving would replace them. Choose another folder."
        )
    try:
        with replacing(folder) as temporary:
            temporary.mkdir(parents=True)
            for name, some in tensors.items():
                if some:
                    (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                    save_file(apart(some), temporary / f"{name}.safetensors", metadata={"format": "pt"})
            content = {**content, "files": _digests(temporary)}
            text = json.dumps({**content, "digest": _digest_of(content)})
            (temporary / STATE).write_text(text, encoding="utf-8")
            _flush(temporary)
            _discard(folder)
    except (OSError, RuntimeError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        raise RunError(f"The checkpoint {folder} cannot be written: {error}.") from error


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU, of which no two share memory, as tied weights do."""
    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        place = own.untyped_storage().data_ptr()
        apart[name] = own.clone() if place in storages else own
        storages.add(place)
    return apart


def load_parts(folder: Path, parts: Mapping[str, Stateful]) -> None:
    """Read a checkpoint into the parts of a run; all files are checked first.

    The optimizers come first among the parts: they know whether it belongs to this policy.
    """
    state = read_state(folder)
    for what in (PHASES, POLICY):
        theirs = sorted(_names(what, state["parts"]))
        ours = sorted(_names(what, parts))
        if theirs != ours:
            raise CheckpointError(
                f"The checkpoint {folder} belongs to a run with {_few_of(what, theirs)}, and this one has "
                f"{_few_of(what, ours)}. Resume with the run's own config.",
                page="guards#checkpoints",
            )
    _check_files(folder, state)
    known = [name for name in parts if name in state["parts"]]  # a part that the run did not have stays as it is
    states = {name: _read(folder, state, name) for name in known}
    for name, kept in states.items():
        _take_over(folder, name, parts[name], kept)


def load_policies(folder: Path, policies: Mapping[str, Policy]) -> list[str]:
    """Read only the weights of a checkpoint, and return the names of the policies that its run has trained.

    A single policy is called "".
    """
    state = read_state(folder)
    trained = _names(POLICY, state["parts"])
    if not set(trained) <= set(policies):
        raise CheckpointError(
            f"The checkpoint {folder} belongs to a run with {_few_of(POLICY, trained)}, and the config gives "
            f"{_few_of(POLICY, list(policies))}.",
            page="guards#checkpoints",
        )
    _check_files(folder, state, below=POLICY)
    for name in trained:
        part = part_name(POLICY, name)
        _take_over(folder, part, policies[name], _read(folder, state, part))
    return trained


def load_part(folder: Path, name: str, part: Stateful) -> None:
    """Read one part of a checkpoint; of a run with phases that of the last one which has it."""
    state = read_state(folder)
    places = [place for place in state["parts"] if f"/{place}".endswith(f"/{name}")]
    if not places:
        raise CheckpointError(f"The checkpoint {folder} has no part '{name}': its run kept none.")
    _check_files(folder, state, below=places[-1])
    _take_over(folder, name, part, _read(folder, state, places[-1]))


def _names(kind: str, parts: Mapping[str, Any]) -> list[str]:
    """The names of policies or of phases; [""] for a single one."""
    paths = [f"{part}/".split("/") for part in parts]
    names = [path[1] for path in paths if path[0] == kind]
    return list(dict.fromkeys(names)) or [""]


def _few_of(kind: str, names: Sequence[str]) -> str:
    nouns = "policies" if kind == POLICY else kind
    return f"no {nouns}" if list(names) == [""] else f"the {nouns} {', '.join(map(repr, names))}"


def _read(folder: Path, state: State, name: str) -> State:
    file = f"{name}.safetensors"
    tensors = load_file(folder / file) if file in state["files"] else {}
    return {**state["parts"].get(name, {}), **tensors}


@forks_ended()
def _take_over(folder: Path, name: str, part: Stateful, state: State) -> None:
    own = part.state_dict()
    try:
        part.load_state_dict({key: fsdp2.cut_as(x, own.get(key)) for key, x in state.items()})
    except GrpokitError as error:
        raise reword(error, f"The checkpoint {folder} {error}") from error
    except Exception as error:
        raise CheckpointError(
            f"The checkpoint {folder} cannot be loaded: load_state_dict() of {name} raised {error_line(error)}. If its "
            "code has changed, restore the version that versions.json in the run folder names."
        ) from error


def read_state(folder: Path) -> dict[str, Any]:
    """The plain data of a checkpoint: `step`, `notes`, and `parts`, each with its own."""
    if not (folder / STATE).is_file():
        remedy = f" {_remedy(folder)}" if folder in steps(folder.parent) else ""
        raise CheckpointError(f"{folder} is not a checkpoint of grpokit: it has no {STATE}.{remedy}")
    try:
        state = read_json(folder / STATE)
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{STATE} is not JSON ({one_line(error)})") from error
    if not isinstance(state, dict) or not isinstance(state.get("format"), int):
        raise CheckpointError(f"{folder} is not a checkpoint of grpokit: its {STATE} has no format.")
    if state["format"] != FORMAT:
        remedy = "Update grpokit." if state["format"] > FORMAT else "Start a new run in another run.dir."
        raise CheckpointError(
            f"The checkpoint {folder} has format {state['format']}; this grpokit reads format {FORMAT}. {remedy}",
            page="guards#checkpoints",
        )
    if state.pop("digest", None) != _digest_of(state):
        raise _damaged(folder, f"{STATE} was changed after it was written")
    return state


def broken_off(state: State) -> tuple[str, int] | None:
    """Where a checkpoint was saved in the middle of a step, its phase and how many of its updates were made."""
    for phase in _names(PHASES, state["parts"]):
        place = f"{PHASES}/{phase}/{POSITION}" if phase else POSITION
        done = state["parts"][place]["updates_done"]
        if done:
            return phase, done
    return None


def _check_files(folder: Path, state: State, *, below: str = "") -> None:
    """Compare a checkpoint's files with their digests."""
    for name, digest in state["files"].items():
        if name.startswith(below):
            try:
                same = _digest(folder / name) == digest
            except OSError as error:
                raise _damaged(folder, f"{name} cannot be read ({error.strerror})") from error
            if not same:
                raise _damaged(folder, f"{name} was changed after it was written")


def _digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): _digest(path) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(state: State) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def _damaged(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(f"The checkpoint {folder} is damaged: {why}. {_remedy(folder)}")


def _remedy(folder: Path) -> str:
    others = [place for place in steps(folder.parent) if place != folder]
    if others:  # whether that is damaged is seen when it is read
        return f"Delete {folder} to continue from {others[-1]}."
    return "There is no other checkpoint: start a new run with --overwrite."


def steps(folder: Path) -> list[Path]:
    """The checkpoints `step_...` in a run's `checkpoints` folder, the earliest first."""
    places = [place for place in folder.glob("step_*") if place.is_dir() and step_number(place.name) is not None]
    return sorted(places, key=lambda place: (step_number(place.name) or 0, place))  # damaged ones say so when read


def latest(folder: Path) -> Path | None:
    """The last checkpoint `step_...` in a run's `checkpoints` folder, or None."""
    return next(reversed(steps(folder)), None)


def mark_best(place: Path) -> None:
    """Make `best`, next to a checkpoint, a link to it, or a copy without link support; `prune` then keeps it."""
    best, link = place.with_name(BEST), place.with_name(f".{BEST}.partial")
    with writing(best):
        delete(link)
        try:
            link.symlink_to(place.name, target_is_directory=True)
        except OSError:  # a file system without links
            shutil.copytree(place, link)
        if not best.is_symlink():  # a copy of a run may have a folder there
            _discard(best)
        os.replace(link, best)


def prune(folder: Path, keep_last: int | None) -> None:
    """Delete all but the best and the last `keep_last` (None: all) checkpoints of a run, and what a kill has left.

    Only the process that trains in the run's folder may call it.
    """
    best = os.path.realpath(folder / BEST)
    readable = [place for place in steps(folder) if (place / STATE).is_file()]
    for old in readable[: -keep_last if keep_last else 0]:
        if os.path.realpath(old) != best:
            try:
                _discard(old)
            except OSError as error:
                raise RunError(f"The old checkpoint {old} cannot be deleted: {error}.") from error
    for rest in [*folder.glob(".*.deleted"), *folder.glob(".*.partial")]:  # from a killed deletion or save
        with suppress(OSError):
            delete(rest)


def _discard(folder: Path) -> None:
    """Delete a folder; it is renamed first, so that a kill cannot leave a half-deleted checkpoint under its name."""
    if folder.exists():
        trash = folder.with_name(f".{folder.name}.deleted")
        shutil.rmtree(trash, ignore_errors=True)
        os.replace(folder, trash)
        shutil.rmtree(trash, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Flush every file to disk, before the rename makes the checkpoint visible."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
