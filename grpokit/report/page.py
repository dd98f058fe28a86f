"""Puts what a run holds into the templates: `report.html` of one run, `compare.html` of two.

A page carries a policy that forbids scripts and every request, so that it opens offline and text from data stays text.
It is replaced as a whole, so that it can be rebuilt while somebody reads it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import yaml

from grpokit.config.schema import differences
from grpokit.errors import RunError, UsageError
from grpokit.files import replacing
from grpokit.report.charts import charts, quiet, story
from grpokit.report.reading import listed, read
from grpokit.report.samples import Album, figure, first_and_last, grid, groups, pairs
from grpokit.report.scores import changes, hacking, headline, moved, prompts_of


def alarm(run: Path) -> str:
    """The report's alarm about reward hacking on held-out prompts; empty where there is no sign of it."""
    return hacking(headline(read(run)))


@quiet()
def write(run: Path) -> Path:
    """Write `report.html` (and `report.png`) into the run folder and return its path.

    Raises:
        UsageError: it is not a run folder.
        RunError: the page cannot be written.
    """
    content, album = read(run), Album()
    tiles = headline(content)
    page = _render(
        "report.html",
        run=content,
        headline=tiles,
        alarm=hacking(tiles),
        prompts=prompts_of(content),
        moved=moved(content),
        charts=charts([content]),
        grid=grid(content, album),
        pairs=first_and_last(content, album),
        groups=groups(content, album),
        last=content.metrics[-1] if content.metrics else {},
    )
    path = run / "report.html"
    _whole(path, lambda place: place.write_bytes(page))
    if content.metrics and content.evaluations:
        _whole(run / "report.png", lambda place: story(content, album).savefig(place, dpi=110, format="png"))
    return path


def compare(first: Path, second: Path) -> Path:
    """Write `compare.html` into the second run's folder and return its path.

    Raises:
        UsageError: a folder is not a run folder, or both are the same.
        RunError: the page cannot be written.
    """
    if first.resolve() == second.resolve():
        raise UsageError(f"{first} and {second} are the same run folder; a comparison needs two runs.")
    a, b, album = read(first), read(second), Album()
    shared = {name: weight for name, weight in b.weights.items() if name in a.weights}
    same_mix = a.weights == b.weights
    if not same_mix:
        shared.pop("reward", None)  # two different sums
    gaps = []
    if a.evaluations and b.evaluations:
        last = a.evaluations[-1]["step"], b.evaluations[-1]["step"]
        gaps = changes(a.evaluations[-1], b.evaluations[-1], a.scored(last[0]), b.scored(last[1]), shared)
    folders = a.sample_folders("samples")[-1:] + b.sample_folders("samples")[-1:]
    side_by_side = None
    if len(folders) == 2:
        labels = tuple(f"{letter}, step {step}" for letter, (step, _) in zip("AB", folders, strict=True))
        side_by_side = {"labels": labels, **pairs(folders[0][1], folders[1][1], shared, album)}
    page = _render(
        "compare.html",
        runs=(("A", first, a, {c.name: c for c in headline(a)}), ("B", second, b, {c.name: c for c in headline(b)})),
        gaps=gaps,
        same_mix=same_mix,
        charts=charts([a, b]),
        pairs=side_by_side,
        config=_differences(dict(a.settings), dict(b.settings)),
        versions=_differences(_parsed(a.versions), _parsed(b.versions)),
    )
    path = second / "compare.html"
    _whole(path, lambda place: place.write_bytes(page))
    return path


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(key, A, B) as YAML would say it; the run folders differ anyway."""
    return [
        (key, "–" if old is None else _short(old), "–" if new is None else _short(new))
        for key, old, new in differences(before, after)
        if key != "run.dir"
    ]


def _short(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


def _parsed(versions: str) -> dict[str, Any]:
    try:
        packages = json.loads(versions)
    except ValueError:
        return {}
    return packages if isinstance(packages, dict) else {}


def _render(template: str, **values: Any) -> bytes:
    """Everything that comes from data is escaped by the template; half a surrogate pair is shown as its escape."""
    return _templates().get_template(template).render(**values).encode(errors="backslashreplace")


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("grpokit.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(figure=figure, listed=listed)
    return environment


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file completely or not at all; other processes may write it at the same time."""
    try:
        with replacing(path, shared=True) as temporary:
            write(temporary)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}.") from error
