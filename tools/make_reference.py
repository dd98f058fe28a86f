"""Writes the pages of docs/ that the program itself knows best: the command line, the config's keys, the architecture.

`python tools/make_reference.py` writes them, and with `--check` it exits with 1 where one is out of date. A test does
the same. Each page has one source: the typer program, the JSON schema of a config, and the table of `architecture.py`
with the imports that stand in the code.
"""

from __future__ import annotations

import json
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

from grpokit import cli  # noqa: E402
from grpokit.config.parts import OBJECTIVE_KEYS  # noqa: E402
from grpokit.config.schema import RunConfig  # noqa: E402

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
        "How the policy learns. [Objectives](../objectives.md) has the defaults of each objective.",
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
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        required = models[name].get("required", [])
        for key, field in models[name]["properties"].items():
            default = "required" if key in required else _default(key, field)
            link = f"[`{key}`](#{key})" if heading == TOP and key in PARTS else f"`{key}`"
            lines.append(f"| {link} | {_cell(_values(field))} | {default} | {_cell(_meaning(field, models))} |")
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
