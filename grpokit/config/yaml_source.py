"""YAML as configs mean it: plain data, and the place of every key, so that a later mistake can name its line.

Scalars are read as YAML 1.2 reads them, since people trip over 1.1: `5e-6` and `010` are numbers, `no`, `1:30` and
`2026-11-21` are texts. A repeated key, a value inside itself and an unknown tag are errors. What comes out can be
written as YAML again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from grpokit.errors import ConfigError, one_line, shown

DEEPEST = 50  # levels
MOST = 100_000  # values, with every alias written out: a few lines of aliases can stand for billions
Path = tuple[str | int, ...]
"""Keys and list positions from the top of a config down to a value."""


@dataclass
class Source:
    """The place of each key of a config.

    Attributes:
        name: the file.
        places: path of keys -> "file, line n", or the override that set it.
        overrides: path of keys -> the override that set it, as it was typed.
    """

    name: str
    places: dict[Path, str] = field(default_factory=dict)
    overrides: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """The place of a key, or of the nearest one around it."""
        while path and path not in self.places:
            as_text = (*path[:-1], str(path[-1]))  # a key that is a number was noted as its text
            path = as_text if as_text in self.places else path[:-1]
        return self.places.get(path, self.name)

    def override(self, path: Path, text: str) -> None:
        """Note that the override `text` set the key at `path`, and so replaced everything below it."""
        for noted in (self.places, self.overrides):
            for below in [other for other in noted if other[: len(path)] == path]:
                del noted[below]
        for end in range(1, len(path)):  # groups that the override made
            self.places.setdefault(path[:end], f"override {shown(text)}")
        self.places[path] = f"override {shown(text)}"
        self.overrides[path] = text

    def overrides_below(self, path: Path) -> dict[Path, str]:
        """The overrides that set keys inside the group at `path`."""
        return {key: text for key, text in self.overrides.items() if len(key) > len(path) and key[: len(path)] == path}


def read(text: str, name: str) -> tuple[Any, Source]:
    """Read YAML; `name` names it in messages, such as its file.

    Raises:
        ConfigError: it is not YAML; with the line where there is one.
    """
    source = Source(name)
    try:
        return _load(text, source), source
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{line}: not YAML: {problem(error)}.", page="configs") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {problem(error)}.", page="configs") from error


def write(data: Any) -> str:
    """Plain data as YAML that `read` gives back as it was.

    >>> print(write({"name": "5e-6", "rate": 5e-6, "answer": "no"}), end="")
    name: '5e-6'
    rate: 5.0e-06
    answer: 'no'
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)


def write_inline(data: Any) -> str:
    """As `write`, on one line without the closing line break.

    >>> write_inline({"prompts": "a.txt", "columns": {"prompt": "no"}})
    "{prompts: a.txt, columns: {prompt: 'no'}}"
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=True, width=10**9).strip()


def problem(error: yaml.YAMLError) -> str:
    """What is wrong, in one line without the place."""
    if not isinstance(error, yaml.MarkedYAMLError) or not (error.problem or error.context):
        return one_line(error)
    is_half = bool(error.context) and str(error.problem).startswith("but ")  # "expected ..., but found ..."
    return f"{error.context}, {error.problem}" if is_half else str(error.problem or error.context)


def load_value(text: str) -> Any:
    """Read one value.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return _load(text, Source(""))


def _load(text: str, source: Source) -> Any:
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is None:
            return None
        _note(node, (), source)
        return _Loader("").construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError(f"it is nested too deeply; expected at most {DEEPEST} levels") from error


def _note(node: yaml.Node, path: Path, source: Source, inside: tuple[yaml.Node, ...] = ()) -> None:
    """Note the place of everything below `node`, and refuse what YAML allows but nobody means."""

    def refuse(what: str, where: yaml.Node) -> yaml.MarkedYAMLError:
        return yaml.MarkedYAMLError(problem=what, problem_mark=where.start_mark)

    source.places[path] = f"{source.name}, line {node.start_mark.line + 1}"
    if any(node is outer for outer in inside):
        raise refuse("an anchor contains itself", node)
    if len(inside) >= DEEPEST:
        raise refuse(f"it is nested too deeply; expected at most {DEEPEST} levels", node)
    if len(source.places) > MOST:
        raise refuse(f"it has more than {MOST:,} values once its aliases are written out", node)
    inside = (*inside, node)
    if isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            _note(child, (*path, i), source, inside)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise refuse("expected a text as key, got brackets or braces", key)
            if key.value in keys:
                raise refuse(f"the key {shown(key.value)} appears twice", key)
            keys.add(key.value)
            _note(child, (*path, key.value), source, inside)
            source.places[(*path, key.value)] = f"{source.name}, line {key.start_mark.line + 1}"


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes every text that YAML 1.1 or 1.2 would read as something else."""


def _scalar(kind: str, read: Callable[[str], Any]) -> Callable[[_Loader, yaml.Node], Any]:
    """A constructor that refuses texts which no resolver has checked, such as `!!int abc`."""

    def construct(loader: _Loader, node: yaml.Node) -> Any:
        text = loader.construct_scalar(node)  # type: ignore[arg-type]  # any other node is refused inside
        try:
            return read(text)
        except ValueError as error:
            raise yaml.MarkedYAMLError(
                problem=f"expected {kind}, got {shown(text)}", problem_mark=node.start_mark
            ) from error

    return construct


def _whole(text: str) -> int:
    if len(text) > 1000:  # Python could not write it out again
        raise ValueError(text[:80])
    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))


def _number(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


_YAML = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in entries if tag in (f"{_YAML}null", f"{_YAML}merge")]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.yaml_constructors = {  # without those of YAML 1.1 that no config needs: dates, sets, bytes
    tag: yaml.SafeLoader.yaml_constructors[tag]
    for tag in (f"{_YAML}null", f"{_YAML}str", f"{_YAML}seq", f"{_YAML}map", None)
}
for _tag, _kind, _read, _pattern, _first in (
    ("bool", "true or false", _truth, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "a whole number", _whole, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        "a number",
        _number,
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
):
    _Dumper.add_implicit_resolver(_YAML + _tag, re.compile(f"^({_pattern})$"), list(_first))
    _Loader.add_implicit_resolver(_YAML + _tag, re.compile(f"^({_pattern})$"), list(_first))
    _Loader.add_constructor(_YAML + _tag, _scalar(_kind, _read))
