"""The checks that every preset passes: a run could begin with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from grpokit.config import presets
from grpokit.config.schema import RunConfig
from grpokit.registry.specs import PresetSpec
from grpokit.runs import build
from grpokit.runs.dry_run import dry_run
from grpokit_check.check import Check, NotChecked, checks_of, expect


def preset_checks(spec: PresetSpec, *, module: str | None = None) -> Iterator[Check]:
    """Yield the checks of a preset.

    Args:
        spec: what its plugin announces.
        module: the plugin's module behind the entry point, which must import nothing heavy.
    """
    yield from checks_of(_CHECKS, spec, module)


def config(spec: PresetSpec) -> None:
    """Its file is in the package, and all of its keys and values are right."""
    presets.preset(spec)


def components(spec: PresetSpec) -> None:
    """The components that it names are installed and take the parameters that it gives."""
    build.check_components(presets.preset(spec))


def data(spec: PresetSpec) -> None:
    """Its prompts can be read."""
    prompts, _ = build.prompts(_complete(spec))
    expect(len(prompts), "at least one prompt", "none", "a file or a split that is empty")


def trial(spec: PresetSpec) -> None:
    """Everything that it names is built, and one group is drawn and scored (`grpokit train NAME --dry-run`)."""
    for _ in dry_run(_complete(spec), name=spec.name):
        pass


def _complete(spec: PresetSpec) -> RunConfig:
    """Its config, if nothing has to be given or fetched first."""
    if spec.needs or spec.fetches:
        raise NotChecked(f"it needs {spec.needs or 'what it downloads'}")
    return presets.preset(spec)


_CHECKS: Sequence[Callable[[PresetSpec], None]] = (config, components, data, trial)
