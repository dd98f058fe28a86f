"""Evaluates samples in files, without a policy; only one batch of pictures is in memory.

A file that cannot be read becomes a row without scores, and the others are scored. An error inside a reward stops
everything, as in a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch

from grpokit import registry
from grpokit.data.digests import picture_digests
from grpokit.errors import DataError, GrpokitError, UsageError, reword
from grpokit.evaluation.evaluation import Evaluation
from grpokit.evaluation.intervals import or_none
from grpokit.evaluation.sample_files import Entry
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.failures import refuse_losses
from grpokit.rewards.scoring import Scores, Scoring, join_scores
from grpokit.rewards.terms import Rewards, RewardTerm, as_terms
from grpokit.types import Prompt, Sample

_Prompts = dict[Callable[[], Prompt], Prompt]  # what opens a group's prompt -> the prompt


class FileSamples(Sequence[Sample]):
    """Samples that are read from their files whenever one is asked for; without output where that fails."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(index, slice):
            return FileSamples(self._entries[index])
        sample, _ = _open(self._entries[index], {})
        return sample


def evaluate_files(
    rewards: Rewards,
    entries: Sequence[Entry],
    *,
    batch_size: int = 32,
    whole_groups: bool = True,
    scored: Callable[[dict[str, Any]], None] = lambda line: None,
) -> Evaluation:
    """Score samples in files.

    Args:
        rewards: as for `Trainer`.
        entries: from `grpokit.evaluation.sample_files`; the samples of a group follow each other.
        batch_size: the number of samples that are opened at a time.
        whole_groups: keep a group together even if it is larger than a batch, for rewards that compare its samples.
        scored: called with the line of each sample in `scores.jsonl`, without its weighted sum, as soon as its batch is
            scored; a missing score is None.

    Raises:
        UsageError: batch_size is below 1, or a reward cannot work with its parameters or the targets.
        RewardError: a reward failed.
    """
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, got {batch_size}.")
    terms = as_terms(rewards)
    lost = torch.zeros(len(terms), dtype=torch.int64)
    parts: list[Scores] = []
    pictures: list[str] = []
    problems: dict[int, str] = {}
    row = 0
    for batch in _batches(entries, batch_size, whole_groups):
        prompts: _Prompts = {}
        opened = [_open(entry, prompts) for entry in batch]
        scores = _scores(terms, batch, [sample for sample, _ in opened])
        parts.append(scores)
        pictures += picture_digests([sample.prompt for sample, _ in opened])
        for entry, (_, problem), values in zip(batch, opened, scores.matrix.tolist(), strict=True):
            if problem:
                problems[row] = problem
            scored(_line(entry, dict(zip(scores.names, values, strict=True)), problem))
            row += 1
        lost += scores.lost.sum(0)
        refuse_losses(terms, lost.tolist(), len(entries), scores.notes)
    return Evaluation(
        samples=FileSamples(entries),
        prompts=[_without_pictures(entry) for entry in entries],
        scores=join_scores(terms, parts),
        problems=problems,
        file_pictures=pictures,
    )


def _without_pictures(entry: Entry) -> Prompt:
    """Its prompt; the file's name stands for a missing text."""
    prompt = entry.stored
    target = prompt.target if isinstance(prompt.target, str) else None
    return Prompt(prompt.text or Path(entry.where).stem, target=target, meta=prompt.meta)


def _batches(entries: Sequence[Entry], size: int, whole_groups: bool) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    key: Callable[[Entry], int] = (lambda entry: entry.group) if whole_groups else id
    for _, part in itertools.groupby(entries, key=key):
        together = list(part)
        if batch and len(batch) + len(together) > size:
            yield batch
            batch = []
        batch += together
    if batch:
        yield batch


def _open(entry: Entry, prompts: _Prompts) -> tuple[Sample, str]:
    """A sample, without output where a file cannot be read, and why; `prompts` has those that were read before."""
    try:
        if entry.prompt not in prompts:
            prompts[entry.prompt] = entry.prompt()
        return entry.open(prompts[entry.prompt]), ""
    except DataError as error:
        return Sample(prompt=Prompt(entry.stored.text), output=None, group=entry.group), str(error)


def _scores(terms: Sequence[RewardTerm], batch: Sequence[Entry], samples: Sequence[Sample]) -> Scores:
    try:
        return Scoring(terms, samples).result()
    except GrpokitError as error:
        span = f"in the batch from {batch[0].where} to {batch[-1].where}"
        raise reword(error, f"{error} (Rows are counted from 0, {span}.)") from error


def _line(entry: Entry, scores: Mapping[str, float], problem: str) -> dict[str, Any]:
    line: dict[str, Any] = {"prompt": entry.stored.text}
    if entry.kind == "image":
        line["file"] = str(entry.output)
    else:
        line["output"] = entry.output
    line["group"] = entry.group
    if entry.line:  # groups stay together, so lines may move
        line["line"] = entry.line
    line["scores"] = {name: or_none(score) for name, score in scores.items()}
    if problem:
        line["error"] = problem
    return line


def check_kinds(uses: Iterable[str], entries: Sequence[Entry]) -> None:
    """Check that the rewards accept the entries, as far as their plugins declare it.

    Raises:
        UsageError: a reward cannot score one of the entries.
    """
    first = {entry.kind: entry.where for entry in reversed(entries)}
    for use in uses:
        for kind, where in first.items():
            registry.check_accepts(use, kind, what=f"some samples (such as {where}) are")


def compares_groups(uses: Iterable[str]) -> bool:
    """Whether any reward may compare the samples of a group: all do, unless their plugin declares `per_sample`."""
    specs = [registry.spec_of("reward", use) for use in uses]
    return not all(isinstance(spec, RewardSpec) and spec.per_sample for spec in specs)
