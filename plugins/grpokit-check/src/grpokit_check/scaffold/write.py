"""Writes the package of a new plugin, which works and has tests, and which the author then changes.

The folders in `templates/new` hold what every package has, what one of a kind of component has, and what belongs to a
variant of it. They are written for the author who reads them. The components in them are real, so the new package
passes its own tests at once.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2

from grpokit import registry
from grpokit.errors import UsageError, brief, nearest
from grpokit.files import writing

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 30
_TAKEN = ("false", "null", "true", "grpokit", "reward", "step")
_NOBODY = "YOUR NAME"
_PRESETS = {"image": "toy-glyph", "text": "toy-lm"}  # that the new component trains with, by what their policies make
_PRESETS_PACKAGE = "grpokit-toy"

_COLOUR_TASK = {
    "layers": ["colours"],
    "makes": "image",
    "reward": "near_target",
    "task": "to draw the colour that the prompt names",
    "prompt": "'a red hat'",
    "steps": 80,
}
_TEMPLATES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "reward": {
        "image": {"options": "'rewards=[{{use: {name}}}]'"},
        "text": {"options": "'rewards=[{{use: {name}}}]'"},
    },
    "policy": {
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
    },
    "advantage": {"": {"options": "trainer.advantage={name}"}},
    "objective": {"": {"options": "trainer.objective={name}"}},
    "modifier": {"": {"options": "'trainer.modifiers=[{{use: {name}}}]'"}},
    "preset": {"": {}},
    "evaluation": {"": {}},
    "world": {"": {}},
    "dataset": {"": {"options": "'data={{use: {name}}}'"}},
}
"""Kind of component -> its variants, of which the first is the default -> words of its templates.

"layers" are further folders, and "options" the words that let a preset train with it.
"""


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
    """Write the package `grpokit-<name>` with a working component.

    Args:
        what: "reward", "policy", "advantage", "objective", "modifier", "preset", "evaluation", "world" or "dataset".
        name: what configs will call it; small letters, digits and single hyphens.
        folder: where the package's folder is made.
        kind: what a reward scores: "image" (None means it) or "text"; what a policy is: "text" (None means it), "image"
            (visual tokens) or "flow" (steps of a rectified flow). The others have no kinds.

    Raises:
        UsageError: the name cannot be used or is taken, or the package's folder exists already.
        RunError: the package cannot be written.
    """
    if what not in _TEMPLATES:
        raise UsageError(f"Expected one of {', '.join(_TEMPLATES)}; got '{what}'{nearest(what, _TEMPLATES)}.")
    kinds = [each for each in _TEMPLATES[what] if each]
    if kind is not None and kind not in kinds:
        known = f"has the kinds {', '.join(kinds)}" if kinds else "has no kinds"
        raise UsageError(f"{article(what).capitalize()} {known}; got '{kind}'{nearest(kind, kinds)}.")
    _check_name(name)
    place = folder / f"grpokit-{name}"
    words = _words(what, name, kind or next(iter(_TEMPLATES[what])))
    files = _render(["all", what, f"{what}-{words['kind']}", *words["layers"]], words)
    _write(place, files)
    steps = (
        f"cd {shlex.quote(str(place))}",
        "pip install -e '.[test]'",
        "pytest",
        f"grpokit check {name}",
        *([words["run"]] if words["run"] else []),
    )
    return Scaffold(folder=place, files=tuple(sorted(files)), next_steps=steps)


def article(what: str) -> str:
    """A kind of component with its article.

    >>> article("reward"), article("objective")
    ('a reward', 'an objective')
    """
    return f"{'an' if what[0] in 'aeo' else 'a'} {what}"


def _words(what: str, name: str, kind: str) -> dict[str, Any]:
    """The names that the templates use, with their values."""
    template = _TEMPLATES[what][kind]
    under = name.replace("-", "_")
    core = version("grpokit")
    preset = _PRESETS["image" if what == "reward" and kind == "image" else "text"]
    torch = ["torch>=2.6"] if what in ("policy", "advantage", "objective", "modifier") else []
    pillow = ["pillow>=10.3"] if kind in ("image", "flow") else []
    base = [f"{_PRESETS_PACKAGE}~={core}"] if what == "preset" else []
    author = _author()
    return {
        "layers": [],
        **template,
        "what": what,
        "name": name,
        "kind": kind,
        "package": f"grpokit-{name}",
        "module": f"grpokit_{under}",
        "under": under,
        "version": core,
        "author": author,
        "author_text": json.dumps(author, ensure_ascii=False),  # of TOML, too
        "year": datetime.date.today().year,
        "source": f"https://github.com/YOUR-ACCOUNT/grpokit-{name}",
        "needs": [*base, *pillow, *torch],
        "data": '["py.typed", "*.yaml"]' if what in ("policy", "preset", "evaluation") else '["py.typed"]',
        "preset": preset,
        "preset_package": _PRESETS_PACKAGE,
        "run": _run(what, name, preset, template.get("options", "")),
    }


def _run(what: str, name: str, preset: str, options: str) -> str:
    """The command that uses the component, which can be typed again; empty for one that needs more than a command."""
    short = f"trainer.steps=5 run.dir=runs/{name} --overwrite"
    return {
        "policy": f"grpokit train {name} --overwrite",
        "preset": f"grpokit train {name} {short}",
        "evaluation": f"grpokit evaluate {preset} --with {name}",
        "world": "",
    }.get(what, f"grpokit train {preset} {options.format(name=name)} {short}")


def _author() -> str:
    """The user's name as git knows it, or a placeholder of which the package's README speaks."""
    try:
        done = subprocess.run(["git", "config", "user.name"], capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return _NOBODY
    return done.stdout.strip() or _NOBODY


def _check_name(name: str) -> None:
    if name.startswith("grpokit-"):
        raise UsageError(f"Leave 'grpokit-' out of the name: the package of '{name[8:]}' is called {name}.")
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"The name {brief(name)} cannot name a package: expected at most {_LONGEST} small letters, digits and "
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


def _render(layers: Sequence[str], words: Mapping[str, Any]) -> dict[str, str]:
    """Path -> text, of the templates in some folders of `templates/new`; paths have curly words, texts square ones."""
    environment = jinja2.Environment(  # GitHub's workflows and Python's f-strings have curly brackets of their own
        loader=jinja2.PackageLoader("grpokit_check.scaffold", "templates/new"),
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
