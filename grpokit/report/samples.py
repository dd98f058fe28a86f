"""Samples to look at: over the evaluations, and the best and worst groups of training.

A text that is too long for a page is cut. A missing or half-written picture is labelled as missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from grpokit.report.pictures import LARGE, MEDIUM, SMALL, Album
from grpokit.run_folder.names import GROUPS, ROWS, SAMPLES
from grpokit.run_folder.reader import Row, Run, read_rows, shortened, turns

_TEXT = 1200  # characters
_GROUP_ROWS = 8
_PROMPTS = 2000  # that the table of prompts can be searched for

T = TypeVar("T")
Key = tuple[str, int]


def evenly(items: Sequence[T], most: int, *, with_these: Collection[T] = ()) -> list[T]:
    """The first, the last, and evenly between; and those that must be there.

    >>> evenly([0, 1, 2, 3, 4, 5, 6], 3), evenly([0, 1, 2, 3, 4, 5, 6], 2, with_these=[5])
    ([0, 3, 6], [0, 5, 6])
    """
    if len(items) <= most:
        return list(items)
    places = {round(i * (len(items) - 1) / max(1, most - 1)) for i in range(most)}
    return [item for i, item in enumerate(items) if i in places or item in with_these]


def by_prompt(folder: Path) -> dict[Key, Row]:
    """(prompt, how often it came before) -> row, with every prompt's first sample before any prompt's second."""
    found = read_rows(folder / ROWS)
    prompts = [shortened(row.get("prompt", "")) for row in found]
    order = [row.get("turn", turn) for row, turn in zip(found, turns(prompts), strict=True)]
    rows = dict(zip(zip(prompts, order, strict=True), found, strict=True))
    return dict(sorted(rows.items(), key=lambda item: item[0][1]))


def evaluations(run: Run, album: Album, *, most: int, with_these: Iterable[int] = ()) -> list[dict[str, Any]]:
    """The samples of each evaluation, or of `most` of them: `step` and `rows`."""
    folders = run.sample_folders(SAMPLES)
    wanted = set(with_these)
    chosen = evenly(folders, most, with_these=[pair for pair in folders if pair[0] in wanted])
    ends = {step for step, _ in (chosen[:1] + chosen[-1:])} | wanted
    return [
        {
            "step": step,
            "rows": [
                {"prompt": prompt, "n": n, **_sample(folder, row, album, LARGE if step in ends else SMALL)}
                for (prompt, n), row in by_prompt(folder).items()
            ],
        }
        for step, folder in chosen
    ]


def groups(run: Run, album: Album, *, most: int) -> list[dict[str, Any]]:
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
            group_rows.sort(key=lambda row: (row.get("reward") is None, -(row.get("reward") or 0)))
            shown = evenly(group_rows, _GROUP_ROWS)
            sides.append(
                {
                    "place": place,
                    "prompt": shortened(group_rows[0].get("prompt", "")),
                    "mean": sum(finite) / len(finite) if finite else None,
                    "count": len(group_rows),
                    "rows": [_sample(folder, row, album, MEDIUM) for row in shown],
                }
            )
        if sides:
            steps.append({"step": step, "sides": sides})
    return steps


def prompt_table(run: Run) -> dict[str, Any] | None:
    """Mean scores of each held-out prompt at the first and the last evaluation that kept all scores.

    Returns:
        `names` of the scores, `steps` of both evaluations, and `rows` of `prompt`, `key` (equal in runs that share the
        prompt), `before` and `after` (a list of scores each, None for a missing one); and how many rows were
        `left_out`. None where no scores were kept.
    """
    found = [
        (row["step"], scored)
        for row in [*run.evaluations[:1], *run.evaluations[-1:]]
        if (scored := run.scored(row["step"]))
    ]
    if not found:
        return None
    (first, old), (last, new) = found[0], found[-1]
    if (old.prompts, old.prompt) != (new.prompts, new.prompt):
        first, old = last, new
    names = [name for name in run.weights if name in new.scores]
    ids = list(dict.fromkeys(new.prompt))
    texts = new.texts or [f"prompt {i + 1}" for i in range(len(ids))]
    means = [{name: _means(scored.scores.get(name, ()), scored.prompt) for name in names} for scored in (old, new)]
    rows: list[dict[str, Any]] = []
    for prompt, text, turn in zip(ids[:_PROMPTS], texts, turns(texts), strict=False):
        before, after = ([mean[name].get(prompt) for name in names] for mean in means)
        key = [text, turn, "" if new.texts else new.prompts]  # where texts are missing, all prompts must be the same
        rows.append({"prompt": text, "key": key, "before": before, "after": after})
    return {"names": names, "steps": [first, last], "rows": rows, "left_out": max(0, len(ids) - _PROMPTS)}


def _means(scores: Sequence[float | None], prompts: Sequence[int]) -> dict[int, float]:
    columns: dict[int, list[float]] = {}
    for score, prompt in zip(scores, prompts, strict=False):
        if score is not None:
            columns.setdefault(prompt, []).append(score)
    return {prompt: sum(column) / len(column) for prompt, column in columns.items()}


def _sample(folder: Path, row: Row, album: Album, side: int) -> dict[str, Any]:
    """A row as the page shows it: what came out, the source and the target where it has them, and its scores."""
    cards = {part: _card(folder, row, part, album, side) for part in ("file", "source", "target")}
    own = {"output": cards["file"], **{part: cards[part] for part in ("source", "target") if cards[part]}}
    own["scores"] = dict(row.get("scores", {}))
    return own | {name: row[name] for name in ("reward", "advantage") if name in row}


def _card(folder: Path, row: Row, part: str, album: Album, side: int) -> dict[str, Any] | None:
    """The output ("file"), "source" or "target" of a row; None where it has none."""
    if row.get(part):
        picture = album.add(folder / Path(row[part]).name, side)
        return {"picture": picture} if picture else {"missing": True}
    text = row.get({"file": "output", "target": "target_text"}.get(part, ""))
    if text is None:
        return None
    return {"text": str(text)[:_TEXT], "left_out": max(0, len(str(text)) - _TEXT)}
