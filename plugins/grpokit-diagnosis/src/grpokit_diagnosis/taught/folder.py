"""Scores of what a run folder holds: held-out samples of two evaluations, and whole groups of training.

An evaluation with `--taught` has kept all scores. A training run has kept some samples, which are measured here: few
enough to take less than a second, and only once for as long as their files are the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpokit import Prompt, RewardSpec, Sample, registry
from grpokit.evaluation.paired import ScoreTable
from grpokit.report.pictures import picture_of
from grpokit.report.samples import by_prompt
from grpokit.rewards.calling import build, call_reward
from grpokit.run_folder.reader import RunHistory, read_rows, turns
from grpokit_diagnosis.taught.measure import Material

_PAIRS = 16  # of samples before and after; further ones in a folder are its best and worst
_GROUP_ROWS = 256
_PIXELS = 16e6  # of all pictures that are read, half of them held out: decoding takes most of the time
_FEWEST = 12  # pictures of each half, however large they are

Kind = str
_Key = tuple[Path, int, int]  # a file, its size and when it changed


def material(run: RunHistory) -> Material | None:
    """What statistics say of a run or an evaluation; None where nothing can be compared."""
    if len(run.evaluations) < 2:
        return None
    return _of_evaluation(run) if run.taught else _of_training(run)


def _of_evaluation(run: RunHistory) -> Material | None:
    """All scores that an evaluation has kept."""
    steps = [row["step"] for row in run.evaluations]
    before = run.scored(steps[0])
    after = run.scored(steps[-1])
    if before is None or after is None:
        return None
    statistics = {name: words for name, words in run.statistics.items() if name in before.scores}
    old_groups = run.scored(steps[0], "groups")
    new_groups = run.scored(steps[-1], "groups")
    pair = (old_groups, new_groups) if old_groups and new_groups else None
    return Material(
        before=before,
        after=after,
        groups=_joined(pair) if pair else None,
        paired_groups=pair,
        statistics=statistics,
        labels=(run.label(steps[0]), run.label(steps[-1])),
    )


def _of_training(run: RunHistory) -> Material | None:
    """Scores of the samples that a training run has kept."""
    folders = run.sample_folders("samples")
    if len(folders) < 2:
        return None
    (first, old), (last, new) = folders[0], folders[-1]
    kind = _kind(run, old)
    if kind not in ("image", "text", "episode"):
        return None  # a folder holds such an output as its repr alone
    pairs, group_rows = _room(_key(old), kind)
    before = _held_out(run, first, old, kind, pairs)
    after = _held_out(run, last, new, kind, pairs)
    words = {name: spec.statistic for name, spec in statistics_of(kind) if spec.statistic}
    present = {name: own for name, own in words.items() if name in before.scores}
    return Material(
        before=before,
        after=after,
        groups=_groups(run, kind, group_rows),
        paired_groups=None,
        statistics=present,
        labels=(run.label(first), run.label(last)),
    )


def statistics_of(kind: Kind) -> Iterator[tuple[str, RewardSpec]]:
    """The installed statistics of a kind of output that need no weights, by their names for a reader."""
    for _, spec in registry.installed("reward"):
        if not isinstance(spec, RewardSpec) or not spec.statistic or kind not in spec.accepts:
            continue
        if all(asset.module for asset in spec.assets) and not spec.gpu_memory:
            yield spec.name, spec


def _kind(run: RunHistory, folder: Path) -> Kind:
    """What the run's policy makes, or what its samples look like."""
    policy = run.settings.get("policy") or {}
    for _, spec in registry.named("policy", str(policy.get("use", ""))):
        return str(getattr(spec, "makes", ""))
    keys = {key for row in read_rows(folder / "samples.jsonl") for key in row}
    if "file" in keys:
        return "" if "output" in keys else "image"  # with both it is something that can be drawn
    return "text" if "output" in keys else ""


@functools.lru_cache(maxsize=256)
def _room(key: _Key, kind: Kind) -> tuple[int, int]:
    """How many pairs of held-out samples, and how many rows of groups, are read; fewer if pictures are large."""
    folder, *_ = key
    if kind != "image":
        return _PAIRS, _GROUP_ROWS
    pictures = (picture_of(folder, row, "file") for row in read_rows(folder / "samples.jsonl"))
    first = next((picture for picture in pictures if picture is not None), None)
    if first is None:
        return _PAIRS, _GROUP_ROWS
    half = max(_FEWEST, int(_PIXELS / 2 / (first.width * first.height)))
    return min(_PAIRS, half // 2), min(_GROUP_ROWS, half)


def _key(folder: Path) -> _Key:
    """Stands for what a folder of samples holds."""
    state = (folder / "samples.jsonl").stat()
    return folder, state.st_size, state.st_mtime_ns


def _held_out(run: RunHistory, step: int, folder: Path, kind: Kind, most: int) -> ScoreTable:
    """The statistics of the first held-out samples of an evaluation."""
    keys, scores = _measured(_key(folder), kind, most)
    digests = _digests(run, step)
    names = [digests.get(key, key[0]) for key in keys]
    prompts = list(dict.fromkeys(names))
    places = [prompts.index(name) for name in names]
    return ScoreTable(prompts=prompts, prompt=places, texts=prompts, scores=scores)


def _digests(run: RunHistory, step: int) -> dict[tuple[str, int], str]:
    """(text, how often it came before) -> the digest of a sample's prompt, also of its source and target."""
    scored = run.scored(step)
    if scored is None:
        return {}
    texts = [scored.texts[place] for place in scored.prompt]
    keys = zip(texts, turns(texts), strict=True)
    return {key: scored.prompts[place] for key, place in zip(keys, scored.prompt, strict=True)}


@functools.lru_cache(maxsize=256)
def _measured(key: _Key, kind: Kind, most: int) -> tuple[list[tuple[str, int]], dict[str, list[float | None]]]:
    """The first held-out samples of an evaluation, by text and turn, and their statistics."""
    folder, *_ = key
    rows = dict(list(by_prompt(folder).items())[:most])
    samples = []
    for place, ((prompt, _), row) in enumerate(rows.items()):
        samples.append(_sample(folder, row, kind, prompt, group=place))
    return list(rows), _scores(kind, samples)


def _groups(run: RunHistory, kind: Kind, most: int) -> ScoreTable | None:
    """The statistics and rewards of some groups of training, evenly over its steps."""
    folders = [folder for _, folder in run.sample_folders("groups")]
    if not folders:
        return None
    size = max(1, len(read_rows(folders[0] / "samples.jsonl")))
    count = max(1, min(len(folders), most // size))
    places = {round(i * (len(folders) - 1) / max(1, count - 1)) for i in range(count)}
    tables = [_group_table(_key(folders[place]), kind, most) for place in sorted(places)]
    return _joined(tables)


@functools.lru_cache(maxsize=256)
def _group_table(key: _Key, kind: Kind, most: int) -> ScoreTable:
    """The statistics and rewards of the groups of a step, of at most so many rows, as many of each group."""
    folder, *_ = key
    by_group: dict[Any, list[Mapping[str, Any]]] = {}
    for row in read_rows(folder / "samples.jsonl"):
        by_group.setdefault(row.get("group"), []).append(row)
    share = max(2, most // max(1, len(by_group)))
    samples, rewards = [], []
    for place, rows in enumerate(by_group.values()):
        for row in rows[:share]:
            samples.append(_sample(folder, row, kind, str(row.get("prompt", "")), group=place))
            rewards.append(row.get("reward"))
    scores = _scores(kind, samples) | {"reward": rewards}
    names = [f"{folder.name} {place}" for place in range(len(by_group))]
    return ScoreTable(prompts=names, prompt=[sample.group for sample in samples], texts=names, scores=scores)


def _sample(folder: Path, row: Mapping[str, Any], kind: Kind, prompt: str, *, group: int) -> Sample:
    """What a reward would see; without output where its picture cannot be read."""
    output = picture_of(folder, row, "file") if kind == "image" else row.get("output", row.get("file"))
    return Sample(prompt=Prompt(prompt), output=output, group=group, info=row.get("info") or {})


def _scores(kind: Kind, samples: Sequence[Sample]) -> dict[str, list[float | None]]:
    """Name -> the scores of each statistic that can be computed; None for a sample that it could not score."""
    rows = [row for row, sample in enumerate(samples) if sample.output is not None]
    shown = [samples[row] for row in rows]
    columns: dict[str, list[float | None]] = {}
    for name, _ in statistics_of(kind):
        statistic, wrong = build(registry.lasting("reward", name), {})
        if wrong.error or not rows:  # a package is missing, say
            continue
        scored = call_reward(statistic, rows, [*shown])
        if scored.error or scored.failure:
            continue
        column: list[float | None] = [None] * len(samples)
        for row, score in zip(rows, scored.values, strict=True):
            column[row] = None if math.isnan(score) else score
        columns[name] = column
    return columns


def _joined(tables: Sequence[ScoreTable]) -> ScoreTable | None:
    """Several tables as one, whose prompts count as different ones."""
    if not tables:
        return None
    names = set.intersection(*({*table.scores} for table in tables))
    prompts: list[str] = []
    places: list[int] = []
    texts: list[str] = []
    for table in tables:
        places += [place + len(prompts) for place in table.prompt]
        prompts += table.prompts
        texts += table.texts
    scores = {name: [score for table in tables for score in table.scores[name]] for name in names}
    return ScoreTable(prompts=prompts, prompt=places, texts=texts, scores=scores)
