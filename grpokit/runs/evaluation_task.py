"""From the words of `grpokit evaluate` to what it does: which samples, which prompts, which rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from grpokit import data
from grpokit.config import yaml_source
from grpokit.config.evaluation import EvaluationConfig, put_in
from grpokit.config.schema import RunConfig, to_dict
from grpokit.data import PromptSequence
from grpokit.data.digests import digest
from grpokit.errors import UsageError
from grpokit.evaluation import sample_files
from grpokit.evaluation.evaluation import Evaluation
from grpokit.evaluation.sample_files import Entry
from grpokit.files import is_plain_name
from grpokit.images import MAX_PIXELS, PICTURES, open_picture, other_pictures, to_convert
from grpokit.run_folder.names import CHECKPOINTS, CONFIG
from grpokit.runs import build, build_rewards, preflight, resuming
from grpokit.runs.evaluations import SampleSource, Scored, advised, evaluate_sources
from grpokit.types import Prompt

RESERVED = {
    *("source", "against", "checkpoint", "step", "seed", "prompts", "samples_per_prompt"),
    *("before", "after", "change", "by", "scored_by", "samples"),
}
"""What the answer of `grpokit evaluate --json` has beside the titles of sources."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a command line says of the samples.

    Attributes:
        prompt: the prompt of the only picture, or of all pictures.
        prompts: a file of prompts.
        targets: the target of `prompt`, or a folder of targets.
        sources: the source of `prompt`, or a folder of sources.
        count: samples that a policy draws for each prompt.
        limit: the most prompts.
        max_pixels: a picture with more is refused.
    """

    prompt: str | None = None
    prompts: Path | None = None
    targets: Path | None = None
    sources: Path | None = None
    count: int | None = None
    limit: int | None = None
    max_pixels: int | None = None

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Refuse options that would be ignored.

        Raises:
            UsageError: names those that were given.
        """
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if given:
            raise UsageError(f"Leave out {' and '.join(given)}: {why}.")

    def refuse_all(self, why: str) -> None:
        """The same for every option."""
        self.refuse([each.name for each in fields(self)], why)

    @property
    def pixels(self) -> int:
        """The most pixels of a picture."""
        return self.max_pixels or MAX_PIXELS

    def read(self) -> PromptSequence | Prompt | None:
        """The prompts that are named here; a single one stands for all pictures.

        Raises:
            UsageError: the options do not go together, or a file cannot be read.
        """
        if self.prompts is not None:
            self.refuse(["prompt"], "--prompts has the prompts")
            return data.read_prompts(self.prompts, targets=self.targets, images=self.sources, max_pixels=self.pixels)
        if self.prompt is None and self.targets is None and self.sources is None:
            return None
        only = Prompt(self.prompt or "")
        if self.targets is not None:
            only = replace(only, target=self._picture(self.targets, "--targets"))
        if self.sources is not None:
            only = replace(only, image=self._picture(self.sources, "--sources"))
        return only

    def _picture(self, path: Path, option: str) -> Any:
        if path.is_dir():
            raise UsageError(f"{option} is a folder of pictures named by line number; add --prompts FILE.")
        return open_picture(path, where=option, max_pixels=self.pixels)


@dataclass(frozen=True, kw_only=True)
class Task:
    """An evaluation that can begin.

    Attributes:
        name: of the evaluation.
        what: the word for what is evaluated.
        sources: one, or two that are compared; the first is what the other is compared with.
        evaluation: its rewards, seed and columns.
        rewarding: names the rewards: the config of a policy with the evaluation in it, or the evaluation.
        per_prompt: samples that a policy draws for each prompt.
        prompts: what policies draw for.
        warnings: about the prompts.
    """

    name: str
    what: str
    sources: Sequence[SampleSource]
    evaluation: EvaluationConfig
    rewarding: RunConfig | EvaluationConfig
    per_prompt: int
    prompts: PromptSequence | None
    warnings: Sequence[str] = ()

    @property
    def trained(self) -> bool:
        """Whether the sources are a policy before and after its training."""
        config = self.sources[-1].config
        return config is not None and config is self.sources[0].config

    @property
    def seed(self) -> int:
        """Of the draws."""
        return self.rewarding.seed

    def run(self, *, batch_size: int, scored: Scored, say: Callable[[str], None]) -> dict[str, Evaluation]:
        """Score all sources; arguments and errors as for `grpokit.runs.evaluations.evaluate_sources`."""
        terms = build_rewards.rewards(self.rewarding)
        try:
            return evaluate_sources(
                self.sources,
                terms,
                [reward.use for reward in self.rewarding.rewards],
                self.prompts,
                seed=self.seed,
                per_prompt=self.per_prompt,
                batch_size=batch_size,
                scored=scored,
                say=say,
            )
        finally:
            build_rewards.close(terms)

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
            facts |= {"checkpoint": place, "step": source.step if place else None, "seed": self.seed}
            facts |= {"prompts": len(self.prompts or ()), "samples_per_prompt": self.per_prompt}
        return facts

    def settings(self) -> dict[str, Any]:
        """What is evaluated, as the config of the result's folder."""
        evaluation = to_dict(self.evaluation)
        policies = to_dict(self.rewarding) if isinstance(self.rewarding, RunConfig) else {}
        return {**evaluation, **policies, "sources": [source.title for source in self.sources]}

    def kept(self, results: Mapping[str, Evaluation]) -> list[tuple[int, Evaluation, str]]:
        """The results in the order of the page: the place of each, and its title where that is not a step."""
        rows = []
        for place, source in enumerate(self.sources):
            step = source.step if self.trained else place
            rows.append((step, results[source.title], "" if self.trained else source.title))
        return rows

    def folder(self, words: Sequence[object]) -> Path | None:
        """Where the page goes by default: into the run of a checkpoint, apart from every other evaluation of it.

        Args:
            words: what else was asked.
        """
        place = self.sources[-1].place
        if place is None:
            return None
        asked = to_dict(self.evaluation)
        titles = [source.title for source in self.sources]
        own = digest([asked, self.seed, self.per_prompt, len(self.prompts or ()), titles, *words])[:6]
        run = place.parent.parent
        home = run if (run / CONFIG).is_file() else place
        return home / "evaluations" / f"{self.name}-{place.name}-{own}"


def prepare(
    names: Sequence[str],
    drawn: Mapping[str, tuple[RunConfig, Path | None]],
    evaluation: EvaluationConfig | None,
    options: Options,
    *,
    name: str = "",
    changed: bool = False,
) -> Task:
    """Read all that an evaluation needs; no model is built yet.

    Args:
        names: the words for what is compared with, if it is given, and for what is evaluated.
        drawn: those of them that are policies -> the config and the checkpoint; the others are files.
        evaluation: rewards and perhaps prompts; None takes those of the run.
        options: of the command.
        name: of the evaluation; by default those of the rewards, or "held-out".
        changed: whether the config of what is evaluated is not that of its checkpoint.

    Raises:
        UsageError: these do not go together, or a file is wrong.
    """
    what = names[-1]
    if len(names) > len({*names}):
        raise UsageError(f"--against names {what} as well. Leave it out, or compare with something else.")
    config, place = drawn.get(what, (None, None))
    if not drawn:
        options.refuse(["count"], "no policy draws samples")
    if evaluation is not None:
        own = evaluation
    elif config is not None:
        own = _of_run(config)
    else:
        raise UsageError("Name the rewards: --reward NAME, once or several times, or --with EVALUATION.")
    prompts, only, warnings = _prompts(own, options, config, None if changed else place)
    if drawn and prompts is None:
        raise UsageError("A policy needs prompts to draw for. Give --prompts FILE, or --with EVALUATION.")
    configs = {each: put_in(config, own) for each, (config, _) in drawn.items()}
    sources, strange = _sources(names, drawn, configs, partial(_entries, prompts=prompts, only=only, options=options))
    drawn_for = None if prompts is None else prompts.first(options.limit)
    unscorable = []
    if what in configs and drawn_for is not None:
        unscorable = preflight.unscorable_prompts(configs[what], drawn_for.first(0), drawn_for)
    is_own = own.data is not None or "samples" in own.model_fields_set
    samples = own.samples if is_own or config is None else config.eval.samples
    rewards = "-".join(build_rewards.name_of(reward) for reward in own.rewards)
    if not is_plain_name(rewards):
        rewards = "rewards"
    task = Task(
        name=name or ("held-out" if evaluation is None else rewards),
        what=what,
        sources=sources,
        evaluation=own,
        rewarding=configs.get(what, own),
        per_prompt=options.count or samples,
        prompts=drawn_for,
        warnings=[*warnings, *strange, *unscorable],
    )
    _check(task, configs.values())
    return task


def _sources(
    names: Sequence[str],
    drawn: Mapping[str, tuple[RunConfig, Path | None]],
    configs: Mapping[str, RunConfig],
    entries_of: Callable[[Path], tuple[Sequence[Entry], Sequence[str]]],
) -> tuple[list[SampleSource], list[str]]:
    """What is compared, and warnings about files; a policy that is compared with nothing else, before and after."""
    sources = []
    warnings: list[str] = []
    for name, title in zip(names, _titles(names), strict=True):
        if name in drawn:
            sources.append(SampleSource(title=title, config=configs[name], place=drawn[name][1]))
        else:
            entries, strange = entries_of(Path(name))
            sources.append(SampleSource(title=title, entries=entries))
            warnings += strange
    (what, *others) = reversed(sources)
    if others or what.config is None:
        return sources, warnings
    before = replace(what, title="before", place=None)
    return [before, replace(what, title="after")] if what.place else [before], warnings


def _of_run(config: RunConfig) -> EvaluationConfig:
    """The evaluation that a run makes of itself."""
    evaluation = EvaluationConfig(rewards=config.rewards, samples=config.eval.samples, seed=config.seed)
    evaluation._source = config._source
    return evaluation


def _prompts(
    evaluation: EvaluationConfig, options: Options, config: RunConfig | None, place: Path | None
) -> tuple[PromptSequence | None, Prompt | None, Sequence[str]]:
    """The prompts, the only one that stands for all pictures, and warnings; None where files have their own."""
    given = options.read()
    if isinstance(given, Prompt):
        return data.as_prompts([given], source="--prompt"), given, ()
    prompts = given or build.evaluation_prompts(evaluation)
    if prompts is not None or config is None:
        return prompts, None, ()
    training, held_out = build.prompts(config)
    if held_out is None:
        raise UsageError("The config names no held-out prompts. Set eval.prompts or eval.fraction.")
    return held_out, None, _about_held_out(training, held_out, place)


def _about_held_out(training: PromptSequence, held_out: PromptSequence, place: Path | None) -> list[str]:
    """Warnings about held-out prompts that are trained on, or differ from those of the checkpoint's run."""
    texts = {held_out.row(i).prompt.text for i in range(len(held_out))}
    alike = training.subset(i for i in range(len(training)) if training.row(i).prompt.text in texts)
    digests = resuming.prompt_digests(alike, held_out)  # of no picture that cannot matter
    warnings = preflight.trained_held_out_prompts(alike, held_out, digests)
    if place is not None:
        changes = resuming.changed_prompts(place.parent.parent, digests, {"held_out": held_out})
        warnings += [f"unlike in the run, {line}" for line in changes.values()]
    return warnings


def _entries(
    path: Path, prompts: PromptSequence | None, only: Prompt | None, options: Options
) -> tuple[Sequence[Entry], Sequence[str]]:
    """The samples in files, of at most `limit` prompts, and a warning about pictures of other kinds beside them."""
    has_list = options.prompts is None and (path / sample_files.SAMPLES).is_file()
    named_by_line = options.prompts is not None or (path.is_dir() and only is None and not has_list)
    entries = sample_files.find_samples(
        path, prompts=prompts if named_by_line else None, prompt=only, max_pixels=options.pixels
    )
    groups = set([*dict.fromkeys(entry.group for entry in entries)][: options.limit])
    others = other_pictures(path) if path.is_dir() and not has_list else []
    warnings = [f"in {path} {to_convert(others)}; only {', '.join(PICTURES)} are scored"] if others else []
    return [entry for entry in entries if entry.group in groups], warnings


def _titles(names: Sequence[str]) -> list[str]:
    """What tables call sources: the names of their files or folders, or all of the words if these are the same."""
    titles = []
    for name in names:
        path = Path(name)
        in_run = path.parent.name == CHECKPOINTS
        titles.append(f"{path.parents[1].name} {path.name}" if in_run else path.name or name)
    if len({*titles}) < len(titles):
        titles = list(names)
    return [f"./{title}" if title in RESERVED else title for title in titles]


def _check(task: Task, configs: Iterable[RunConfig]) -> None:
    """Refuse prompts that a policy cannot read, rewards that cannot score, and columns that no prompt has."""
    prompts = task.prompts
    if prompts is not None:
        for config in configs:
            with advised():
                build.check_readable(config, prompts)
            for place in range(len(config.rewards)):
                build_rewards.check_output(config, place)
    if not task.evaluation.by:
        return
    metas = [prompts.row(i).prompt.meta for i in range(len(prompts))] if prompts else []
    for source in task.sources:
        metas += [entry.meta for entry in source.entries]
    known = {column: None for meta in metas for column in meta}
    for column in task.evaluation.by:
        if column not in known:
            columns = ", ".join(known) or "none"
            raise UsageError(
                f"{task.evaluation.place('by')}no prompt has the column '{column}'. Their columns: {columns}."
            )
