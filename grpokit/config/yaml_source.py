"""YAML as configs mean it: plain data, and the place of every key, so that a later mistake can name its line.

Scalars are read as YAML 1.2 reads them, since people trip over 1.1: `5e-6` and `010` are numbers, `no`, `1:30` and
`2026-11-21` are texts. A repeated key and an unknown tag are errors. What comes out can be written as YAML again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from grpokit.errors import ConfigError, brief, one_line

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of a config down to a value."""

_OVERRIDE = "override "


@dataclass
class KeyPlaces:
    """The place of each key of a config.

    Attributes:
        name: the file.
        places: path of keys -> "file, line n", or the override that set it.
    """

    name: str
    places: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """The place of a key, or of the nearest one around it, with the overrides that set keys inside it."""
        inside = (place for key, place in self.places.items() if key[: len(path)] == path)
        overrides = [place for place in inside if place.startswith(_OVERRIDE)]
        while path and path not in self.places:
            as_text = (*path[:-1], str(path[-1]))  # a key that is a number was noted as its text
            path = as_text if as_text in self.places else path[:-1]
        nearest = self.places.get(path, self.name)
        return ", with ".join(dict.fromkeys([nearest, *overrides]))

    def in_file(self, path: KeyPath) -> bool:
        """Whether the value of a key is the file's."""
        return not self.places.get(path, _OVERRIDE).startswith(_OVERRIDE)

    def override(self, path: KeyPath, text: str) -> None:
        """Note that the override `text` set the key at `path`, and so replaced everything below it."""
        for below in [other for other in self.places if other[: len(path)] == path]:
            del self.places[below]
        for end in range(1, len(path)):  # groups that the override made
            self.places.setdefault(path[:end], f"{_OVERRIDE}{brief(text)}")
        self.places[path] = f"{_OVERRIDE}{brief(text)}"


def read_yaml(text: str, name: str) -> tuple[Any, KeyPlaces]:
    """Read YAML; `name` names it in messages, such as its file.

    Raises:
        ConfigError: it is not YAML; with the line if it is known.
    """
    source = KeyPlaces(name)
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is None:
            return None, source
        _note(node, (), source)
        return _Loader("").construct_document(node), source
    except RecursionError:
        problem = "it is nested too deeply, or an anchor contains itself"
    except yaml.MarkedYAMLError as error:
        name += f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        is_half = str(error.problem).startswith("but ")  # "expected ..., but found ..."
        problem = f"{error.context}, {error.problem}" if is_half else str(error.problem or error.context)
    except yaml.YAMLError as error:
        problem = one_line(error)
    raise ConfigError(f"{name}: not YAML: {problem}.", page="configs")


def to_yaml(data: Any, *, inline: bool = False) -> str:
    """Plain data as YAML that `read_yaml` gives back as it was.

    Args:
        data: the data.
        inline: write one line.

    >>> to_yaml({"name": "5e-6", "rate": 5e-6, "answer": "no"}, inline=True)
    "{name: '5e-6', rate: 5.0e-06, answer: 'no'}\\n"
    """
    width = 10**9 if inline else 80
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=inline, width=width)


def _note(node: yaml.Node, path: KeyPath, source: KeyPlaces) -> None:
    """Note the place of everything below `node`, and refuse keys that YAML allows but nobody means."""
    source.places[path] = f"{source.name}, line {node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            _note(child, (*path, i), source)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in keys:
                twice = isinstance(key, yaml.ScalarNode)
                what = f"the key {brief(key.value)} appears twice" if twice else "expected a text key, got brackets"
                raise yaml.MarkedYAMLError(problem=what, problem_mark=key.start_mark)
            keys.add(key.value)
            _note(child, (*path, key.value), source)
            source.places[(*path, key.value)] = f"{source.name}, line {key.start_mark.line + 1}"


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema, and none of YAML 1.1's dates, sets and bytes."""


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes every text that YAML 1.1 or 1.2 would read as something else."""


def _constructor(read: Callable[[str], Any]) -> Callable[[_Loader, Any], Any]:
    def construct(loader: _Loader, node: Any) -> Any:
        try:
            return read(loader.construct_scalar(node))
        except ValueError as error:  # a tag that says otherwise, such as `!!int abc`, or thousands of digits
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error

    return construct


_YAML = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in entries if tag in (f"{_YAML}null", f"{_YAML}merge")]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.yaml_constructors = {
    tag: yaml.SafeLoader.yaml_constructors[tag]
    for tag in (f"{_YAML}null", f"{_YAML}str", f"{_YAML}seq", f"{_YAML}map", None)
}
for _kind, _read, _pattern, _first in (
    ("bool", lambda text: text.lower() == "true", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (
        "int",
        lambda text: int(text, {"0x": 16, "0o": 8}.get(text[:2], 10)),
        r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
        "-+0123456789",
    ),
    (
        "float",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
):
    _Dumper.add_implicit_resolver(_YAML + _kind, re.compile(f"^({_pattern})$"), list(_first))
    _Loader.add_implicit_resolver(_YAML + _kind, re.compile(f"^({_pattern})$"), list(_first))
    _Loader.add_constructor(_YAML + _kind, _constructor(_read))
