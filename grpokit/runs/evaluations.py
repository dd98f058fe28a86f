"""Evaluates sources with the same rewards: policies with the weights of a checkpoint, and samples in files.

Two sources are compared prompt by prompt. The result goes into a folder that `grpokit report` reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpokit import report
from grpokit.config import yaml_source
from grpokit.config.component_names import with_lasting_names
from grpokit.config.evaluation import EvaluationConfig
from grpokit.config.schema import RunConfig, to_dict
from grpokit.data import PromptSequence, check_prompts
from grpokit.data.digests import digest
from grpokit.errors import UsageError, plural, reword
from grpokit.evaluation.evaluation import Evaluation
from grpokit.evaluation.files import compares_groups, evaluate_files
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
    GROUPS,
    METRICS,
    PARTIAL_LINES,
    REPORT,
    REPORT_PICTURE,
    SAMPLES,
    SCORE_LINES,
    VERSIONS,
)
from grpokit.run_folder.reader import read_object
from grpokit.run_folder.run_metadata import versions, write_header
from grpokit.run_folder.start import UNFINISHED, initialised
from grpokit.runs import build, build_rewards
from grpokit.runs.taught import GROUPS as TAUGHT_GROUPS
from grpokit.settings import numbered_names
from grpokit.training import checkpoint

_SHOWN = 64  # samples of each evaluation on the page
_FILES = {  # all that an evaluation has
    *(VERSIONS, DATA, CONFIG, METRICS, EVALUATIONS, END, SAMPLES, GROUPS),
    *(SCORE_LINES, PARTIAL_LINES, REPORT, REPORT_PICTURE, COMPARISON),
}

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


@dataclass(frozen=True, kw_only=True)
class Task:
    """An evaluation that can begin.

    Attributes:
        name: of the evaluation.
        what: the word for what is evaluated.
        sources: one, or two that are compared; the first is what the other is compared with.
        evaluation: its rewards, seed and columns.
        rewarding: names the rewards and the seed: the config of a policy with the evaluation in it, or the evaluation.
        per_prompt: samples that a policy draws for each prompt.
        prompts: what policies draw for; files may do without.
        warnings: about the prompts and files.
        asked_rewards: how many of the rewards were asked for; the others are measured to say what was taught.
        group_size: samples of the groups that are drawn as in training, to say what was taught; 0 draws none.
    """

    name: str
    what: str
    sources: Sequence[SampleSource]
    evaluation: EvaluationConfig
    rewarding: RunConfig | EvaluationConfig
    per_prompt: int
    prompts: PromptSequence
    warnings: Sequence[str]
    asked_rewards: int
    group_size: int = 0

    @property
    def trained(self) -> bool:
        """Whether the sources are a policy before and after its training."""
        config = self.sources[-1].config
        return config is not None and config is self.sources[0].config

    @property
    def files(self) -> list[Path]:
        """The pictures that are scored."""
        entries = [entry for source in self.sources for entry in source.entries]
        return [entry.output for entry in entries if isinstance(entry.output, Path)]

    def added(self, names: Sequence[str]) -> list[str]:
        """Those of some rewards' names that nobody asked for."""
        own = numbered_names(map(build_rewards.name_of, self.rewarding.rewards))
        return [name for name in own[self.asked_rewards :] if name in names]

    def judges(self, names: Sequence[str]) -> dict[str, str]:
        """Each reward's name -> what computes it: the plugin's name and the parameters that are set."""
        rewards = self.rewarding.rewards
        uses = [yaml_source.to_yaml({"use": reward.use, **reward.params}, inline=True).strip() for reward in rewards]
        return dict(zip(names, uses, strict=True))

    def facts(self) -> dict[str, Any]:
        """What is evaluated, as plain data."""
        source = self.sources[-1]
        against = self.sources[0].title if len(self.sources) > 1 and not self.trained else None
        facts: dict[str, Any] = {"source": self.what, "against": against}
        if any(source.config for source in self.sources):
            place = source.place and str(source.place)
            facts |= {"checkpoint": place, "step": source.step if place else None, "seed": self.rewarding.seed}
            facts |= {"prompts": len(self.prompts), "samples_per_prompt": self.per_prompt}
        return facts

    def settings(self) -> dict[str, Any]:
        """What is evaluated, as the config of the result's folder."""
        titles = [source.title for source in self.sources]
        evaluation, _ = with_lasting_names(self.evaluation)
        rewarding, _ = with_lasting_names(self.rewarding)
        settings = {**to_dict(evaluation), **to_dict(rewarding), "sources": titles}
        return {**settings, "taught": True} if self.group_size else settings

    def in_order(self, results: Mapping[str, Evaluation]) -> Iterator[tuple[int, Evaluation, str]]:
        """The results for `write`: before and after training by their steps, others by their titles."""
        for place, source in enumerate(self.sources):
            if source.title not in results:
                continue
            if self.trained:
                yield source.step, results[source.title], ""
            else:
                yield place, results[source.title], source.title

    def folder(self, words: Sequence[object]) -> Path | None:
        """Where the page goes by default: into the run of a checkpoint, apart from every other evaluation of it.

        Args:
            words: what else was asked.
        """
        place = self.sources[-1].place
        if place is None:
            return None
        titles = [source.title for source in self.sources]
        asked = [to_dict(self.evaluation), self.rewarding.seed, self.per_prompt, len(self.prompts), titles, *words]
        run = place.parent.parent
        home = run if (run / CONFIG).is_file() else place
        return home / "evaluations" / f"{self.name}-{place.name}-{digest(asked)[:6]}"


def run(
    task: Task, *, batch_size: int, scored: Callable[[str, dict[str, Any]], None], say: Callable[[str], None]
) -> tuple[dict[str, Evaluation], dict[str, Evaluation]]:
    """Evaluate the sources one after the other; policies draw with the same seeds.

    Args:
        task: what is evaluated.
        batch_size: the most samples of files in memory.
        scored: gets the title of the source and the line of each sample in a file as soon as it is scored.
        say: gets a line about each policy, and about rewards that failed and were skipped.

    Returns:
        Title -> evaluation, and title -> the groups that were drawn as in training, if the task asks for them.

    Raises:
        UsageError: a policy cannot read the prompts, or a reward cannot score what a source has.
        RewardError: a reward failed.
    """
    terms = build_rewards.rewards(task.rewarding)
    whole_groups = compares_groups(reward.use for reward in task.rewarding.rewards)
    built: RunConfig | None = None
    policies: Mapping[str, Policy] = {}
    results = {}
    groups = {}
    try:
        for source in task.sources:
            title = source.title
            if source.config is None:
                results[title] = evaluate_files(
                    terms,
                    source.entries,
                    batch_size=batch_size,
                    whole_groups=whole_groups,
                    scored=partial(scored, title),
                )
            else:
                if source.config is not built:
                    policies = {}  # first, so that two models are never in memory
                    policies = build.policies(source.config)
                    built = source.config
                    with advised():
                        check_prompts(build.evaluation_policy(policies), task.prompts)
                if source.place is not None:
                    checkpoint.load_policies(source.place, policies)
                policy = build.evaluation_policy(policies)
                results[title] = _drawn(task, source, policy, terms, say)
                if task.group_size:
                    groups[title] = _drawn_groups(task, source, policy, terms, say)
            for line in results[title].scores.notes:
                say(f"warning, {title}: {line}")
    finally:
        build_rewards.close(terms)
    return results, groups


def _drawn(
    task: Task, source: SampleSource, policy: Policy, terms: Sequence[RewardTerm], say: Callable[[str], None]
) -> Evaluation:
    """What a policy draws for the prompts of a task, with scores."""
    samples = plural(len(task.prompts) * task.per_prompt, "sample")
    held_out = plural(len(task.prompts), "held-out prompt")
    say(f"{source.title}: drawing and scoring {samples} of {held_out} ...")
    return evaluate(
        policy,
        terms,
        task.prompts,
        seed=task.rewarding.seed,
        samples_per_prompt=task.per_prompt,
        mixed_precision=_precision(source),
    )


def _drawn_groups(
    task: Task, source: SampleSource, policy: Policy, terms: Sequence[RewardTerm], say: Callable[[str], None]
) -> Evaluation:
    """Groups of the first prompts, drawn with the settings of training."""
    prompts = task.prompts.first(TAUGHT_GROUPS)
    size = plural(task.group_size, "sample")
    say(f"{source.title}: drawing and scoring {plural(len(prompts), 'group')} of {size} as in training ...")
    return evaluate(
        policy,
        terms,
        prompts,
        seed=task.rewarding.seed,
        samples_per_prompt=task.group_size,
        mixed_precision=_precision(source),
        as_in_training=True,
    )


def _precision(source: SampleSource) -> str:
    return "no" if source.config is None else source.config.trainer.mixed_precision


@contextmanager
def advised() -> Iterator[None]:
    """Inside, prompts that a policy refuses come with what to do."""
    try:
        yield
    except UsageError as error:
        remedy = "Evaluate another policy, or give prompts that this one can draw with --prompts FILE."
        raise reword(error, f"{error} {remedy}") from error


def shared_prompts(results: Mapping[str, Evaluation]) -> int:
    """How many prompts all evaluations have."""
    prompts = [{*all_scores(evaluation).prompts} for evaluation in results.values()]
    return len(set.intersection(*prompts))


def compare_sources(results: Mapping[str, Evaluation]) -> Comparison:
    """The means of one evaluation, or of two and what changed from the first to the second.

    The weighted sum is left out where it is of nothing, or of one reward with the weight 1.

    Args:
        results: title -> the evaluation.
    """
    scores = next(iter(results.values())).scores
    weights = dict(zip(scores.names, scores.weights.tolist(), strict=True))
    if scores.trained.weights.tolist() not in ([], [1.0]):
        weights["reward"] = 1.0
    columns: Comparison = {}
    for title, evaluation in results.items():
        summary = evaluation.summary
        columns[title] = Summary(
            means={name: summary.means[name] for name in weights},
            ci95={name: summary.ci95[name] for name in weights},
        )
    if len(results) == 2:
        old, new = results.values()
        differences = changes(asdict(old.summary), asdict(new.summary), all_scores(old), all_scores(new), weights)
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
                value = prompt.meta.get(column)
                if value is not None:
                    by_title = rows_of.setdefault(str(value), {each: [] for each in results})
                    by_title[title].append(row)
        for name, by_title in rows_of.items():
            own = {title: results[title].part(rows) for title, rows in by_title.items()}
            parts[f"{column} {name}"] = compare_sources(own)
    return parts


@contextmanager
def reserved(folder: Path | None) -> Iterator[Path | None]:
    """Inside, no other process writes an evaluation into a folder, if there is one; gives its absolute path.

    Raises:
        UsageError: another process does, or the folder holds anything but an earlier evaluation.
    """
    if folder is None:
        yield None
        return
    folder = folder.absolute()  # the code of a component may call os.chdir
    with locked(folder, work="writing an evaluation into", option="--out."):
        if folder.is_dir() and not _may_be_replaced(folder):
            raise UsageError(
                f"{folder} already holds files that are not an evaluation. Choose another folder with --out.",
                page="evaluations",
            )
        yield folder


def _may_be_replaced(folder: Path) -> bool:
    """Whether a folder holds at most an earlier evaluation, or what is left of one that ended early."""
    names = {place.name for place in folder.iterdir()}
    if names <= {PARTIAL_LINES} or UNFINISHED in names:
        return True
    samples = folder / SAMPLES
    if samples.is_dir() and len(step_folders(samples)) != len(os.listdir(samples)):
        return False
    return {CONFIG, DATA} <= names <= _FILES and read_object(folder / DATA)["train"] is None


def write(
    folder: Path,
    settings: Mapping[str, Any],
    evaluations: Iterable[tuple[int, Evaluation, str]],
    groups: Iterable[tuple[int, Evaluation, str]] = (),
) -> None:
    """Keep evaluations in a folder that `grpokit report` reads and compares, with their page.

    Args:
        folder: of the evaluation, and reserved for it; an earlier one in it is replaced.
        settings: what was evaluated, as a resolved config.
        evaluations: the place of each among the others, it, and what the page calls it; by default its place.
        groups: likewise, groups that were drawn as in training; only their scores are kept.

    Raises:
        RunError: it cannot be written.
    """
    with initialised(folder, resumed=False):
        write_header(folder, settings, {"train": None, "held_out": None}, versions(settings, {}))
        journal = Journal(folder, 0)
        for step, evaluation, title in evaluations:
            journal.evaluation(step, evaluation, most=_SHOWN, title=title)
        for step, evaluation, _ in groups:
            journal.group_scores(step, evaluation)
        journal.end("finished", planned=0)
        report.write(folder)
