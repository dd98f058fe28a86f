"""Writes the pages of docs/reference, which the program itself knows best, and the table of packages in README.

`python tools/make_reference.py` writes them, and with `--check` it exits with 1 where one is out of date. A test does
the same. Each page has one source: the typer program, the JSON schema of a config, the installed objectives,
advantages and modifiers, the conformance checks, the cards of `grpokit plan`, and the imports that stand in the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools"), *(str(folder) for folder in sorted(ROOT.glob("plugins/*/src")))]

import architecture  # noqa: E402  # only now that the path leads to this repository
import typer.main  # noqa: E402
from typer.cli import get_docs_for_click  # noqa: E402

from grpokit import cli, registry, settings  # noqa: E402
from grpokit.config.parts import OBJECTIVE_KEYS  # noqa: E402
from grpokit.config.schema import RunConfig  # noqa: E402
from grpokit.registry.specs import RewardSpec, Spec  # noqa: E402
from grpokit.settings import ObjectiveSettings  # noqa: E402
from grpokit_check import component, observer_checks  # noqa: E402
from grpokit_plan.cards import CARDS, GIB  # noqa: E402

GENERATED = "<!-- Written by tools/make_reference.py: run it instead of editing this page. -->\n\n"

TOP = "The whole file"
PARTS = {  # heading -> the model that declares its keys; the words below each heading
    TOP: ("RunConfig", "The parts of a config."),
    "policy": ("Component", "What learns. The keys beside `use` go to the policy's factory."),
    "data": ("DataConfig", "Where prompts come from: exactly one of `prompts`, `dataset` and `use`."),
    "eval": ("EvalConfig", "The held-out prompts, from at most one of `prompts`, `split` and `fraction`."),
    "rewards": ("RewardConfig", "A list. All other keys go to the reward's factory."),
    "trainer": (
        "TrainerConfig",
        "How the policy learns. [Objectives, advantages, modifiers](objectives.md) has the defaults of each objective.",
    ),
    "trainer.correction": (
        "CorrectionConfig",
        "Importance weights for a [sampler of another kind](../configs.md#another-sampler).",
    ),
    "phases": (
        "PhaseConfig",
        "A list of [stretches in which one policy learns](../configs.md#phases). `trainer` inside a phase takes the "
        "keys of [`trainer`](#trainer) except `steps`, `device` and `mixed_precision`.",
    ),
    "run": ("RunSettings", "What a run saves."),
    "trackers": ("TrackersConfig", "Other places that metrics go to: see [Trackers](../trackers.md)."),
}


def config_page() -> str:
    """Every key of a config with its type, bounds, default and meaning."""
    schema = RunConfig.model_json_schema()
    models = {**schema["$defs"], "RunConfig": schema}
    lines = [
        "# Config keys\n",
        "Every key, with the values that it takes. [Configs](../configs.md) explains how they work together.",
        "On the command line a key is written with dots, as in `trainer.steps=50` or `rewards.0.weight=2`.\n",
    ]
    for heading, (name, words) in PARTS.items():
        lines += [f"## {heading if heading == TOP else f'`{heading}`'}\n", f"{words}\n"]
        lines += ["| key | meaning | value | default |", "|---|---|---|---|"]
        required = models[name].get("required", [])
        for key, field in models[name]["properties"].items():
            default = "required" if key in required else _default(key, field)
            link = f"[`{key}`](#{key})" if heading == TOP and key in PARTS else f"`{key}`"
            lines.append(f"| {link} | {_cell(_meaning(field, models))} | {_cell(_values(field))} | {default} |")
        lines.append("")
    return GENERATED + "\n".join(lines).rstrip() + "\n"


def _meaning(field: dict[str, Any], models: dict[str, Any]) -> str:
    text = field.get("description")
    if text is None:
        text = next(models[name]["description"] for name in _named(field))
        text = text[0].lower() + text[1:]
    return text.removesuffix(".").replace("None", "null")


def _named(field: dict[str, Any]) -> Iterator[str]:
    """The models that a key's value may be."""
    for part in (field, field.get("items", {}), *field.get("anyOf", [])):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]


def _default(key: str, field: dict[str, Any]) -> str:
    if key in OBJECTIVE_KEYS:
        return "the objective's"
    if "default" not in field:
        return "empty" if not list(_named(field)) or "items" in field else "as below"
    return f"`{json.dumps(field['default']).strip(chr(34))}`"


def _values(field: dict[str, Any]) -> str:
    """What a key takes, in words, with its bounds."""
    if "anyOf" in field:
        return " or ".join(_values(part) for part in field["anyOf"])
    if "$ref" in field:
        return "name with parameters" if field["$ref"].endswith("/Component") else "keys"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field["type"]
    if kind == "array":
        return f"list of {_values(field['items'])}"
    names = {
        "integer": "whole number",
        "string": "text",
        "boolean": "`true`, `false`",
        "null": "`null`",
        "object": "mapping",
    }
    return names.get(kind, kind) + _bounds(field)


def _bounds(field: dict[str, Any]) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{word} {field[name]:,}" for name, word in words.items() if name in field and abs(field[name]) < 2**62]
    return f", {', '.join(bounds)}" if bounds else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def cli_page() -> str:
    """The commands of grpokit, as its own help texts describe them."""
    program = typer.main.get_command(cli.app)
    context = typer.Context(program, info_name="grpokit")
    names = program.list_commands(context)  # type: ignore[attr-defined]
    for name in names:
        _, program.commands[name], _ = program.resolve_command(context, [name])  # type: ignore[attr-defined]
    program.list_commands = lambda _: names  # type: ignore[attr-defined]  # as grpokit's own now
    for command in program.commands.values():  # type: ignore[attr-defined]
        command.epilog = ""  # a list of what is installed, which the gallery has
        command.short_help = command.help.partition("\n")[0]
    body = get_docs_for_click(obj=program, ctx=context, name="grpokit", title="Command line")
    return GENERATED + body.replace("{", "").replace("}", "").rstrip() + "\n"


KINDS = {
    "policy": "policies",
    "preset": "presets",
    "reward": "rewards",
    "evaluation": "evaluations",
    "advantage": "advantages",
    "objective": "objectives",
    "modifier": "modifiers",
    "placement": "placements",
    "world": "worlds",
    "dataset": "datasets",
    "command": "commands",
}


def readme() -> str:
    """README with the components of each installed package in its table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    brings: dict[str, list[str]] = {}
    described: dict[str, list[str]] = {}  # what the statistics of a package are of
    for kind, several in KINDS.items():
        names: dict[str, list[str]] = {}
        for plugin, spec in registry.installed(kind):
            if isinstance(spec, RewardSpec) and spec.statistic and plugin.package != "grpokit":
                described.setdefault(plugin.package, []).extend(f"{output}s" for output in sorted(spec.accepts))
                continue
            name = f"grpokit {spec.name}" if kind == "command" else spec.name
            names.setdefault(plugin.package, []).append(f"`{name}`")
        for package, own in names.items():
            brings.setdefault(package, []).append(f"{kind if len(own) == 1 else several} {', '.join(own)}")

    for package, kinds in described.items():
        *first, last = [kind.replace("images", "pictures") for kind in dict.fromkeys(kinds)]
        brings.setdefault(package, []).append(f"statistics of {' and '.join(filter(None, [', '.join(first), last]))}")

    def row(found: re.Match[str]) -> str:
        start, package, old, end = found.groups()
        return f"{start}{'; '.join(brings[package]) if package in brings else old}{end}"

    return re.sub(r"^(\| \[?`(grpokit[\w-]*)`\S* \| )(.*)( \| [^|]*\|)$", row, text, flags=re.MULTILINE)


def _table(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(_cell, cells))} |\n".replace("None", "null")


def _sources(target: Any) -> str:
    """The papers that a docstring names."""
    numbers = dict.fromkeys(re.findall(r"arXiv:([\d.]+\d)", inspect.getdoc(target) or ""))
    return ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in numbers)


def _first_paragraph(target: Any) -> str:
    paragraph = (inspect.getdoc(target) or "").partition("\n\n")[0].replace("\n", " ")
    return re.sub(r" \([^()]*arXiv:[^()]*\)|\*(?=other)|(?<=other)\*", "", paragraph).removesuffix(".")


def _value(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return json.dumps(list(value) if isinstance(value, tuple) else value).strip('"')


def _parameters(spec: Spec) -> str:
    """The parameters of a component that a config may set, with their defaults and meanings."""
    declared, _ = registry.declared_parameters(spec.kind, spec.name)
    words = settings.meanings(registry.resolve(spec.factory))
    return "<br>".join(f"`{name}` ({_value(p.default)}): {words.get(name, '')}" for name, p in declared.items())


def objectives_page() -> str:
    """The installed objectives, advantages and modifiers, with their formulas, defaults and sources."""
    common = {each.name: each.default for each in dataclasses.fields(ObjectiveSettings)}
    lines = [
        "# Objectives, advantages, modifiers\n\n",
        "What all packages of this repository bring. [Objectives](../objectives.md) explains how to choose, and "
        "`grpokit plugins NAME` shows the same for what is installed on your machine.\n\n",
        "r is the importance ratio, A the advantage and p the new probability of a decision.\n\n",
        "## Objectives\n\n",
        "`trainer.objective` names one. Settings with another default than in the next table are in the third column; "
        "*fixed* ones cannot be changed.\n\n",
        _table("name", "loss of a decision", "settings and defaults", "papers"),
    ]
    for _, spec in registry.installed("objective"):
        target = registry.resolve(spec.factory)
        own = []
        for each in dataclasses.fields(target):
            if each.name not in common or each.default != common[each.name] or not each.init:
                own.append(f"`{each.name}` {_value(each.default)}{'' if each.init else ' (fixed)'}")
        lines.append(_row(f"`{spec.name}`", _first_paragraph(target), ", ".join(own), _sources(target)))
    lines += ["\n## Settings of all objectives\n\n", _table("setting", "default", "meaning")]
    meanings = settings.meanings(ObjectiveSettings)
    lines += [_row(f"`{name}`", _value(default), meanings[name].removesuffix(".")) for name, default in common.items()]
    lines += ["\n## Settings of single objectives\n\n", _table("setting", "of", "meaning")]
    owners: dict[tuple[str, str], list[str]] = {}
    for _, spec in registry.installed("objective"):
        words = settings.meanings(registry.resolve(spec.factory))
        for name in registry.declared_parameters("objective", spec.name)[0].keys() - common.keys():
            owners.setdefault((name, words[name]), []).append(f"`{spec.name}`")
    for (name, meaning), objectives in sorted(owners.items()):
        lines.append(_row(f"`{name}`", ", ".join(objectives), meaning.removesuffix(".")))
    lines += ["\n## Advantages\n\n", "`trainer.advantage` names one.\n\n"]
    lines.append(_table("name", "what it does", "parameters (default)", "papers"))
    for _, spec in registry.installed("advantage"):
        target = registry.resolve(spec.factory)
        lines.append(_row(f"`{spec.name}`", _first_paragraph(target), _parameters(spec), _sources(target)))
    lines += ["\n## Modifiers\n\n", "`trainer.modifiers` lists them.\n\n"]
    lines.append(_table("name", "what it does", "parameters (default)"))
    for _, spec in registry.installed("modifier"):
        lines.append(_row(f"`{spec.name}`", _first_paragraph(registry.resolve(spec.factory)), _parameters(spec)))
    return GENERATED + "".join(lines)


def checks_page() -> str:
    """The conformance checks of each kind of component, with what must hold."""
    lines = [
        "# Conformance checks\n\n",
        "What `grpokit check NAME` and the generators of `grpokit_check` examine. [Conformance](../conformance.md) "
        "explains how to run them and how to read the result.\n",
    ]
    for kind, names in CHECKED.items():
        checks: dict[str, str] = {}
        for name in names:
            checks |= {check.name: check.summary for check in _checks(kind, name)}
        lines += [f"\n## Checks of {'an' if kind[0] in 'aeo' else 'a'} {kind}\n\n", _table("check", "what must hold")]
        lines += [_row(f"`{name}`", summary) for name, summary in checks.items()]
    return GENERATED + "".join(lines)


CHECKED = {  # kind -> components that have all of its checks between them
    "policy": ("toy-lm",),
    "reward": ("ssim", "exact-match"),
    "advantage": ("group",),
    "objective": ("grpo", "opd"),
    "modifier": ("entropy-filter",),
    "observer": ("",),
    "world": ("guess-the-number",),
    "dataset": ("grpokit_toy.lm:sum_prompts",),
    "preset": ("toy-lm",),
    "evaluation": ("text-rendering",),
    "command": ("plan",),
}


def _checks(kind: str, name: str) -> list[Any]:
    if kind == "policy":
        return list(component.of_policy(name, {}, None))
    if kind == "observer":
        return list(observer_checks(lambda: None))  # type: ignore[arg-type, return-value]  # none of them runs
    if kind == "reward":
        with component.of_reward(name, {}) as (checks, _):
            return list(checks)
    return list(component.of_component(kind, name, {}))


def cards_page() -> str:
    """The GPUs that `grpokit plan` knows."""
    lines = [
        "# GPUs of `grpokit plan`\n\n",
        "What makers' data sheets say. FLOP/s are dense. fp32 is without TF32, as torch computes by default. [Does it "
        "fit](../plan.md) explains what becomes of these numbers.\n\n",
        _table("`--gpu`", "memory", "bandwidth", "bf16", "fp32", "source"),
    ]
    for card in CARDS:
        speeds = [f"{(number or 0) / 1e12:.4g} TFLOP/s" for number in (card.bf16, card.fp32)]
        bandwidth = f"{(card.bandwidth or 0) / 1e9:,.0f} GB/s"
        lines.append(_row(f"`{card.name}`", f"{card.memory / GIB:.0f} GB", bandwidth, *speeds, card.source))
    return GENERATED + "".join(lines)


ROW, TEXT = 26, 24


def imports_between_parts() -> dict[str, set[str]]:
    """Part of the package -> the parts that its code imports."""
    used: dict[str, set[str]] = {row: set() for row in architecture.MAY_IMPORT}
    for file in architecture.files():
        row = architecture.row_of(file)
        used[row] |= {found.row for found in architecture.imports(file)} - {"", row}
    return used


def architecture_picture() -> str:
    """A matrix of who imports whom: a dot below the diagonal is an import, and above it there is none."""
    used = {row: names for row, names in imports_between_parts().items() if not row.startswith("_")}
    parts = list(used)
    left, top = 130, 120
    width, height = left + TEXT * len(parts) + 60, top + ROW * len(parts) + 20
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' aria-label="Who imports whom inside grpokit" font-family="sans-serif" font-size="13">',
        "<style>text{fill:#333}.dot{fill:#3f51b5}.line{stroke:#8888;stroke-width:.5}"
        "@media(prefers-color-scheme:dark){text{fill:#ccc}.dot{fill:#9fa8da}}</style>",
    ]
    for place, part in enumerate(parts):
        x, y = left + TEXT * place + TEXT / 2, top + ROW * place + ROW / 2
        shapes += [
            f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{escape(part)}</text>',
            f'<text transform="translate({x + 4} {top - 8}) rotate(-60)">{escape(part)}</text>',
            f'<line class="line" x1="{left}" x2="{x}" y1="{y}" y2="{y}"/>',
            f'<line class="line" x1="{x}" x2="{x}" y1="{y}" y2="{height - 20}"/>',
        ]
        shapes += [
            f'<circle class="dot" cx="{left + TEXT * parts.index(other) + TEXT / 2}" cy="{y}" r="5">'
            f"<title>{escape(part)} imports {escape(other)}</title></circle>"
            for other in sorted(used[part])
            if other in parts
        ]
    return "\n".join([*shapes, "</svg>\n"])


def pages() -> dict[Path, str]:
    """File -> what it should hold."""
    return {
        ROOT / "docs/reference/config.md": config_page(),
        ROOT / "docs/reference/cli.md": cli_page(),
        ROOT / "docs/reference/objectives.md": objectives_page(),
        ROOT / "docs/reference/checks.md": checks_page(),
        ROOT / "docs/reference/gpus.md": cards_page(),
        ROOT / "README.md": readme(),
        ROOT / "docs/images/architecture.svg": architecture_picture(),
    }


def main(arguments: list[str]) -> int:
    """Write the files, or with --check compare them; returns the exit code."""
    stale = 0
    for file, text in pages().items():
        if "--check" not in arguments:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            print(f"{file.relative_to(ROOT)} is out of date: run python tools/make_reference.py", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
