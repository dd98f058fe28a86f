"""Samples to look at: over the steps, before and after, and the best and worst groups of training.

Pictures are embedded small, so that a page of a long run can be mailed; a text that is too long for a page is cut. A
missing or half-written picture is labelled as missing.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from grpokit.errors import RewardError
from grpokit.images import to_rgb
from grpokit.report.reading import Row, Run, read_samples

ROWS, COLUMNS, PAIRS, STEPS, GROUP_ROWS = 8, 7, 3, 4, 8
_AS_IT_IS = 6 * 1024  # bytes; a smaller file gains nothing from being shrunk
_SIDE = 256  # pixels
_TEXT = 1200  # characters

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A sample as the page shows it.

    Attributes:
        picture: a data URI; empty where the output is a text, or the picture is missing.
        missing: whether a picture should be there and is not.
        text: the output as text.
        left_out: how many characters of it were cut.
    """

    picture: str = ""
    missing: bool = False
    text: str = ""
    left_out: int = 0


class Album:
    """Turns rows of `samples.jsonl` into cards, and reads no picture twice."""

    def __init__(self) -> None:
        self._seen: dict[Path, str] = {}

    def card(self, folder: Path, row: Row, part: str = "file") -> Card | None:
        """The output ("file"), "source" or "target" of a row; None where it has none."""
        if row.get(part):
            picture = self.picture(folder / Path(row[part]).name)
            return Card(picture=picture, missing=not picture)
        text = row.get({"file": "output", "target": "target_text"}.get(part, ""))
        if text is None:
            return None
        return Card(text=str(text)[:_TEXT], left_out=max(0, len(str(text)) - _TEXT))

    def picture(self, path: Path) -> str:
        """A picture as a data URI of at most some kilobytes; empty where it cannot be read."""
        if path not in self._seen:
            self._seen[path] = _small(path)
        return self._seen[path]


def _small(path: Path) -> str:
    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as picture:
            picture.load()  # fails for half a file
            if len(data) <= _AS_IT_IS:
                kind = picture.get_format_mimetype() or "image/png"
                return f"data:{kind};base64,{base64.b64encode(data).decode()}"
            small = to_rgb(picture, what=path.name)
            small.thumbnail((_SIDE, _SIDE))
            out = io.BytesIO()
            small.save(out, format="JPEG", quality=85)
            return f"data:image/jpeg;base64,{base64.b64encode(out.getvalue()).decode()}"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, RewardError):  # Pillow's, for half a file
        return ""


def score_texts(row: Row) -> list[tuple[str, str]]:
    """(name, figure) of each reward of a row, then of their sum where there are several."""
    scores = {**row.get("scores", {}), **({"reward": row["reward"]} if "reward" in row else {})}
    if len(scores) == 2 and "reward" in scores:  # the sum says nothing more than the one reward
        del scores["reward"]
    return [(name, figure(value)) for name, value in scores.items()]


def figure(value: float | None, digits: int = 2, *, sign: str = "") -> str:
    """A score as text.

    >>> figure(0.5), figure(-0.25, sign="+"), figure(0.0012), figure(None)
    ('0.50', '-0.25', '0.0012', '–')
    """
    if value is None:
        return "–"
    if value and abs(value) < 10**-digits:
        return format(value, f"{sign}.2g")
    return format(value, f"{sign}.{digits}f")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """The first, the last, and evenly between.

    >>> evenly([0, 1, 2, 3, 4, 5, 6], 3)
    [0, 3, 6]
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def by_prompt(folder: Path) -> dict[tuple[str, int], Row]:
    """(prompt, how often it came before) -> row, with every prompt's first sample before any prompt's second."""
    seen: Counter[str] = Counter()
    rows = {}
    for row in read_samples(folder / "samples.jsonl")[0]:
        prompt = str(row.get("prompt", ""))
        rows[prompt, seen[prompt]] = row
        seen[prompt] += 1
    return dict(sorted(rows.items(), key=lambda item: item[0][1]))


def grid(run: Run, album: Album) -> dict[str, Any]:
    """Samples of the same held-out prompts (rows) over the evaluations (columns)."""
    columns = [(step, folder, by_prompt(folder)) for step, folder in evenly(run.sample_folders("samples"), COLUMNS)]
    rows = []
    for key, first in list(columns[0][2].items())[:ROWS] if columns else []:
        cells = [
            {
                "step": step,
                "card": album.card(folder, rows_of_step[key]) if key in rows_of_step else None,
                "scores": score_texts(rows_of_step[key]) if key in rows_of_step else [],
            }
            for step, folder, rows_of_step in columns
        ]
        extras = {part: album.card(columns[0][1], first, part) for part in ("source", "target")}
        rows.append({"prompt": key[0], "cells": cells, **extras})
    return {"steps": [step for step, _, _ in columns], "rows": rows}


def first_and_last(run: Run, album: Album) -> dict[str, Any] | None:
    """The held-out samples that gained and lost the most between the first and the last evaluation."""
    folders = run.sample_folders("samples")
    if len(folders) < 2:
        return None
    (before, old), (after, new) = folders[0], folders[-1]
    return {"labels": (f"step {before}", f"step {after}"), **pairs(old, new, run.weights, album)}


def pairs(old: Path, new: Path, weights: Mapping[str, float], album: Album) -> dict[str, Any]:
    """Samples of the same prompts from two folders, side by side, sorted by the change of their weighted reward."""
    left, right = by_prompt(old), by_prompt(new)
    entries: list[dict[str, Any]] = []
    for key in (k for k in left if k in right):
        a, b = left[key], right[key]
        scores = []
        for name in [n for n in (*a.get("scores", {}), "reward") if n in weights]:
            x, y = (row.get("reward") if name == "reward" else row.get("scores", {}).get(name) for row in (a, b))
            change = None if x is None or y is None else y - x
            scores.append((name, figure(x), figure(y), figure(change, sign="+")))
        totals = _total(a, weights), _total(b, weights)
        if totals[0] is None or totals[1] is None:
            continue
        cards = {"before": album.card(old, a), "after": album.card(new, b), "target": album.card(old, a, "target")}
        source = album.card(old, a, "source")
        entries.append({"prompt": key[0], "scores": scores, "gain": totals[1] - totals[0], "source": source, **cards})
    entries.sort(key=lambda pair: -pair["gain"])
    gained = [pair for pair in entries if pair["gain"] > 0]
    lost = [pair for pair in reversed(entries) if pair["gain"] < 0]
    same = [pair for pair in entries if pair["gain"] == 0]
    return {
        "count": len(entries),
        "parts": [
            (title, len(part), part[:PAIRS])
            for title, part in (("Gained most", gained), ("Lost most", lost), ("Unchanged", same))
            if part and (title != "Unchanged" or not (gained or lost))
        ],
        "counts": (len(gained), len(same), len(lost)),
    }


def _total(row: Row, weights: Mapping[str, float]) -> float | None:
    """The weighted reward, or where that is not asked for or not there, what the scores give; None without any."""
    if "reward" in weights and "reward" in row:
        return None if row["reward"] is None else float(row["reward"])
    scores = row.get("scores", {})
    finite = [weight * scores[name] for name, weight in weights.items() if scores.get(name) is not None]
    return sum(finite) if finite else None


def groups(run: Run, album: Album) -> list[dict[str, Any]]:
    """The best and the worst group of some training steps, each sorted by reward."""
    steps = []
    for step, folder in evenly(run.sample_folders("groups"), STEPS):
        rows, _ = read_samples(folder / "samples.jsonl")
        sides = []
        for place in ("best", "worst"):
            group_rows = [row for row in rows if row.get("place") == place]
            if not group_rows:
                continue
            finite = [row["reward"] for row in group_rows if row.get("reward") is not None]
            group_rows.sort(key=lambda row: (row.get("reward") is None, -(row.get("reward") or 0)))
            sides.append(
                {
                    "place": place,
                    "prompt": group_rows[0].get("prompt", ""),
                    "mean": figure(sum(finite) / len(finite), 3) if finite else "–",
                    "count": len(group_rows),
                    "source": album.card(folder, group_rows[0], "source"),
                    "target": album.card(folder, group_rows[0], "target"),
                    "cells": [
                        {
                            "card": album.card(folder, row),
                            "scores": [*score_texts(row), ("advantage", figure(row.get("advantage"), sign="+"))],
                        }
                        for row in evenly(group_rows, GROUP_ROWS)
                    ],
                }
            )
        steps.append({"step": step, "sides": sides})
    return steps
