"""Writes the package of a new plugin, which works and has tests, and which the author then changes.

The folders in `templates/new` hold what every package has, what a reward or a policy has, and what one of a kind has.
They are written for the author who reads them. The reward and the policy in them are real, so the new package passes
its own tests at once.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

import grpokit
from grpokit import registry
from grpokit.errors import UsageError, nearest, shown
from grpokit.files import writing
from grpokit.registry import shipped

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 30
_TAKEN = ("false", "null", "true", "grpokit", "reward", "step")
_KINDS = {"reward": ("image", "text"), "policy": ("text", "image", "flow")}  # the first is the default

_COLOUR_TASK = {
    "makes": "image",
    "reward": "near_target",
    "task": "to draw the colour that the prompt names",
    "prompt": "'a red hat'",
    "steps": 80,
}
_POLICY_WORDS: Mapping[str, Mapping[str, Any]] = {
    "text": {
        "policy": "LetterTable",
        "summary": "answers a word with as many letters, each drawn on its own",
        "makes": "text",
        "reward": "letters_right",
        "task": "a cipher: each letter's answer is the next one of the alphabet",
        "prompt": "hazel",
        "setting": "temperature=0.8",
        "steps": 120,
    },
    "image": _COLOUR_TASK
    | {
        "policy": "PixelTable",
        "summary": "draws a picture of 4 x 4 cells, each a token of its own",
        "setting": "temperature=0.8",
    },
    "flow": _COLOUR_TASK
    | {"policy": "ColourFlow", "summary": "walks from noise to the colour of a picture", "setting": "noise=1.0"},
}


@dataclass(frozen=True, kw_only=True)
class Scaffold:
    """A package that was written.

    Attributes:
        folder: where it lies.
        files: what was written, relative to the folder.
        next_steps: the commands that install, test, check and use it, in this order.
    """

    folder: Path
    files: tuple[str, ...]
    next_steps: tuple[str, ...]


def new(what: str, name: str, *, folder: Path = Path(), kind: str | None = None) -> Scaffold:
    """Write the package `grpokit-<name>` with a working reward or policy.

    Args:
        what: "reward" or "policy".
        name: what configs will call it; small letters, digits and single hyphens.
        folder: where the package's folder is made.
        kind: what a reward scores: "image" (None means it) or "text"; what a policy is: "text" (None means it), "image"
            (visual tokens) or "flow" (steps of a rectified flow).

    Raises:
        UsageError: the name cannot be used or is taken, or the package's folder exists already.
        RunError: the package cannot be written.
    """
    if what not in ("reward", "policy"):
        raise UsageError(f"Expected reward or policy, got '{what}'{nearest(what, ('reward', 'policy'))}.")
    kinds = _KINDS[what]
    kind = kind or kinds[0]
    if kind not in kinds:
        raise UsageError(f"A {what} has the kinds {', '.join(kinds)}; got '{kind}'{nearest(kind, kinds)}.")
    _check_name(name)
    place = folder / f"grpokit-{name}"
    words = _words(what, name, kind)
    colours = ["colours"] if what == "policy" and kind != "text" else []
    files = _render(["all", what, f"{what}-{kind}", *colours], words)
    _write(place, files)
    return Scaffold(folder=place, files=tuple(sorted(files)), next_steps=_next_steps(what, place, words))


def _words(what: str, name: str, kind: str) -> dict[str, Any]:
    """The names that the templates use, with their values."""
    under = name.replace("-", "_")
    policy = what == "policy"
    preset = name if policy else shipped.preset_making(kind)
    needs = ["torch>=2.6"] if policy else []
    return {
        **(_POLICY_WORDS[kind] if policy else {}),
        "what": what,
        "name": name,
        "kind": kind,
        "package": f"grpokit-{name}",
        "module": f"grpokit_{under}",
        "under": under,
        "version": grpokit.__version__,
        "needs": [*(["pillow>=10.3"] if kind != "text" else []), *needs],
        "data": '["py.typed", "*.yaml"]' if policy else '["py.typed"]',
        "tests": '["pytest>=8"]' if policy or kind == "text" else '["grpokit[check]", "pytest>=8"]',
        "preset": preset,
        "preset_package": "" if policy else shipped.owner("preset", preset),
    }


def _check_name(name: str) -> None:
    if name.startswith("grpokit-"):
        raise UsageError(f"Leave 'grpokit-' out of the name: the package of '{name[8:]}' is called {name}.")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"The name {shown(name)} cannot name a package: expected at most {_LONGEST} small letters, digits and "
            "single hyphens that begin with a letter, such as 'sharp-edges'."
        )
    if name in _TAKEN:
        raise UsageError(f"The name '{name}' means something else in configs and metrics. Choose another.")
    for plugin in registry.plugins():
        kinds = [spec.kind for spec in plugin.specs if spec.name == name]
        if kinds or name == plugin.name:
            owner = f"a {kinds[0]}" if kinds else "a plugin"
            raise UsageError(
                f"'{name}' is already the name of {owner} of {plugin.package} {plugin.version}. Choose another name."
            )


def _render(layers: Collection[str], words: Mapping[str, Any]) -> dict[str, str]:
    """Path -> text, of the templates in some folders of `templates/new`; paths have curly words, texts square ones."""
    environment = jinja2.Environment(  # GitHub's workflows and Python's f-strings have curly brackets of their own
        loader=jinja2.PackageLoader("grpokit.scaffold", "templates/new"),
        variable_start_string="[[",
        variable_end_string="]]",
        block_start_string="[%",
        block_end_string="%]",
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    files = {}
    for template in environment.list_templates():
        layer, _, path = template.partition("/")
        if layer in layers:
            name = path.removesuffix(".jinja").format(dot=".", **words)
            files[name] = environment.get_template(template).render(words)
    return files


def _write(place: Path, files: Mapping[str, str]) -> None:
    if os.path.lexists(place):
        raise UsageError(
            f"{place} exists already, and nothing in it was changed. Choose another name or another --folder, or move "
            "it away."
        )
    for path, text in files.items():
        with writing(place):
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, encoding="utf-8")


def _next_steps(what: str, place: Path, words: Mapping[str, Any]) -> tuple[str, ...]:
    name = words["name"]
    reward = f"grpokit train {words['preset']} 'rewards=[{{use: {name}}}]' trainer.steps=5 run.dir=runs/{name}"
    return (
        f"cd {shlex.quote(str(place))}",
        "pip install -e '.[test]'",
        "pytest",
        f"grpokit check {name}",
        f"{f'grpokit train {name}' if what == 'policy' else reward} --overwrite",  # so that it can be typed again
    )
