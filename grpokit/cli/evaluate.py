"""The command that scores samples: evaluate. They come from a policy, from files or from a run's record."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from grpokit.cli.app import app, console, grid
from grpokit.cli.options import ConfigCommand, Json, PromptLimit, SampleCount
from grpokit.cli.panels import print_panels
from grpokit.cli.runs import print_scores, read_source
from grpokit.errors import DataError, UsageError, plural

if TYPE_CHECKING:
    from grpokit.config.evaluation import EvaluationConfig
    from grpokit.evaluation.evaluation import Evaluation
    from grpokit.registry.panels import Panel
    from grpokit.runs.evaluations import Comparison, SampleSource, Task

_FEW = 20  # samples that a table shows one by one
_NAMED = 5  # files that a message names

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT", help="A run, a checkpoint or a preset; pictures or records; an evaluation file; RUN/rollouts."
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Changes to the config or the evaluation, and parameters of rewards, as in contains.ignore_case=true.",
    ),
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="OTHER", help="Compare with another run, preset or files.")
]
With = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="EVALUATION",
        help="Prompts and rewards: an evaluation's name or file. Of a preset, config or run: its rewards.",
    ),
]
RewardNames = Annotated[
    list[str] | None,
    typer.Option("--reward", help="A reward in place of the config's: its name, or package.module:function."),
]
OnePrompt = Annotated[str | None, typer.Option("--prompt", help="The prompt of the picture or pictures.")]
NumberedPrompts = Annotated[
    Path | None, typer.Option("--prompts", help="A file of prompts; pictures are named by its line numbers.")
]
Targets = Annotated[
    Path | None, typer.Option("--targets", help="The picture to compare with, or a folder of them named by line.")
]
SourcePictures = Annotated[
    Path | None, typer.Option("--sources", help="The picture that was edited, or a folder of them named by line.")
]
Out = Annotated[Path | None, typer.Option("--out", file_okay=False, help="Folder for the page; by default the run's.")]
MaxPixels = Annotated[
    int | None, typer.Option("--max-pixels", min=1, help="Most pixels of a picture; by default 36 million.")
]
Taught = Annotated[
    bool, typer.Option("--taught", help="Also say what changed besides the rewards, and what explains the reward.")
]
Gold = Annotated[
    list[str] | None,
    typer.Option(
        "--gold", help="With --taught: a reward to measure though nobody trains on it; by default cheap ones."
    ),
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Samples of files in memory.")]


@app.command(cls=ConfigCommand)
def evaluate(
    what: What,
    words: Words = None,
    against: Against = None,
    using: With = None,
    reward: RewardNames = None,
    prompt: OnePrompt = None,
    prompts: NumberedPrompts = None,
    targets: Targets = None,
    sources: SourcePictures = None,
    out: Out = None,
    count: SampleCount = None,
    limit: PromptLimit = None,
    taught: Taught = False,
    gold: Gold = None,
    max_pixels: MaxPixels = None,
    batch_size: BatchSize = 32,
    as_json: Json = False,
) -> None:
    """Score samples, and compare them prompt by prompt.

    A run is evaluated before and after training, with its own held-out prompts and rewards; --taught also says what
    changed besides. Files need --with or --reward. With --against, both sides have the same prompts and rewards, and
    policies draw from the same seeds.
    RUN/rollouts scores a recorded run again, and shows how its rankings would change.
    """
    evaluation, what, overrides = _asked(what, words or [], using, reward or [])
    names = [what] if against is None else [against, what]
    kinds = {name: _kind(name) for name in names}
    if against is not None:
        _check_against(against, kinds[against])
    drawn = {name: read_source(name, overrides if name == what else []) for name in names if kinds[name] == "policy"}
    from grpokit.runs.evaluation_task import Options, prepare

    options = Options(
        prompt=prompt,
        prompts=prompts,
        targets=targets,
        sources=sources,
        count=count,
        limit=limit,
        max_pixels=max_pixels,
        taught=taught or None,
        gold=gold or None,
    )
    if kinds[what] == "record":
        if against is not None or using is not None or evaluation is None:
            raise UsageError("A record is scored with --reward NAME, and compared with the rewards of its run.")
        if options.given:
            raise UsageError(f"Leave out {' and '.join(options.given)}: a record has its own samples.")
        _score_record(Path(what).parent, evaluation, out, as_json=as_json)
        return
    name = "" if using is None else Path(using).stem.rpartition(":")[2]
    task = prepare(names, drawn, evaluation, options, name=name, changed=bool(overrides))
    for line in task.warnings:
        _say(f"warning: {line}")
    if out is not None:
        _refuse_inside(out, [*names, *filter(None, (prompts, targets, sources)), *task.files])
    folder = out or task.folder([*(words or []), repr(options), *map(os.path.abspath, names[:-1])])
    _evaluate(task, folder, batch_size, as_json=as_json)


def _check_against(against: str, kind: str) -> None:
    if kind not in ("policy", "files"):
        raise UsageError(
            f"--against {against}: expected a run, a checkpoint, a preset, a config file, pictures or a table. An "
            "evaluation file goes with --with, and a run's record is scored alone."
        )


def _refuse_inside(out: Path, inputs: Iterable[str | Path]) -> None:
    """Refuse a folder for the result that holds what is evaluated."""
    for each in inputs:
        if Path(each).resolve().is_relative_to(out.resolve()):
            raise UsageError(f"{each} lies in {out}, which the result replaces. Choose another folder with --out.")


def _kind(what: str) -> Literal["policy", "evaluation", "record", "files"]:
    """What a word names: a policy by its run, checkpoint, preset or config; an evaluation; a run's record; or files.

    Raises:
        UsageError: it is the result of an evaluation.
    """
    from grpokit.config import presets
    from grpokit.config.evaluation import is_evaluation_file
    from grpokit.run_folder.names import CONFIG, DATA, ROLLOUTS
    from grpokit.run_folder.reader import read_object

    path = Path(what)
    if presets.names_preset(what) or not os.path.exists(path):
        return "policy"  # or nothing, which the search for a preset says
    if path.name == ROLLOUTS and (path.parent / CONFIG).is_file():
        return "record"
    if is_evaluation_file(what):
        return "evaluation"
    if path.is_file():
        return "policy" if path.suffix in (".yaml", ".yml") else "files"
    if (path / DATA).is_file() and read_object(path / DATA)["train"] is None:
        raise UsageError(f"{what} is the result of an evaluation. `grpokit report A B` compares two of them.")
    from grpokit.training.checkpoint import STATE

    is_policy = (path / CONFIG).is_file() or (path / STATE).is_file()
    return "policy" if is_policy else "files"


def _asked(
    what: str, words: Sequence[str], using: str | None, rewards: Sequence[str]
) -> tuple[EvaluationConfig | None, str, list[str]]:
    """The evaluation that is asked for, what it is of, and the words that change the config of a policy instead.

    Raises:
        UsageError: these do not go together, or the evaluation is wrong.
    """
    from grpokit.config.evaluation import is_of_evaluation, of_rewards, read_evaluation

    if using and rewards:
        raise UsageError("Give either --with or --reward, not both.")
    kind = _kind(what)
    if kind == "evaluation":
        if using or rewards:
            raise UsageError(f"{what} has its own rewards. Leave out --with and --reward.")
        evaluation = read_evaluation(what, words)
        if evaluation.files is None:
            raise UsageError(f"{what} names no files. Give what is evaluated, and --with {what}.")
        return evaluation, evaluation.files, []
    if using:
        own = [word for word in words if is_of_evaluation(word)]
    elif rewards:
        beginnings = tuple(f"{name}." for name in rewards)
        own = [word for word in words if word.startswith(beginnings)]
    else:
        return None, what, list(words)
    if kind != "policy":
        own = list(words)
    evaluation = read_evaluation(using, own) if using else of_rewards(rewards, own)
    return evaluation, what, [word for word in words if word not in own]


def _evaluate(task: Task, folder: Path | None, batch_size: int, *, as_json: bool) -> None:
    """Score what a task names, print it, and write its page into a folder."""
    from grpokit.run_folder.names import SCORE_LINES
    from grpokit.runs import evaluations

    with evaluations.reserved(folder) as own_folder:
        with _stdout_kept(as_json):
            results, groups, lines = _scored(task, own_folder, batch_size)
        if not as_json:
            _print_scores(task, results)
        panels: list[Panel] = []
        if own_folder is not None:
            evaluations.write(own_folder, task.settings(), task.in_order(results), task.in_order(groups))
            if lines:
                _append(own_folder / SCORE_LINES, lines)
            panels = _panels(own_folder)
            if task.group_size and not panels:
                _say("warning: no installed plugin says what was taught; see `grpokit plugins`")
        if as_json:
            print(json.dumps(_facts(task, results, lines, panels)))
        else:
            print_panels(panels)
        if own_folder is not None:
            _print_report(own_folder, as_json=as_json)
    _say_what_is_missing(task, results)


def _print_scores(task: Task, results: Mapping[str, Evaluation]) -> None:
    """The mean scores of each source and what changed, without the statistics of --taught, which have a table."""
    from grpokit.runs import evaluations

    columns = evaluations.compare_sources(results)
    parts = evaluations.by_value(results, task.evaluation.by)
    scores = next(iter(results.values())).scores
    names = [name for name in next(iter(columns.values())).means if name not in task.added(scores.statistics)]
    _print_each(task.sources, results, names)
    print_scores(columns, names, title=task.name, parts=parts)
    shared = evaluations.shared_prompts(results)
    if not shared:
        print("change: the two have no prompt in common, so their means count as independent")
    elif any(shared < len({*each.scores.groups.tolist()}) for each in results.values()):
        print(f"change: over the {plural(shared, 'prompt')} that both have")
    for name, judge in task.judges(scores.names).items():
        if name in names and judge != f"{{use: {name}}}":
            print(f"{name}: {judge}")


def _facts(
    task: Task, results: Mapping[str, Evaluation], lines: Sequence[Mapping[str, Any]], panels: Sequence[Panel]
) -> dict[str, Any]:
    """The answer to --json."""
    from grpokit.report.panels import as_data
    from grpokit.runs import evaluations

    facts = task.facts() | _as_json(evaluations.compare_sources(results))
    parts = evaluations.by_value(results, task.evaluation.by)
    facts["by"] = {part: _as_json(own) for part, own in parts.items()}
    facts["scored_by"] = task.judges(next(iter(results.values())).scores.names)
    if len(results) == 2:
        facts["shared_prompts"] = evaluations.shared_prompts(results)
    if panels:
        facts["panels"] = [as_data(panel) for panel in panels]
    if lines:
        facts["samples"] = lines
    return facts


def _panels(folder: Path) -> list[Panel]:
    """What plugins say of an evaluation."""
    from grpokit.report.panels import panels_of
    from grpokit.run_folder.reader import read_run

    panels, failures = panels_of(read_run(folder))
    for line in failures:
        _say(f"warning: {line}")
    return panels


def _score_record(run: Path, evaluation: EvaluationConfig, out: Path | None, *, as_json: bool) -> None:
    """Score a run's recorded rollouts with another reward, and compare the rankings."""
    from grpokit.config.schema import to_dict
    from grpokit.runs import evaluations
    from grpokit.runs.rescore import HEADINGS, lines, ranking_table, rescore

    with evaluations.reserved(out) as folder:
        with _stdout_kept(as_json):
            result = rescore(run, evaluation)
        rows = list(ranking_table(result))
        if as_json:
            rankings = [dict(zip(HEADINGS, row, strict=True)) for row in rows]
            print(json.dumps({"run": str(run), "rankings": rankings, "notes": list(lines(result))}))
        else:
            console().print(grid(HEADINGS, rows))
            print(*lines(result), sep="\n")
        if folder is not None:
            evaluations.write(folder, to_dict(evaluation), result.evaluations())
            _print_report(folder, as_json=as_json)
    if bool(result.column.isnan().all()):
        raise DataError(
            f"{result.name} scored no sample of {run}. It may need a target or a source, which the run's prompts do "
            "not have."
        )


def _stdout_kept(as_json: bool) -> AbstractContextManager[Any]:
    """Inside, what rewards print goes to stderr if stdout is for JSON alone."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _print_report(folder: Path, *, as_json: bool) -> None:
    print(f"report: {folder / 'report.html'}", file=sys.stderr if as_json else sys.stdout)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _as_json(columns: Comparison) -> dict[str, dict[str, dict[str, float | None]]]:
    """Title -> score -> its mean and half the width of its 95 % interval."""
    facts = {}
    for title, summary in columns.items():
        facts[title] = {name: {"mean": mean, "ci95": summary.ci95[name]} for name, mean in summary.means.items()}
    return facts


def _scored(
    task: Task, folder: Path | None, batch_size: int
) -> tuple[dict[str, Evaluation], dict[str, Evaluation], list[dict[str, Any]]]:
    """Score all samples, with a bar on a terminal for those in files: evaluations, groups and lines.

    An error leaves the lines that were ready in the folder.
    """
    from rich.progress import Progress

    from grpokit.evaluation.intervals import or_none
    from grpokit.files import delete, writing
    from grpokit.run_folder.names import PARTIAL_LINES
    from grpokit.runs import evaluations

    lines: list[dict[str, Any]] = []
    if folder is not None:
        with writing(folder):
            delete(folder / PARTIAL_LINES)
    screen = console(stderr=True)
    count = sum(len(source.entries) for source in task.sources)
    with Progress(console=screen, transient=True, disable=not (count and screen.is_terminal)) as progress:
        bar = progress.add_task("scoring", total=count)

        def scored(title: str, line: dict[str, Any]) -> None:
            progress.advance(bar)
            lines.append({"of": title, **line} if len(task.sources) > 1 else line)
            if folder is not None:
                _append(folder / PARTIAL_LINES, lines[-1:])

        results, groups = evaluations.run(task, batch_size=batch_size, scored=scored, say=_say)
    totals = []
    for source in task.sources:
        if source.entries:
            totals += results[source.title].scores.totals.tolist()
    for line, total in zip(lines, totals, strict=True):
        line["reward"] = or_none(total)
    return results, groups, lines


def _append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Add lines of JSON; an unpaired surrogate, which UTF-8 cannot hold, becomes its JSON escape."""
    from grpokit.files import writing

    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)


def _print_each(sources: Sequence[SampleSource], results: Mapping[str, Evaluation], names: Sequence[str]) -> None:
    """A table of the samples in files, if they are few."""
    for source in sources:
        if not 1 < len(source.entries) <= _FEW:
            continue
        evaluation = results[source.title]
        columns = evaluation.columns()
        rows = []
        for row, entry in enumerate(source.entries):
            problem = evaluation.problems.get(row, "")
            unread = problem and ("missing" if entry.missing else "unreadable")
            scores = [unread or f"{float(columns[name][row]):z.4f}".replace("nan", "-") for name in names]
            rows.append([entry.where, *scores, entry.stored.text])
        console().print(grid(["file", *names, "prompt"], rows, words=("prompt",)))
        print()


def _say_what_is_missing(task: Task, results: Mapping[str, Evaluation]) -> None:
    """Name what has no score.

    Raises:
        DataError: files could not be read, or a reward could score nothing.
    """
    wrong: list[str] = []
    tell = _say if task.group_size else wrong.append  # what a run taught is measured without its rewards
    for source in task.sources:
        evaluation = results[source.title]
        problems = evaluation.problems
        total = f"{plural(len(evaluation.prompts), 'sample')} of {source.title}"
        places = [entry.where for entry in source.entries]
        if problems:
            unread = {places[row]: problem for row, problem in problems.items()}
            lines = [problem if where in problem else f"{where} ({problem})" for where, problem in unread.items()]
            wrong.append(f"{len(problems):,} of {total} cannot be read:{_listed(lines)}")
        for name in evaluation.scores.names[: task.asked_rewards]:
            missing = evaluation.scores.column(name).isnan().nonzero()[:, 0].tolist()
            unscored = [row for row in missing if row not in problems]
            if unscored and len(missing) == len(evaluation.prompts):
                tell(
                    f"{name} scored no sample of {source.title}. It may need a prompt (--prompt, --prompts), a target "
                    "(--targets) or a source (--sources); records name them in `prompt`, `target` and `image`. Or it "
                    "scores only while a run trains: then name other rewards with --reward."
                )
            elif unscored:
                where = _listed([places[row] for row in unscored]) if places else ""
                _say(f"{name} could not score {len(unscored):,} of {total}{where and f':{where}'}")
    if wrong:
        raise DataError("\n".join(wrong))


def _listed(names: Sequence[str]) -> str:
    """The first names, a line for each: they may have commas."""
    more = [f"and {len(names) - _NAMED:,} more"] if len(names) > _NAMED else []
    return "".join(f"\n  {name}" for name in [*names[:_NAMED], *more])
