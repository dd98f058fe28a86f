"""Evaluates sources with the same rewards: policies with the weights of a checkpoint, and samples in files.

Two sources are compared prompt by prompt. The result goes into a folder that `grpokit report` reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpokit import report
from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence, check_prompts
from grpokit.errors import UsageError, plural, reword
from grpokit.evaluation.evaluation import Evaluation
from grpokit.evaluation.files import check_kinds, compares_groups, evaluate_files
from grpokit.evaluation.held_out import evaluate
from grpokit.evaluation.intervals import Summary
from grpokit.evaluation.paired import changes
from grpokit.evaluation.sample_files import Entry
from grpokit.files import step_folders
from grpokit.policy import Policy
from grpokit.rewards.terms import RewardTerm
from grpokit.run_folder.journal import Journal, all_scores
from grpokit.run_folder.lock import locked
from grpokit.run_folder.names import (
    COMPARISON,
    CONFIG,
    DATA,
    END,
    EVALUATIONS,
    METRICS,
    PARTIAL_LINES,
    REPORT,
    REPORT_PICTURE,
    SAMPLES,
    SCORE_LINES,
    VERSIONS,
)
from grpokit.run_folder.reader import read_object
from grpokit.run_folder.run_metadata import write_header
from grpokit.run_folder.start import UNFINISHED, initialised
from grpokit.runs import build
from grpokit.training import checkpoint

_SHOWN = 64  # samples of each evaluation on the page
_PAGES = {REPORT, REPORT_PICTURE, COMPARISON}
_LINES = {SCORE_LINES, PARTIAL_LINES}
_FILES = {VERSIONS, DATA, CONFIG, METRICS, EVALUATIONS, END, SAMPLES, *_LINES, *_PAGES}  # all that one has

Comparison = dict[str, Summary]
"""Title -> the means; "change" has the differences between two, with their intervals."""


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """Where samples come from.

    Attributes:
        title: names it in tables and on the page.
        config: of the policy that draws them; None for files.
        place: the checkpoint with its weights; None for the untrained policy.
        entries: the samples in files.
    """

    title: str
    config: RunConfig | None = None
    place: Path | None = None
    entries: Sequence[Entry] = ()

    @property
    def step(self) -> int:
        """Training steps that the weights have behind them."""
        return 0 if self.place is None else int(checkpoint.read_state(self.place)["step"])


Scored = Callable[[SampleSource, Entry, Mapping[str, float], str], None]
"""Gets the source, the entry, the score of each reward and the problem of each sample in a file."""


def evaluate_sources(
    sources: Sequence[SampleSource],
    terms: Sequence[RewardTerm],
    uses: Sequence[str],
    prompts: PromptSequence | None,
    *,
    seed: int,
    per_prompt: int,
    batch_size: int,
    scored: Scored = lambda source, entry, scores, problem: None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Evaluation]:
    """Evaluate sources one after the other; policies draw with the same seeds.

    Args:
        sources: what is evaluated.
        terms: the rewards.
        uses: their names in the registry.
        prompts: what policies draw for.
        seed: of the draws.
        per_prompt: samples that a policy draws for each prompt.
        batch_size: the most samples of files in memory.
        scored: gets each sample in a file as soon as it is scored.
        say: gets a line about each policy, and about rewards that failed and were skipped.

    Returns:
        Title -> evaluation.

    Raises:
        UsageError: a policy cannot read the prompts, or a reward cannot score what a source has.
        RewardError: a reward failed.
    """
    built: RunConfig | None = None
    policies: Mapping[str, Policy] = {}
    results = {}
    for source in sources:
        if source.config is None or prompts is None:
            check_kinds(uses, source.entries)
            evaluation = evaluate_files(
                terms,
                source.entries,
                batch_size=batch_size,
                whole_groups=compares_groups(uses),
                scored=partial(scored, source),
            )
        else:
            if source.config is not built:
                policies = {}  # first, so that two models are never in memory
                policies = build.policies(source.config)
                with advised():
                    check_prompts(build.evaluation_policy(policies), prompts)
                built = source.config
            samples = plural(len(prompts) * per_prompt, "sample")
            held_out = plural(len(prompts), "held-out prompt")
            say(f"{source.title}: drawing and scoring {samples} of {held_out} ...")
            evaluation = _drawn(source, source.config, policies, terms, prompts, seed, per_prompt)
        results[source.title] = evaluation
        for line in evaluation.scores.notes:
            say(f"warning, {source.title}: {line}")
    return results


@contextmanager
def advised() -> Iterator[None]:
    """Inside, prompts that a policy refuses come with what to do."""
    try:
        yield
    except UsageError as error:
        remedy = "Evaluate another policy, or give prompts that this one can draw with --prompts FILE."
        raise reword(error, f"{error} {remedy}") from error


def _drawn(
    source: SampleSource,
    config: RunConfig,
    policies: Mapping[str, Policy],
    terms: Sequence[RewardTerm],
    prompts: PromptSequence,
    seed: int,
    per_prompt: int,
) -> Evaluation:
    """The evaluation of a policy with the weights of a source."""
    if source.place is not None:
        checkpoint.load_policies(source.place, policies)
    return evaluate(
        build.evaluation_policy(policies),
        terms,
        prompts,
        seed=seed,
        samples_per_prompt=per_prompt,
        mixed_precision=config.trainer.mixed_precision,
    )


def compare_sources(results: Mapping[str, Evaluation]) -> Comparison:
    """The means of one evaluation, or of two and what changed from the first to the second.

    The weighted sum is left out where it is that of one reward with the weight 1.

    Args:
        results: title -> the evaluation.
    """
    scores = next(iter(results.values())).scores
    weights = dict(zip(scores.names, scores.weights.tolist(), strict=True))
    if scores.trained.weights.tolist() != [1.0]:
        weights["reward"] = 1.0
    columns: Comparison = {}
    for title, evaluation in results.items():
        summary = evaluation.summary
        means = {name: summary.means[name] for name in weights}
        columns[title] = Summary(means=means, ci95={name: summary.ci95[name] for name in weights})
    if len(results) == 2:
        before, after = ({"means": column.means, "ci95": column.ci95} for column in columns.values())
        old, new = map(all_scores, results.values())
        differences = changes(before, after, old, new, weights)
        columns["change"] = Summary(
            means={change.name: change.change for change in differences},
            ci95={change.name: change.width for change in differences},
        )
    return columns


def by_value(results: Mapping[str, Evaluation], columns: Sequence[str]) -> dict[str, Comparison]:
    """The same for the prompts of each value that some of their columns have.

    Args:
        results: as in `compare_sources`.
        columns: names in the `meta` of the prompts.

    Returns:
        "column value" -> what `compare_sources` gives for those prompts.
    """
    parts = {}
    for column in columns:
        rows_of: dict[str, dict[str, list[int]]] = {}  # value -> title -> its rows
        for title, evaluation in results.items():
            for row, prompt in enumerate(evaluation.prompts):
                if prompt.meta.get(column) is not None:
                    by_title = rows_of.setdefault(str(prompt.meta[column]), {})
                    by_title.setdefault(title, []).append(row)
        for value, by_title in rows_of.items():
            own = {title: results[title].part(rows) for title, rows in by_title.items()}
            parts[f"{column} {value}"] = compare_sources(own)
    return parts


@contextmanager
def reserved(folder: Path) -> Iterator[Path]:
    """Inside, no other process writes an evaluation into a folder; gives its absolute path.

    Raises:
        UsageError: another process does, or the folder holds anything but an earlier evaluation.
    """
    folder = folder.absolute()  # the code of a component may call os.chdir
    with locked(folder, work="writing an evaluation into", option="--out."):
        names: set[str] = set()
        if folder.is_dir():
            names = {place.name for place in folder.iterdir()}
        if names - {PARTIAL_LINES} and UNFINISHED not in names and not _is_evaluation(folder, names):
            raise UsageError(
                f"{folder} already holds files that are not an evaluation. Choose another folder with --out.",
                page="evaluations",
            )
        yield folder


def _is_evaluation(folder: Path, names: Set[str]) -> bool:
    samples = folder / SAMPLES
    if samples.is_dir() and len(step_folders(samples)) != len(os.listdir(samples)):
        return False
    return {CONFIG, DATA} <= names <= _FILES and read_object(folder / DATA)["train"] is None


@contextmanager
def written(folder: Path, settings: Mapping[str, Any]) -> Iterator[Callable[[int, Evaluation, str], None]]:
    """Keep evaluations in a folder that `grpokit report` reads and compares; its page is written at the end.

    Args:
        folder: of the evaluation, and reserved for it; an earlier one in it is replaced.
        settings: what was evaluated, as a resolved config.

    Yields:
        A function that keeps an evaluation, by its place among the others and what the page calls it.

    Raises:
        RunError: it cannot be written.
    """
    with initialised(folder, resumed=False):
        write_header(folder, settings, {"train": None, "held_out": None})
        journal = Journal(folder, 0)

        def keep(step: int, evaluation: Evaluation, title: str) -> None:
            journal.evaluation(step, evaluation, most=_SHOWN, title=title)

        yield keep
        journal.end("finished", planned=0)
        report.write(folder)
