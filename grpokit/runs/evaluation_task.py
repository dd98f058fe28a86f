"""From the words of `grpokit evaluate` to what it does: which samples, which prompts, which rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from grpokit import data
from grpokit.config.evaluation import EvaluationConfig, put_in
from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence
from grpokit.errors import UsageError
from grpokit.evaluation import sample_files
from grpokit.evaluation.files import check_kinds
from grpokit.evaluation.sample_files import Entry
from grpokit.files import is_plain_name
from grpokit.images import MAX_PIXELS, PICTURES, open_picture, other_pictures, to_convert
from grpokit.run_folder.names import CHECKPOINTS
from grpokit.runs import build, build_rewards, preflight, resuming, taught
from grpokit.runs.evaluations import SampleSource, Task, advised
from grpokit.types import Prompt

_RESERVED = {
    *("source", "against", "checkpoint", "step", "seed", "prompts", "samples_per_prompt"),
    *("before", "after", "change", "shared_prompts", "by", "scored_by", "samples"),
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
        taught: whether statistics and gold rewards are measured as well.
        gold: names of these rewards.
    """

    prompt: str | None = None
    prompts: Path | None = None
    targets: Path | None = None
    sources: Path | None = None
    count: int | None = None
    limit: int | None = None
    max_pixels: int | None = None
    taught: bool | None = None
    gold: Sequence[str] | None = None

    @property
    def given(self) -> list[str]:
        """Those that were given, as they are typed."""
        names = [each.name for each in fields(self) if getattr(self, each.name) is not None]
        return [f"--{name.replace('_', '-')}" for name in names]

    @property
    def pixels(self) -> int:
        """The most pixels of a picture."""
        return self.max_pixels or MAX_PIXELS

    @property
    def is_of_one_prompt(self) -> bool:
        """Whether a single prompt stands for all pictures."""
        given = (self.prompt, self.targets, self.sources)
        return self.prompts is None and given != (None, None, None)

    def read(self) -> PromptSequence | None:
        """The prompts that are named here.

        Raises:
            UsageError: the options do not go together, or a file cannot be read.
        """
        if self.prompts is not None:
            if self.prompt is not None:
                raise UsageError("Leave out --prompt: --prompts has the prompts.")
            return data.read_prompts(self.prompts, targets=self.targets, images=self.sources, max_pixels=self.pixels)
        if not self.is_of_one_prompt:
            return None
        target = self._picture(self.targets, "--targets")
        image = self._picture(self.sources, "--sources")
        return data.as_prompts([Prompt(self.prompt or "", target=target, image=image)], source="--prompt")

    def _picture(self, path: Path | None, option: str) -> Any:
        if path is None:
            return None
        if path.is_dir():
            raise UsageError(f"{option} is a folder of pictures named by line number; add --prompts FILE.")
        return open_picture(path, where=option, max_pixels=self.pixels)


def prepare(
    names: Sequence[str],
    drawn: Mapping[str, tuple[RunConfig, Path | None]],
    evaluation: EvaluationConfig | None,
    options: Options,
    *,
    name: str,
    changed: bool,
) -> Task:
    """Read all that an evaluation needs; no model is built yet.

    Args:
        names: the words for what is compared with, if it is given, and for what is evaluated.
        drawn: those of them that are policies -> the config and the checkpoint; the others are files.
        evaluation: rewards and perhaps prompts; None takes those of the run.
        options: of the command.
        name: of the evaluation; an empty one is made of the rewards, or is "held-out".
        changed: whether the config of what is evaluated is not that of its checkpoint.

    Raises:
        UsageError: these do not go together, or a file is wrong.
    """
    what = names[-1]
    if len(names) > len({*names}):
        raise UsageError(f"--against names {what} as well. Leave it out, or compare with something else.")
    config, place = drawn.get(what, (None, None))
    if not drawn and options.count is not None:
        raise UsageError("Leave out --count: no policy draws samples.")
    own = evaluation or _of_run(config, options)
    prompts, warnings = _prompts(own, options, config, None if changed else place)
    asked_rewards = len(own.rewards)
    if options.taught or options.gold:
        own = _of_taught(own, options, None if place is None or len(names) > 1 else config, prompts)
    if drawn and prompts is None:
        raise UsageError("A policy needs prompts to draw for. Give --prompts FILE, or --with EVALUATION.")
    drawn = {each: (put_in(config, own), place) for each, (config, place) in drawn.items()}
    sources, other_kinds = _sources(names, drawn, prompts, options)
    warnings += other_kinds
    asked = data.as_prompts([]) if prompts is None else prompts.first(options.limit)
    rewarding = sources[-1].config or own
    if isinstance(rewarding, RunConfig):
        warnings += preflight.unscorable_prompts(rewarding, asked.first(0), asked)
    is_own = own.data is not None or "samples" in own.model_fields_set
    samples = own.samples if is_own or config is None else config.eval.samples
    task = Task(
        name=name or ("held-out" if evaluation is None else _name_of(evaluation)),
        what=what,
        sources=_before_and_after(*sources) if config is not None and len(sources) == 1 else sources,
        evaluation=own,
        rewarding=rewarding,
        per_prompt=options.count or samples,
        prompts=asked,
        warnings=warnings,
        asked_rewards=asked_rewards,
        group_size=config.trainer.group_size if config is not None and options.taught else 0,
    )
    _check(task, [config for config, _ in drawn.values()])
    return task


def _sources(
    names: Sequence[str],
    drawn: Mapping[str, tuple[RunConfig, Path | None]],
    prompts: PromptSequence | None,
    options: Options,
) -> tuple[list[SampleSource], list[str]]:
    """The source of each word, and warnings about pictures that are not scored."""
    sources = []
    warnings = []
    for each, title in zip(names, _titles(names), strict=True):
        if each in drawn:
            source = SampleSource(title=title, config=drawn[each][0], place=drawn[each][1])
        else:
            path = _table_or(Path(each), options)
            warnings += _about_other_kinds(path)
            source = SampleSource(title=title, entries=_entries(path, prompts, options, draws=bool(drawn)))
        sources.append(source)
    return sources, warnings


def _name_of(evaluation: EvaluationConfig) -> str:
    name = "-".join(build_rewards.name_of(reward) for reward in evaluation.rewards)
    return name if is_plain_name(name) else "rewards"


def _before_and_after(source: SampleSource) -> list[SampleSource]:
    """A policy that is compared with nothing else: before its training, and after it if it was trained."""
    before = replace(source, title="before", place=None)
    return [before, replace(source, title="after")] if source.place else [before]


def _of_run(config: RunConfig | None, options: Options) -> EvaluationConfig:
    """The evaluation that a run makes of itself; files have none."""
    if config is None and options.taught:
        raise UsageError("--taught compares a run before and after its training. Give a run folder.")
    if config is None:
        raise UsageError("Name the rewards: --reward NAME, once or several times, or --with EVALUATION.")
    if not config.rewards:
        raise UsageError(
            "The run has no reward. Name what scores it: --reward NAME, once or several times, or --with EVALUATION."
        )
    evaluation = EvaluationConfig(rewards=config.rewards, samples=config.eval.samples, seed=config.seed)
    evaluation._source = config._source
    return evaluation


def _of_taught(
    evaluation: EvaluationConfig, options: Options, config: RunConfig | None, prompts: PromptSequence | None
) -> EvaluationConfig:
    """An evaluation with what --taught measures; `config` is that of a run that is evaluated before and after."""
    if not options.taught:
        raise UsageError("--gold goes with --taught. Name the rewards to score with by --reward.")
    if config is None or prompts is None:
        raise UsageError("--taught compares a run before and after its training. Give a run, and no --against.")
    if options.gold is not None:
        evaluation = evaluation.model_copy(update={"gold": options.gold})
    return taught.with_statistics(evaluation, config, prompts)


def _prompts(
    evaluation: EvaluationConfig, options: Options, config: RunConfig | None, place: Path | None
) -> tuple[PromptSequence | None, list[str]]:
    """The prompts of the options, the evaluation or the run, and warnings; None where files have their own."""
    prompts = options.read()
    if prompts is None:
        prompts = build.evaluation_prompts(evaluation)
    if prompts is not None or config is None:
        return prompts, []
    training, held_out = build.prompts(config)
    if held_out is None:
        raise UsageError("The config names no held-out prompts. Set eval.prompts or eval.fraction.")
    return held_out, _about_held_out(training, held_out, place)


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


def _table_or(path: Path, options: Options) -> Path:
    """The table in a folder that has one, unless its pictures are named by the lines of --prompts."""
    table = path / sample_files.SAMPLES
    return table if options.prompts is None and table.is_file() else path


def _about_other_kinds(path: Path) -> list[str]:
    """A warning about pictures in a folder that are not scored."""
    others = other_pictures(path) if path.is_dir() else []
    return [f"in {path} {to_convert(others)}; only {', '.join(PICTURES)} are scored"] if others else []


def _entries(path: Path, prompts: PromptSequence | None, options: Options, *, draws: bool) -> list[Entry]:
    """The samples in files, of at most `limit` prompts."""
    if draws and sample_files.is_table(path):
        prompts = None  # those of a policy; records have their own
    one = prompts[0] if prompts is not None and options.is_of_one_prompt else None
    entries = sample_files.find_samples(path, prompts=None if one else prompts, prompt=one, max_pixels=options.pixels)
    groups = list(dict.fromkeys(entry.group for entry in entries))
    limited = set(groups[: options.limit])
    return [entry for entry in entries if entry.group in limited]


def _titles(names: Sequence[str]) -> list[str]:
    """What tables call sources: the names of their files or folders, or all of the words if these are the same."""
    titles = []
    for name in names:
        path = Path(name)
        in_run = path.parent.name == CHECKPOINTS
        titles.append(f"{path.parents[1].name} {path.name}" if in_run else path.name or name)
    if len({*titles}) < len(titles):
        titles = list(names)
    return [f"./{title}" if title in _RESERVED else title for title in titles]


def _check(task: Task, configs: Iterable[RunConfig]) -> None:
    """Refuse prompts that a policy cannot read, rewards that cannot score, and columns that no prompt has."""
    prompts = task.prompts
    for config in configs:
        with advised():
            build.check_readable(config, prompts)
        for place in range(len(config.rewards)):
            build_rewards.check_output(config, place)
    for source in task.sources:
        check_kinds([reward.use for reward in task.evaluation.rewards], source.entries)
    if not task.evaluation.by:
        return
    metas = [prompts.row(i).prompt.meta for i in range(len(prompts))]
    for source in task.sources:
        metas += [entry.stored.meta for entry in source.entries]
    known = dict.fromkeys(column for meta in metas for column in meta)
    for column in task.evaluation.by:
        if column not in known:
            columns = ", ".join(known) or "none"
            raise UsageError(
                f"{task.evaluation.place('by')}no prompt has the column '{column}'. Their columns: {columns}."
            )
