"""The command presets: what each installed preset trains, needs and takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.cli.app import app, console
from grpokit.cli.options import Json
from grpokit.errors import GrpokitError, counted

if TYPE_CHECKING:
    from grpokit.config.schema import RunConfig


@app.command()
def presets(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Show this preset alone, with its config.")] = "",
    as_json: Json = False,
) -> None:
    """List presets: what each trains, needs and takes.

    `grpokit train NAME` starts one. Times are those that were measured, on the machine that is named. `grpokit plan
    NAME` estimates memory and time on a GPU.
    """
    facts = list(_presets(name))
    if as_json:
        print(json.dumps(facts[0] if name else facts))
        return
    out = console()
    for preset in facts:
        steps = f", {counted(preset['steps'], 'step')}" if preset["steps"] else ""
        rewards = f" by {', '.join(preset['rewards'])}" if preset["rewards"] else ""
        out.print(f"{preset['name']}: {preset['summary']}", markup=False, soft_wrap=True, style="bold")
        lines = {
            "trains": f"{preset['policy']}{rewards}{steps}" if preset["policy"] else "",
            "plugins": ", ".join(preset["plugins"]),
            "needs": preset["needs"],
            "takes": preset["takes"] or "not measured",
            "problem": preset["problem"],
        }
        for title, text in lines.items():
            if text:
                out.print(f"  {title:<8} {text}", markup=False, soft_wrap=True)
        if name:
            out.print(f"\n{preset['config']}", markup=False, soft_wrap=True, end="")


def _presets(name: str) -> Iterator[dict[str, Any]]:
    """What each preset's spec and its config say; with a name of that one alone, and its YAML."""
    from grpokit import registry
    from grpokit.config import presets as configs
    from grpokit.registry.specs import PresetSpec

    for plugin, spec in [registry.find("preset", name)] if name else registry.installed("preset"):
        assert isinstance(spec, PresetSpec)
        facts: dict[str, Any] = {"name": spec.name, "package": plugin.package, "summary": spec.summary}
        facts |= {"policy": "", "rewards": [], "steps": 0, "plugins": [plugin.package], "problem": ""}
        facts |= {"needs": spec.needs, "takes": spec.takes, "fetches": spec.fetches, "install": spec.install}
        try:
            config, _ = configs.read_config(spec.name)
            facts |= {
                "policy": config.policy.use,
                "rewards": [reward.name or reward.use for reward in config.rewards],
                "steps": _steps(config),
            }
            components = [("policy", config.policy.use), *(("reward", reward.use) for reward in config.rewards)]
            packages = [registry.find(kind, use)[0].package for kind, use in components if registry.spec_of(kind, use)]
            facts["plugins"] = sorted({plugin.package, *packages})
        except GrpokitError as error:
            facts["problem"] = f"{error} {spec.install}".strip()
        if name:
            facts["config"] = configs.text_of(spec)
        yield facts


def _steps(config: RunConfig) -> int:
    """The steps of all phases and rounds; 0 where they depend on the policy."""
    return config.rounds * sum(phase.steps for phase, _ in config.phased())
