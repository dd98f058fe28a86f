"""Finds components by words: in their names, their summaries, and the keywords of their packages."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grpokit import registry
from grpokit.cli.catalogue import Row, place
from grpokit.registry.entry_points import normal

_KEYWORD = "grpokit-plugin"  # that packages with components have in their metadata
_LITTLE = frozenset("a an and as by for from how in is it of on or the to what with".split())  # noqa: SIM905  # shorter
_ALIKE = [  # words that people use for one thing
    set(words.split())
    for words in (
        "image picture photo photograph",
        "math arithmetic number numeric",
        "aesthetic beauty beautiful",
        "human people",
        "similar similarity overlap",
        "game environment world",
    )
]


@dataclass(frozen=True, kw_only=True)
class Package:
    """An installed package that has the keyword of plugins, by its metadata."""

    version: str
    summary: str
    keywords: str


def terms(words: Iterable[str]) -> list[str]:
    """The words that tell something, without an s at their ends.

    >>> terms(["text in", "Pictures"])
    ['text', 'picture']
    """
    every = _tokens(" ".join(words))
    telling = [word for word in every if word not in _LITTLE]
    return [_singular(word) for word in telling or every]


def silent(packages: Mapping[str, Package]) -> list[Row]:
    """A row for each of some packages that announces nothing."""
    announced = {plugin.package for plugin in registry.plugins()}
    return [
        Row(
            kind="plugin",
            name=name,
            package=name,
            version=each.version,
            state="announces nothing",
            group="plugin",
            summary=each.summary,
        )
        for name, each in packages.items()
        if name not in announced
    ]


def search(wanted: Sequence[str], rows: Iterable[Row], packages: Mapping[str, Package]) -> tuple[list[Row], int]:
    """The rows that have the most of some `terms`, the nearest of each group first, and how many of them they have."""
    points = {row: _points(row, wanted, packages.get(row.package)) for row in rows}
    most = max((len(each) for each in points.values()), default=0)
    if most == 0:
        return [], 0
    nearest = [row for row, each in points.items() if len(each) == most]
    nearest.sort(key=lambda row: -sum(points[row]))
    return sorted(nearest, key=place), most


def packages_of_plugins() -> dict[str, Package]:
    """The installed packages with the keyword of plugins."""
    packages = {}
    for each in importlib.metadata.distributions():
        text = each.read_text("METADATA") or each.read_text("PKG-INFO") or ""
        if _KEYWORD not in text:  # most have not, and to parse them all takes long
            continue
        metadata = each.metadata
        keywords, summary = (" ".join(metadata.get_all(key) or []) for key in ("Keywords", "Summary"))
        if _KEYWORD in keywords:
            name = normal(metadata["Name"])
            packages[name] = Package(version=each.version, summary=summary, keywords=keywords)
    return packages


def _points(row: Row, wanted: Iterable[str], package: Package | None) -> list[int]:
    """For each term that the row has, or a word like it, how near that brings it."""
    about = f"{row.kind} {row.words} {row.package} {package.keywords if package else ''}"
    description = package.summary if package and row.kind == "plugin" else ""
    tokens = [_tokens(text) for text in (row.name, row.summary, about, description)]
    points = []
    for term in wanted:
        alike = next((words for words in _ALIKE if term in words), {term})
        nearness = 0
        for part, words in enumerate(tokens):
            if _has(words, {term}):
                nearness = max(nearness, 8 - 2 * part)
            elif _has(words, alike):
                nearness = max(nearness, 7 - 2 * part)
        if nearness:
            points.append(nearness)
    return points


def _has(words: Iterable[str], beginnings: Iterable[str]) -> bool:
    return any(word.startswith(tuple(beginnings)) for word in words)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _tokens(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower().replace("hugging face", "huggingface"))  # which is no face
