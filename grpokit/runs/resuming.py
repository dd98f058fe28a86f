"""Whether a resumed run is the run that was started, and whether all processes of a run were given the same one.

The config and the prompts have to be the same, since every draw follows from them; `--force` continues with changed
ones. Other versions give a warning. The run folder's header holds what the run was started with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpokit import data
from grpokit.config import presets
from grpokit.config.component_names import Names, component_names
from grpokit.config.schema import RunConfig, differences, to_dict
from grpokit.data import PromptSequence
from grpokit.errors import UsageError, brief, plural
from grpokit.processes.team import Team
from grpokit.run_folder.names import CHECKPOINTS, CONFIG, DATA, VERSIONS
from grpokit.run_folder.reader import read_object
from grpokit.run_folder.scales import version_changes, version_keys
from grpokit.runs import trained
from grpokit.training import checkpoint

_PARTS = {"texts": "text or meta", "targets": "target", "images": "source picture"}
_FREE = re.compile(  # how often, where rewards run, and what stops a run
    r"(run|trackers)\..+|data\.max_pixels|eval\.(every|samples|batch_size)"
    r"|(phases\.\d+\.)?(rewards\.\d+\.(workers|reward_timeout|placement|on_error|skip_limit)(\..+)?"
    r"|trainer\.max_(logprob_diff|zero_std_steps))"
)
_KINDS = {"train": "training prompts", "held_out": "held-out prompts"}

Digests = Mapping[str, Mapping[str, Sequence[str]] | None]


def prompt_digests(prompts: PromptSequence, held_out: PromptSequence | None) -> Digests:
    """What `data.json` keeps: for the training and the held-out prompts, digests of each part of each prompt."""
    return {
        "train": data.digests(prompts),
        "held_out": None if held_out is None else data.digests(held_out),
    }


def names_before(folder: Path) -> Names | None:
    """The names of components that the run in a folder goes on with; None where it has no checkpoint."""
    last = checkpoint.latest(folder / CHECKPOINTS)
    return None if last is None else component_names(trained.config_of(last))


def changed_config(folder: Path, config: RunConfig) -> list[str]:
    """How a config differs from that of a run, apart from where and how often things happen and what stops the run.

    Both have lasting names. The number of steps or rounds does not count where no schedule depends on it. The run's is
    the config of its last checkpoint, since someone may have edited the file.
    """
    latest = checkpoint.latest(folder / CHECKPOINTS)
    if latest is None:
        before, _ = presets.read_config(folder / CONFIG)
    else:
        before = trained.config_of(latest)
    lengths_count = any(own.trainer.schedule != "constant" for _, own in config.phased())
    lines = []
    for key, old, new in differences(to_dict(before), to_dict(config)):
        is_length = key in ("rounds", "trainer.steps")
        if not _FREE.fullmatch(key) and (lengths_count or not is_length):
            lines.append(f"{key}: {old!r} -> {new!r}")
    return lines


def changed_prompts(folder: Path, now: Digests, sequences: Mapping[str, PromptSequence | None]) -> dict[str, str]:
    """How the prompts differ from those that a run was started with.

    Args:
        folder: the run's; without `data.json`, as with a copied checkpoint, nothing is known to differ.
        now: the digests of the prompts.
        sequences: the prompts themselves, by the same names; those that are left out are not compared.

    Returns:
        For each kind ("train", "held_out") that differs a line about it.
    """
    before = read_object(folder / DATA) if (folder / DATA).is_file() else now
    lines = {}
    for kind, prompts in sequences.items():
        change = _change(before[kind], now[kind], prompts)
        if change:
            lines[kind] = f"{_KINDS[kind]}: {change}"
    return lines


def _change(
    before: Mapping[str, Sequence[str]] | None,
    now: Mapping[str, Sequence[str]] | None,
    prompts: PromptSequence | None,
) -> str:
    """What differs between two digests of prompts, for a person; empty where they are the same."""
    old = _by_prompt(before)
    new = _by_prompt(now)
    both = min(len(old), len(new))
    notes = []
    if len(old) != len(new):
        notes.append(f"{plural(len(old), 'prompt')} became {len(new):,}")
    changed = [i for i in range(both) if old[i] != new[i]]
    if changed and prompts:
        first = changed[0]
        pairs = zip(_PARTS.values(), old[first], new[first], strict=True)
        parts = " and ".join(part for part, was, became in pairs if was != became)
        row = prompts.row(first)
        where = f"{row.where} ({brief(row.prompt.text)})"
        notes.append(f"{len(changed):,} of {plural(both, 'prompt')} changed, first the {parts} of {where}")
    return "; ".join(notes)


def _by_prompt(digests: Mapping[str, Sequence[str]] | None) -> list[tuple[str, ...]]:
    """Each prompt's digests of `_PARTS`."""
    if not digests:
        return []
    columns = [digests[part] for part in _PARTS]
    return list(zip(*columns, strict=True))


def refuse_changes(folder: Path, changes: Sequence[str]) -> None:
    """A resumed run is the same run only with the same config and the same prompts.

    Args:
        folder: the run's.
        changes: what `changed_config` and `changed_prompts` found.

    Raises:
        UsageError: lists what differs.
    """
    if changes:
        raise UsageError(
            f"{folder} was started with another config or other prompts:\n"
            + "".join(f"  {line}\n" for line in changes)
            + "Restore the old ones, add --force to continue with the new ones, or start a new run in another folder.",
            page="guards#checkpoints",
        )


def changed_versions(folder: Path, now: Mapping[str, Any]) -> dict[str, str]:
    """Packages and modules of own code that are not those that a run was started with -> what changed.

    Args:
        folder: the run's.
        now: as `run_metadata.versions` gives them.
    """
    before = read_object(folder / VERSIONS)
    return {key: f"{old} -> {new}" for key, old, new in version_changes(before, now)}


def scores_otherwise(config: RunConfig, settings: Sequence[str], packages: Mapping[str, str]) -> bool:
    """Whether held-out scores are on another scale than when a run was started, by other components or other code.

    Args:
        config: the current one.
        settings: what `changed_config` found.
        packages: what `changed_versions` found.
    """
    components = [to_dict(part) for part in (config.policy, config.data, *config.rewards)]
    code = {key for component in components for key in version_keys(component)}
    other_components = any(line.startswith(("policy.", "rewards.")) for line in settings)
    other_environments = any(key.startswith("rewards.") for key in packages)
    return other_components or other_environments or not code.isdisjoint(packages)


def refuse_other_processes(team: Team, config: RunConfig, now: Digests, packages: Mapping[str, Any]) -> list[str]:
    """All processes need the same config and the same prompts, since each takes its share of the same groups.

    Args:
        team: the processes.
        config: this process's.
        now: the digests of this process's prompts.
        packages: the versions of what takes part in this process.

    Returns:
        Warnings about processes with other versions of packages.

    Raises:
        UsageError: lists what differs.
    """
    digest = hashlib.sha256(repr(now).encode()).hexdigest()
    settings = to_dict(config) | {"contents of the prompts": digest}
    warnings = []
    (first_settings, first_versions), *others = team.gather((settings, packages))
    for rank, (other_settings, other_versions) in enumerate(others, 1):
        changes = _lines(differences(first_settings, other_settings))
        other_packages = _lines(version_changes(first_versions, other_versions))
        if changes:
            raise UsageError(
                f"Process {rank} of {team.size} has another config or other prompts than process 0:\n"
                + "".join(f"  {line}\n" for line in changes)
                + "Start all processes with the same command line, and give all machines the same files.",
                page="scale",
            )
        if other_packages:
            warnings.append(f"process {rank} has other versions than process 0 ({', '.join(other_packages)})")
    return warnings


def _lines(changes: Iterable[tuple[str, Any, Any]]) -> list[str]:
    return [f"{key}: {old!r} -> {new!r}" for key, old, new in changes]
