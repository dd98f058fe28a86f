"""Whether a resumed run is the run that was started, and whether all processes of a run were given the same one.

The config and the prompts have to be the same, since every draw follows from them; `--force` goes on with changed
ones. Other versions give a warning. The run folder's header holds what the run was started with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpokit import data, registry
from grpokit.config import presets
from grpokit.config.schema import RunConfig, differences, resolved
from grpokit.data import PromptSequence
from grpokit.errors import UsageError, counted, shown
from grpokit.files import read_json
from grpokit.processes.team import Team
from grpokit.run_folder.header import versions
from grpokit.run_folder.names import CONFIG, DATA, VERSIONS

_PARTS = {"texts": "text or meta", "targets": "target", "images": "source picture"}
_FREE = re.compile(  # folders, how often, where rewards run, and what stops a run
    r"(run|trackers)\..+|data\.max_pixels|eval\.(every|samples|batch_size)"
    r"|(phases\.\d+\.)?(rewards\.\d+\.(workers|reward_timeout|placement|on_error|skip_limit)(\..+)?"
    r"|trainer\.max_(logprob_diff|zero_std_steps))"
)
_KINDS = {"train": "training prompts", "held_out": "held-out prompts"}

Digests = Mapping[str, Mapping[str, Sequence[str]] | None]


def digests(prompts: PromptSequence, held_out: PromptSequence | None) -> Digests:
    """What `data.json` keeps: for the training and the held-out prompts, digests of each part of each prompt."""
    return {
        kind: None if sequence is None else vars(data.digests(sequence))
        for kind, sequence in (("train", prompts), ("held_out", held_out))
    }


def refuse_other_config(folder: Path, config: RunConfig) -> None:
    """A resumed run is the same run only with the same config.

    What `_FREE` names may change, and the number of steps or rounds where no schedule depends on it.

    Raises:
        UsageError: lists what differs.
    """
    configs = [config, *(own for _, own in config.phased())]
    constant = all(own.trainer.schedule == "constant" for own in configs)
    lasts = ["rounds", "trainer.steps"] if constant else []
    changes = [f"  {line}" for line in changed_config(folder, config, lasts)]
    if changes:
        raise UsageError(
            f"The config differs from the one that {folder} was started with:\n" + "\n".join(changes) + "\n"
            "Resume with the old values, add --force to go on with the new ones, or start a new run in another "
            "run.dir.",
            page="guards#checkpoints",
        )


def changed_config(folder: Path, config: RunConfig, free: Sequence[str] = ()) -> list[str]:
    """How a config differs from a run's, beside what never counts; `free` are further keys that do not count."""
    before = presets.read_config(folder / CONFIG)[0]
    return [
        f"{key}: {old!r} -> {new!r}"
        for key, old, new in differences(resolved(before), resolved(config))
        if not (key.startswith(tuple(free)) or _FREE.fullmatch(key) or _renamed(key, old, new))
    ]


def _renamed(key: str, old: Any, new: Any) -> bool:
    """Whether a name of one of grpokit's own components was only made longer, as a plugin has it now, too."""
    match = re.fullmatch(r"(phases\.\d+\.)?(trainer\.)?(policy|reward|objective|advantage)s?(\.\d+)?(\.use)?", key)
    return match is not None and isinstance(old, str) and new == registry.meant_by_preset(match[3], old, "")


def changed_prompts(
    folder: Path, now: Digests, sequences: Mapping[str, PromptSequence | None]
) -> tuple[dict[str, str], list[str]]:
    """How the prompts differ from those that a run was started with.

    Args:
        folder: the run's.
        now: the digests of the prompts.
        sequences: the prompts themselves, by the same names.

    Returns:
        For each kind ("train", "held_out") that differs a line about it, and warnings where that cannot be known.
    """
    try:
        before = read_json(folder / DATA)
        lines = {kind: _change(before[kind], now[kind], sequences[kind]) for kind in _KINDS}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}, [f"{folder / DATA} cannot be read, so it is not known whether the prompts are the same"]
    return {kind: f"{_KINDS[kind]}: {line}" for kind, line in lines.items() if line}, []


def refuse_other_prompts(folder: Path, changes: Mapping[str, str], unknown: Sequence[str]) -> None:
    """A resumed run is the same run only with the same prompts.

    Raises:
        UsageError: lists what differs, or says why that is not known.
    """
    if unknown:
        raise UsageError(
            f"{unknown[0]}. Put the file back, or add --force to go on with the prompts as they are now.",
            page="guards#checkpoints",
        )
    if changes:
        again = " (the untrained policy is then scored on them again)" if "held_out" in changes else ""
        raise UsageError(
            f"The prompts differ from those that {folder} was started with:\n"
            + "".join(f"  {line}\n" for line in changes.values())
            + f"Resume with the old ones, add --force to go on with the new ones{again}, or start a new run in another "
            "run.dir.",
            page="guards#checkpoints",
        )


def changed_rewards(folder: Path, config: RunConfig) -> bool:
    """Whether other rewards score the held-out prompts than those that a run was started with, or by other code."""
    if any(line.startswith("rewards.") for line in changed_config(folder, config)):
        return True
    with suppress(OSError, ValueError, KeyError, AttributeError):  # `changed_versions` says that it cannot be read
        code = {module for module, _, _ in differences(read_json(folder / VERSIONS)["code"], versions(config)["code"])}
        return any(reward.use.partition(":")[0] in code for reward in config.rewards)
    return False


def refuse_other_processes(team: Team, config: RunConfig, now: Digests) -> list[str]:
    """All processes need the same config and the same prompts, since each takes its share of the same groups.

    Args:
        team: the processes.
        config: this process's.
        now: the digests of this process's prompts.

    Returns:
        Warnings about processes with other versions of packages.

    Raises:
        UsageError: lists what differs.
    """
    counts = {kind: len(part["texts"]) if part else 0 for kind, part in now.items()}
    digest = hashlib.sha256(repr(now).encode()).hexdigest()
    warnings = []
    first, *others = team.gather((resolved(config), versions(config), counts, digest))
    for rank, other in enumerate(others, 1):
        who = f"Process {rank} of {team.size}"
        changes = [f"  {key}: {old!r} -> {new!r}" for key, old, new in differences(first[0], other[0])]
        if changes:
            raise UsageError(
                f"{who} has another config than process 0:\n" + "\n".join(changes) + "\n"
                "Start all processes with the same config and the same words on the command line.",
                page="scale",
            )
        if first[3] != other[3]:
            sizes = (", ".join(f"{n:,} {_KINDS[kind]}" for kind, n in part[2].items()) for part in (other, first))
            raise UsageError(
                f"{who} has other prompts than process 0: {' against '.join(sizes)}, or other contents. Give all "
                "machines the same files.",
                page="scale",
            )
        changed = ", ".join(f"{key} {new}, not {old}" for key, old, new in differences(first[1], other[1]))
        if changed:
            warnings.append(f"process {rank} has other versions than process 0 ({changed}): its numbers may differ")
    return warnings


def changed_versions(folder: Path, config: RunConfig) -> list[str]:
    """A warning where packages or own code that take part in a run are not those that it was started with."""
    try:
        before = read_json(folder / VERSIONS)
    except (OSError, ValueError):
        before = None
    if not isinstance(before, dict):
        return [f"{folder / VERSIONS} cannot be read, so it is not known whether the versions are the same"]
    changes = [f"{key} {old} -> {new}" for key, old, new in differences(before, versions(config))]
    return (
        [f"{folder} was started with other versions ({', '.join(changes)}): the numbers may differ"] if changes else []
    )


def _change(
    before: Mapping[str, Sequence[str]] | None,
    now: Mapping[str, Sequence[str]] | None,
    prompts: PromptSequence | None,
) -> str:
    """What differs between two digests of prompts, for a person; empty where they are the same."""
    if before is None or now is None or prompts is None:
        if before is None and now is None:
            return ""
        return f"there were none, now there are {len(now['texts'])}" if now else "there are none now"
    old, new = (list(zip(*(kind[part] for part in _PARTS), strict=True)) for kind in (before, now))
    rows = [i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    counts = f"{counted(len(old), 'prompt')} became {len(new):,}; " if len(old) != len(new) else ""
    if not rows:
        return counts and f"{counts}the others are the same"
    first = rows[0]
    parts = " and ".join(_changed_parts(old[first], new[first]))
    return (
        f"{counts}{len(rows):,} of {counted(min(len(old), len(new)), 'prompt')} changed, first the {parts} of "
        f"{prompts.where(first)} ({shown(prompts.parts(first)[0][0])})"
    )


def _changed_parts(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for name, a, b in zip(_PARTS.values(), old, new, strict=True):
        if a != b:
            yield name
