"""Writes a run's weights as a folder that other programs load, with a model card.

What such a folder is made of is the policy's business: an adapter, a model, a pipeline. The card is made here, from the
run's files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from safetensors import SafetensorError

from grpokit import registry
from grpokit.config import yaml_source
from grpokit.config.schema import RunConfig
from grpokit.errors import UsageError, error_line
from grpokit.files import replacing, writing
from grpokit.processes.forks import forks_ended
from grpokit.report.model_card import model_card
from grpokit.rewards.following import ExportsReward
from grpokit.run_folder import reader
from grpokit.run_folder.names import CONFIG
from grpokit.runs import build, build_rewards
from grpokit.training import checkpoint

CARD = "README.md"


@runtime_checkable
class Exports(Protocol):
    """A policy whose weights other programs can load."""

    def export(self, folder: Path, *, merge: bool) -> Mapping[str, str]:
        """Write everything that loading takes.

        Args:
            folder: exists already, and is empty.
            merge: add an adapter to its base, and write the whole model.

        Returns:
            Facts for the model card, all optional: `base_model`, `library_name`, `versions` (of libraries, in one
            line), and `usage`: Python code that loads the folder, in which `FOLDER` and `BASE_MODEL` stand for names.

        Raises:
            UsageError: there is no adapter to merge.
        """
        ...


def export(config: RunConfig, place: Path, to: Path, *, merge: bool = False) -> None:
    """Write the weights of a checkpoint and a model card into a new or empty folder.

    Args:
        config: of the checkpoint's run.
        place: the checkpoint.
        to: the folder; its files appear once all of them are written.
        merge: add an adapter to its base, and write the whole model.

    Raises:
        UsageError: the folder holds files, the policy cannot be exported, or it has no adapter to merge.
        RunError: the folder cannot be written, or the policy's export failed.
    """
    _check_new(to)
    policies = build.policies(config)
    exporters: dict[str, Exports] = {}
    for name, policy in policies.items():
        if not isinstance(policy, Exports):
            which = f"'{name}' of '{config.policy.use}'" if name else f"'{config.policy.use}'"
            raise UsageError(
                f"The policy {which} cannot be exported: it has no method export. Its weights are in "
                f"{place / checkpoint.part_name(checkpoint.POLICY, name)}.safetensors."
            )
        exporters[name] = policy
    trained = checkpoint.load_policies(place, policies)
    with _written(to) as temporary:
        step = int(checkpoint.read_state(place)["step"])
        for name in trained:  # several each have a folder of their own
            own = temporary / name
            own.mkdir(exist_ok=True)
            try:
                with forks_ended():
                    facts = exporters[name].export(own, merge=merge)
            except (RuntimeError, ValueError, TypeError, SafetensorError) as error:  # such as over a full disk
                raise OSError(f"the policy's export raised {error_line(error)}") from error
            title = f"{to.resolve().name}/{name}" if name else to.resolve().name
            card = model_card(_run_of(place), step=step, title=title, facts=facts)
            (own / CARD).write_text(card, encoding="utf-8", errors="backslashreplace")


def export_reward(config: RunConfig, place: Path, name: str, to: Path) -> None:
    """Write what a reward has learned into a new or empty folder.

    Args:
        config: of the checkpoint's run.
        place: the checkpoint.
        name: of the reward in the run.
        to: the folder; its files appear once all of them are written.

    Raises:
        UsageError: the folder holds files, or there is no such reward, or it has learned nothing that can be exported.
        RunError: the folder cannot be written.
    """
    _check_new(to)
    uses = {build_rewards.name_of(reward): reward for reward in config.rewards}
    if name not in uses:
        raise UsageError(f"The run has no reward '{name}'. It has {', '.join(uses)}.")
    reward = registry.create("reward", uses[name].use, uses[name].params)
    if not isinstance(reward, ExportsReward):
        raise UsageError(f"The reward '{name}' cannot be exported: it learns nothing in a run.")
    checkpoint.load_part(place, checkpoint.part_name(checkpoint.REWARDS, name), reward)
    with _written(to) as temporary:
        reward.export(temporary, name=to.resolve().name)


def _check_new(to: Path) -> None:
    """Refuse a folder that holds files."""
    if to.exists() and not to.is_dir():
        raise UsageError(f"{to} is a file. Choose another folder with --to.")
    if to.exists() and any(to.iterdir()):
        raise UsageError(f"{to} already holds files. Choose another folder with --to.")


@contextmanager
def _written(to: Path) -> Iterator[Path]:
    """A folder to write into, whose files appear in `to` once all of them are written."""
    with writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        # A folder that is there stays: it may be someone's working directory, or a mount point.
        written = to / ".export" if to.exists() else to
        with replacing(written) as temporary:
            temporary.mkdir()
            yield temporary
        if written != to:
            for file in written.iterdir():
                file.rename(to / file.name)
            written.rmdir()


def _run_of(place: Path) -> reader.RunHistory:
    """The run of a checkpoint; one that was copied elsewhere knows its config and versions itself."""
    folder = place.resolve().parent.parent
    if (folder / CONFIG).is_file():
        return reader.read_run(folder)
    notes = checkpoint.read_state(place).get("notes", {})
    settings = notes.get("config") or {}
    return reader.RunHistory(
        folder=place,
        config=yaml_source.to_yaml(settings),
        settings=settings,
        versions=json.dumps(notes.get("versions") or {}),
    )
