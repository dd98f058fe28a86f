"""Writes grpokit/registry/shipped.json: what each of our components does, and which extra brings it.

The core must not name its plugins, yet it should say `pip install 'grpokit[ocr]'` to someone who lacks one, and
`grpokit plugins --search` should find it. So this script reads what the plugins of the repository announce, and the
grades of docs/gallery.json. `python tools/shipped_components.py` writes the file; with `--check` it exits with 1 where
the file is out of date. A test does the same.
"""

from __future__ import annotations

import importlib.resources
import json
import re
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FILE, FIGURES = ROOT / "grpokit/registry/shipped.json", ROOT / "docs/gallery.json"
COMMON = ("grpokit-plugin", "GRPO", "reinforcement learning", "policy", "reward")  # keywords that tell nothing apart
sys.path[:0] = [str(ROOT), *(str(folder) for folder in sorted(ROOT.glob("plugins/*/src")))]

from typer.main import get_command  # noqa: E402

from grpokit.cli import app  # noqa: E402
from grpokit.cli.catalogue import needs  # noqa: E402
from grpokit.config.yaml_source import read_yaml  # noqa: E402  # only now that the path leads to this repository
from grpokit.registry.entry_points import Plugin, load_plugin  # noqa: E402
from grpokit.registry.specs import Spec  # noqa: E402


def project(folder: Path) -> dict[str, Any]:
    """The table `project` of a distribution's pyproject.toml."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def distributions() -> list[dict[str, Any]]:
    """Of grpokit itself and of all distributions below plugins/."""
    return [project(folder) for folder in (ROOT, *sorted(ROOT.glob("plugins/*/")))]


def announced() -> dict[str, list[Plugin]]:
    """Distribution -> its plugins."""
    plugins = {
        distribution["name"]: [
            load_plugin(EntryPoint(name, value, "grpokit"))
            for name, value in distribution["entry-points"]["grpokit"].items()
        ]
        for distribution in distributions()
        if "entry-points" in distribution  # a library has none
    }
    for plugin in (plugin for found in plugins.values() for plugin in found):
        assert not plugin.error, plugin.error
    return plugins


def specs() -> list[tuple[str, Spec]]:
    """All components with their distributions, as `grpokit plugins` lists them: by the names of the plugins."""
    plugins = [(package, plugin) for package, some in announced().items() for plugin in some]
    plugins.sort(key=lambda each: each[1].name)
    return [(package, spec) for package, plugin in plugins for spec in plugin.specs]


def components() -> dict[str, dict[str, dict[str, str]]]:
    """Kind -> name -> its distribution ("package"), the smallest extra that brings all that it needs, and what it is.

    Of the core's own only the grades are kept besides, since the core is always there to say the rest.
    """
    grades = {name: figures["overall"] for name, figures in json.loads(FIGURES.read_text())["rewards"].items()}
    keywords = {
        each["name"]: ", ".join(word for word in each["keywords"] if word not in COMMON) for each in distributions()
    }
    every = specs()
    owners = {(spec.kind, spec.name): package for package, spec in every}
    assert len(owners) == len(every), "two of our plugins bring a component of the same kind and name"
    table: dict[str, dict[str, dict[str, str]]] = {}
    for package, spec in sorted(every, key=lambda each: (each[1].kind, each[1].name)):
        kind, name = spec.kind, spec.name
        needed = {package}
        if kind == "preset":
            needed |= {owners[component] for component in used_by(spec.factory)}
        entry = {"package": package, "extra": extra_with(needed - {"grpokit"})}
        if package != "grpokit":
            entry |= {"summary": spec.summary, "needs": needs(spec), "takes": getattr(spec, "takes", "")}
            entry["keywords"] = keywords[package]
        if kind == "reward":
            entry |= {"grade": grades.get(name, ""), "statistic": "yes" if spec.statistic else ""}
        table.setdefault(kind, {})[name] = {key: value for key, value in entry.items() if value}
    table["command"] |= {name: {"package": "grpokit"} for name in get_command(app).commands}
    return table


def used_by(preset: str) -> set[tuple[str, str]]:
    """(kind, name) of each component that a preset's file names."""
    package, _, inside = preset.partition(":")
    config, _ = read_yaml(importlib.resources.files(package).joinpath(inside).read_text(encoding="utf-8"), preset)
    chosen = [(kind, config["trainer"].get(kind)) for kind in ("advantage", "objective")]
    names = [(kind, value["use"] if isinstance(value, dict) else value) for kind, value in chosen if value]
    return {("policy", config["policy"]["use"]), *(("reward", reward["use"]) for reward in config["rewards"]), *names}


def extra_with(packages: set[str]) -> str:
    """The extra of grpokit with the fewest distributions that holds all of `packages`; empty for none."""
    extras = {
        extra: {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements}  # type: ignore[index]
        for extra, requirements in project(ROOT)["optional-dependencies"].items()
    }
    enough = [extra for extra, brought in extras.items() if packages <= brought]
    assert enough, f"no extra of grpokit brings {packages}"
    return min(enough, key=lambda extra: len(extras[extra])) if packages else ""


def text() -> str:
    """What the file should hold, with a line for each component."""
    parts = []
    for kind, entries in components().items():
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
        parts.append(f"{json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(arguments: list[str]) -> int:
    """Write the file, or with --check compare it; returns the exit code."""
    if "--check" not in arguments:
        FILE.write_text(text(), encoding="utf-8")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text():
        return 0
    print(f"{FILE.relative_to(ROOT)} is out of date: run python {Path(__file__).relative_to(ROOT)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
