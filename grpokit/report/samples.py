"""Samples to look at: over the evaluations, and the best and worst groups of training.

A text that is too long for a page is cut. A missing or half-written picture is labelled as missing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from grpokit.evaluation.paired import prompt_means
from grpokit.report.pictures import LARGE, MEDIUM, SMALL, Album
from grpokit.run_folder.names import GROUPS, ROWS, SAMPLES
from grpokit.run_folder.reader import Row, RunHistory, read_rows, shorten_prompt

_TEXT = 1200  # characters
_GROUP_ROWS = 8
_PROMPTS = 2000  # that the table of prompts can be searched for

_T = TypeVar("_T")


def evenly(items: Sequence[_T], most: int, *, with_these: Collection[_T] = ()) -> list[_T]:
    """The first, the last, and evenly between; and those that must be there.

    >>> evenly([0, 1, 2, 3, 4, 5, 6], 3), evenly([0, 1, 2, 3, 4, 5, 6], 2, with_these=[5])
    ([0, 3, 6], [0, 5, 6])
    """
    if len(items) <= most:
        return list(items)
    last = len(items) - 1
    gaps = max(1, most - 1)
    places = {round(i * last / gaps) for i in range(most)}
    return [item for i, item in enumerate(items) if i in places or item in with_these]


def by_prompt(folder: Path) -> dict[tuple[str, int], Row]:
    """(prompt, how often it came before) -> row, with every prompt's first sample before any prompt's second."""
    rows = {}
    for row in read_rows(folder / ROWS):
        rows[shorten_prompt(row.get("prompt", "")), row.get("turn", 0)] = row
    order = sorted(rows, key=lambda key: key[1])
    return {key: rows[key] for key in order}


def evaluations(run: RunHistory, album: Album, *, most: int, also: int | None = None) -> list[dict[str, Any]]:
    """The samples of each evaluation, or of `most` of them and that after the step `also`: `step`, `label`, `rows`."""
    folders = run.sample_folders(SAMPLES)
    wanted = [(step, folder) for step, folder in folders if step == also]
    chosen = evenly(folders, most, with_these=wanted)
    large = [*chosen[:1], *chosen[-1:], *wanted]
    parts = []
    for step, folder in chosen:
        side = LARGE if (step, folder) in large else SMALL
        rows = []
        for (prompt, n), row in by_prompt(folder).items():
            rows.append({"prompt": prompt, "n": n} | _sample(run, folder, row, album, side))
        parts.append({"step": step, "label": run.label(step), "rows": rows})
    return parts


def groups(run: RunHistory, album: Album, *, most: int) -> list[dict[str, Any]]:
    """The best and the worst group of some training steps, each sorted by reward."""
    steps = []
    for step, folder in evenly(run.sample_folders(GROUPS), most):
        rows = read_rows(folder / ROWS)
        sides = []
        for place in ("best", "worst"):
            group_rows = [row for row in rows if row.get("place") == place]
            if not group_rows:
                continue
            finite = [row["reward"] for row in group_rows if row.get("reward") is not None]
            group_rows.sort(key=_from_the_best)
            shown = evenly(group_rows, _GROUP_ROWS)
            sides.append(
                {
                    "place": place,
                    "prompt": shorten_prompt(group_rows[0].get("prompt", "")),
                    "mean": sum(finite) / len(finite) if finite else None,
                    "count": len(group_rows),
                    "rows": [_sample(run, folder, row, album, MEDIUM) for row in shown],
                }
            )
        if sides:
            steps.append({"step": step, "sides": sides})
    return steps


def _from_the_best(row: Row) -> float:
    reward = row.get("reward")
    return math.inf if reward is None else -reward


def prompt_table(run: RunHistory) -> dict[str, Any] | None:
    """Mean scores of each held-out prompt at the first and the last evaluation that kept all scores.

    Returns:
        `names` of the scores, `labels` of both evaluations, and `rows` of `prompt`, `key` (equal in runs that share the
        prompt), `before` and `after` (a list of scores each, None for a missing one); and how many rows were
        `left_out`. None where no scores were kept.
    """
    found = []
    for row in (*run.evaluations[:1], *run.evaluations[-1:]):
        if scored := run.scored(row["step"]):
            found.append((row["step"], scored))
    if not found:
        return None
    (first, old), (last, new) = found[0], found[-1]
    if set(old.prompts).isdisjoint(new.prompts):
        first, old = last, new
    names = [name for name in run.weights if name in new.scores]
    old_means = [prompt_means(old, name) if name in old.scores else {} for name in names]
    new_means = [prompt_means(new, name) for name in names]
    rows: list[dict[str, Any]] = []
    for key, text in zip(new.prompts[:_PROMPTS], new.texts, strict=False):
        rows.append(
            {
                "prompt": text,
                "key": key,
                "before": [means.get(key) for means in old_means],
                "after": [means.get(key) for means in new_means],
            }
        )
    left_out = max(0, len(new.prompts) - _PROMPTS)
    return {"names": names, "labels": [run.label(first), run.label(last)], "rows": rows, "left_out": left_out}


def _sample(run: RunHistory, folder: Path, row: Row, album: Album, side: int) -> dict[str, Any]:
    """A row as the page shows it: what came out, the source and the target where it has them, and its scores."""
    shown: dict[str, Any] = {"output": _card(folder, row, "file", album, side)}
    for part in ("source", "target"):
        if card := _card(folder, row, part, album, side):
            shown[part] = card
    scores = row.get("scores", {})
    shown["scores"] = {name: score for name, score in scores.items() if name in run.weights or not run.taught}
    for name in ("reward", "advantage"):
        if name in row:
            shown[name] = row[name]
    return shown


def _card(folder: Path, row: Row, part: str, album: Album, side: int) -> dict[str, Any] | None:
    """The output ("file"), "source" or "target" of a row; None where it has none."""
    if row.get(part):
        picture = album.add(folder / Path(row[part]).name, side)
        return {"picture": picture} if picture else {"missing": True}
    value = row.get({"file": "output", "target": "target_text"}.get(part, ""))
    if value is None:
        return None
    text = str(value)
    return {"text": text[:_TEXT], "left_out": max(0, len(text) - _TEXT)}
