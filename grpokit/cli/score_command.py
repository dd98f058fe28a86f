"""The command that scores files: score."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.cli.app import app, console
from grpokit.cli.options import Rewards, whole_number
from grpokit.config.overrides import parse_parameters
from grpokit.errors import DataError, GrpokitError, UsageError, counted, reworded
from grpokit.files import replacing

if TYPE_CHECKING:
    from grpokit.config.schema import RunConfig
    from grpokit.evaluation.sample_files import Entry
    from grpokit.evaluation.score_files import Column, Row, Tally
    from grpokit.rewards.terms import RewardTerm

_FEW = 20  # rows that a table shows one by one
_NAMED = 5  # files that a message names
_PATIENCE = 10.0  # seconds without a sign of life


@app.command()
def score(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A picture, a folder of pictures, a file of records, or a run with recorded rollouts."
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME.KEY=VALUE]...",
            help="Parameters of the rewards, as in contains.ignore_case=true, or changes to the config.",
        ),
    ] = None,
    reward: Rewards = None,
    config: Annotated[
        str | None, typer.Option("--config", help="Take the rewards and weights of this preset, file or run.")
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="The prompt of the picture or pictures.")] = None,
    target: Annotated[Path | None, typer.Option("--target", help="The picture to compare with.")] = None,
    source: Annotated[Path | None, typer.Option("--source", help="The picture that was edited.")] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", help="A file with one prompt per line.")] = None,
    targets: Annotated[Path | None, typer.Option("--targets", help="Folder of target pictures named by line.")] = None,
    sources: Annotated[Path | None, typer.Option("--sources", help="Folder of source pictures named by line.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A file for the scores, one JSON object per sample.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines; the summary goes to stderr.")] = False,
    max_pixels: Annotated[
        int | None, whole_number("--max-pixels", help="Refuse pictures with more pixels; by default 36 million.")
    ] = None,
    batch_size: Annotated[int, whole_number("--batch-size", help="Samples in memory at a time.")] = 32,
) -> None:
    """Score files, or the rollouts of a run, without training.

    Give --reward once or several times, or --config. With --prompts, a picture's name is the line of its prompt. Of a
    run it shows how the rankings would change with another reward.
    """
    if out is not None and os.path.lexists(out) and not (overwrite and out.is_file()):
        kind = "is a folder; expected a file" if out.is_dir() else "exists already"
        more = "." if out.is_dir() else ", or add --overwrite."
        raise UsageError(f"{out} {kind}. Choose another with --out{more}")
    from grpokit.run_folder.names import CONFIG, ROLLOUTS

    if (path / CONFIG).is_file() and any((path / ROLLOUTS).glob("step_*")):
        if any((config, prompt, target, source, prompts, targets, sources)):
            raise UsageError(
                f"{path} is a run, whose rollouts have their own prompts and pictures. Give --reward alone."
            )
        _score_run(path, reward or [], words or [], out)
        return
    settings = _settings(reward or [], config, words or [])
    from grpokit.evaluation import sample_files, score_files
    from grpokit.images import MAX_PIXELS

    weighted = settings is not None
    pairs = _pairs(settings, prompts, targets=targets, sources=sources)
    entries = sample_files.find(
        path,
        prompt=prompt,
        prompts=prompts,
        target=target,
        source=source,
        max_pixels=max_pixels or (settings and settings.data.max_pixels) or MAX_PIXELS,
        columns=settings.data.columns if settings else None,
        targets=pairs["targets"],
        sources=pairs["sources"],
    )
    if prompts is not None or not (path / sample_files.SAMPLES).is_file():
        _say_what_is_passed_over(path)
    read = [path, path / sample_files.SAMPLES, prompts, target, source, *(entry.output for entry in entries)]
    if out is not None and out.exists() and any(_same_file(out, place) for place in [*read, Path(config or "")]):
        raise UsageError(
            f"{out} is an input of this command, so the scores cannot overwrite it. Choose another file with --out."
        )
    with _rewards(reward or [], settings, words or []) as (terms, uses):
        score_files.check_accepts(uses, entries)
        rows = score_files.score_files(
            terms,
            entries,
            batch_size=batch_size,
            whole_groups=score_files.compares_groups(uses),
            say=lambda line: print(line, file=sys.stderr),
        )
        tally = score_files.Tally()
        scored: list[Row] = []
        with _written(out) as write, _progress(len(entries)) as advance:
            for row in rows:
                tally.add(row)
                scored += [row] if weighted or len(scored) <= _FEW else []
                write(_line(row))
                if as_json and not weighted:
                    print(_line(row))
                advance()
    if weighted:  # a row's total is known once all rows are scored
        totals = iter(tally.totals())
        lines = [_line(row, total=math.nan if row.problem else next(totals)) for row in scored]
        _rewrite(out, lines)
        for line in lines if as_json else ():
            print(line)
    _print_tables(scored if len(entries) <= _FEW and not as_json else [], tally, weighted=weighted, aside=as_json)
    if out is not None:
        print(f"scores: {out}", file=sys.stderr if as_json else sys.stdout)
    needs = _needs(entries, prompts, settings, pairs)
    _say_what_is_missing(tally, len(entries), _summaries(terms, uses), weighted=weighted, needs=needs)


def _score_run(run: Path, names: Sequence[str], words: Sequence[str], out: Path | None) -> None:
    """Score a run's recorded rollouts with another reward, and compare the rankings."""
    from rich.table import Table
    from rich.text import Text

    from grpokit.runs.rescore import HEADINGS, lines, rescore, table

    if len(names) != 1:
        raise UsageError("Recorded rollouts are scored with one reward at a time. Give one --reward NAME.")
    with _written(out) as write:
        result = rescore(run, names[0], _parameters(names, words)[names[0]], write=lambda row: write(json.dumps(row)))
    rows = Table("reward", box=None, pad_edge=False)
    for title in HEADINGS:
        rows.add_column(title, justify="right")
    for name, *cells in table(result, names[0].rpartition(":")[2]):
        rows.add_row(Text(name), *cells)
    console().print(rows)
    for line in lines(result):
        print(line)


def _say_what_is_passed_over(path: Path) -> None:
    """Name the pictures of a folder whose kind cannot be scored."""
    from grpokit.images import PICTURES, other_pictures, to_convert

    others = other_pictures(path) if os.path.isdir(path) else []
    if others:
        print(f"In {path} {to_convert(others)}. Only {', '.join(PICTURES)} are scored.", file=sys.stderr)


def _same_file(out: Path, place: object) -> bool:
    return isinstance(place, Path) and os.path.isfile(place) and out.samefile(place)


def _settings(names: Sequence[str], config: str | None, words: Sequence[str]) -> RunConfig | None:
    """The config of --config, or None with --reward."""
    from grpokit.config import presets

    if names and config:
        raise UsageError("Give either --reward or --config, not both. A config brings its own rewards.")
    several = next((name for name in names if "," in name), None)
    if several:
        raise UsageError(f"--reward takes one name, got {several!r}. Give it once for each reward.")
    if not names and not config:
        raise UsageError("No reward is named. Give --reward NAME, once or several times, or --config PRESET_OR_FILE.")
    return presets.read_config(config, words)[0] if config else None


def _pairs(
    settings: RunConfig | None, prompts: Path | None, *, targets: Path | None, sources: Path | None
) -> dict[str, Path | None]:
    """The folders of targets and sources: the config's own where --prompts is its file of prompts."""
    if settings is None or prompts is None or not os.path.isfile(prompts):
        return {"targets": targets, "sources": sources}
    own = settings.data
    if _same_file(prompts, Path(own.prompts or "")):
        targets = targets or (Path(own.targets) if own.targets else None)
        sources = sources or (Path(own.images) if own.images else None)
    return {"targets": targets, "sources": sources}


def _needs(
    entries: Sequence[Entry], prompts: Path | None, settings: RunConfig | None, pairs: Mapping[str, Path | None]
) -> str:
    """What a reward that scored nothing may need, and where it is given."""
    if any(entry.line for entry in entries):
        return "the key `target` or `image` (the source picture) in the records."
    needs = (
        "a prompt (--prompt, --prompts), a target (--target, --targets) or a source (--source, --sources)."
        if prompts is None
        else f"--targets or --sources, or the column `target` or `image` in {prompts}."
    )
    return needs + ("" if settings is None else _unused(settings, pairs))


def _unused(settings: RunConfig, pairs: Mapping[str, Path | None]) -> str:
    """Says which pictures of the config were not used, and how to use them."""
    folders = {"targets": settings.data.targets, "sources": settings.data.images}
    keys = {"targets": "data.targets", "sources": "data.images"}
    return "".join(
        f" The config's {keys[name]} is not used here; give --prompts {settings.data.prompts} --{name} {folder}."
        for name, folder in folders.items()
        if folder and pairs[name] is None
    )


@contextmanager
def _rewards(
    names: Sequence[str], settings: RunConfig | None, words: Sequence[str]
) -> Iterator[tuple[list[RewardTerm], list[str]]]:
    """The rewards of --reward or of --config, with the names that plugins know them by."""
    from grpokit import registry
    from grpokit.rewards.terms import RewardTerm, as_terms
    from grpokit.runs import build_rewards

    if settings is not None:
        terms = build_rewards.rewards(settings)
        uses = [reward.use for reward in settings.rewards]
    else:
        params = _parameters(names, words)
        terms = [
            RewardTerm(name=name.rpartition(":")[2], reward=registry.create("reward", name, params[name]))
            for name in names
        ]
        uses = list(names)
    try:
        yield as_terms(terms), uses
    finally:
        build_rewards.close(terms)


def _parameters(names: Sequence[str], words: Sequence[str]) -> Mapping[str, dict[str, Any]]:
    """NAME.KEY=VALUE words -> the parameters of each reward; of a single one the name may be left out."""
    assignments: dict[str, list[str]] = {name: [] for name in names}
    if len(assignments) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"--reward {twice} appears twice. For two settings of one reward, write a config.")
    for word in words:
        owners = [name for name in assignments if word.startswith(f"{name}.")]
        if owners:
            assignments[owners[0]].append(word.removeprefix(f"{owners[0]}."))
        elif len(assignments) == 1:
            assignments[names[0]].append(word)
        else:
            expected = " or ".join(f"{name}.KEY=VALUE" for name in names)
            raise UsageError(f"'{word}' names no parameter of {' or '.join(names)}. Expected {expected}.")
    return {name: parse_parameters(own) for name, own in assignments.items()}


@contextmanager
def _written(out: Path | None) -> Iterator[Callable[[str], None]]:
    """Writes the lines of `out` one by one. An error in here says that the file holds the earlier scores."""
    if out is None:
        yield lambda line: None
        return
    with _writing(out):
        file = out.open("w", encoding="utf-8", buffering=1)

    def write(line: str) -> None:
        with _writing(out):
            file.write(f"{line}\n")

    try:
        yield write
    except GrpokitError as error:
        raise reworded(error, f"{error} The earlier scores are in {out}.") from error
    finally:
        file.close()


def _line(row: Row, *, total: float | None = None) -> str:
    """A row as a line of JSON; half a surrogate pair, which UTF-8 cannot hold, becomes its JSON escape."""
    return json.dumps(row.as_json(total=total), ensure_ascii=False).encode(errors="backslashreplace").decode()


def _rewrite(out: Path | None, lines: Sequence[str]) -> None:
    if out is not None:
        with _writing(out), replacing(out) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error}. Choose another with --out.") from error


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Counts rows on stderr: with a bar on a terminal, elsewhere with a line every ten seconds."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    err = console(stderr=True)
    columns = (TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Remaining())
    both = sys.stdout.isatty()  # lines on stdout then go above the bar; else they must not go where the bar goes
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True, redirect_stdout=both) as bar:
        task = bar.add_task("scoring", total=total)
        count, last = 0, time.monotonic()

        def advance() -> None:
            nonlocal count, last
            count += 1
            bar.update(task, advance=1)
            if not err.is_terminal and time.monotonic() - last >= _PATIENCE:
                print(f"scored {count:,} of {counted(total, 'sample')}", file=sys.stderr)
                last = time.monotonic()

        yield advance


def _print_tables(rows: Sequence[Row], tally: Tally, *, weighted: bool, aside: bool) -> None:
    """A table of the rows if they are few, and always a summary."""
    from rich.table import Table
    from rich.text import Text

    screen = console(stderr=aside)
    columns = {name: column for name, column in tally.summary().items() if weighted or name != "reward"}
    if rows and len(rows) > 1:
        table = Table("file", box=None, pad_edge=False)
        for name in columns:
            table.add_column(Text(name), justify="right", no_wrap=True)
        table.add_column("prompt")
        totals = iter(tally.totals())
        for row in rows:
            values = {**row.scores, "reward": math.nan if row.problem else next(totals)}
            unread = "missing" if row.entry.missing else "unreadable"
            cells = [Text(unread if row.problem else _shown(values[name])) for name in columns]
            table.add_row(Text(row.entry.where), *cells, Text(row.entry.text))
        screen.print(table)
        screen.print()
    table = Table("reward", box=None, pad_edge=False)
    for title in ("mean", "± 95 %", "lowest", "highest", "scored", "not scored"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, column in columns.items():
        table.add_row(Text(name), *_cells(column))
    screen.print(table)


def _cells(column: Column) -> list[str]:
    numbers = (column.mean, column.half_width, column.lowest, column.highest)
    return [*map(_shown, numbers), f"{column.scored:,}", f"{len(column.unscored):,}"]


def _shown(value: float) -> str:
    return "-" if value != value else f"{value:z.4f}"


def _summaries(terms: Sequence[RewardTerm], uses: Sequence[str]) -> dict[str, str]:
    """Reward -> its plugin's summary; empty without one."""
    from grpokit import registry

    specs = [registry.spec_of("reward", use) for use in uses]
    return {term.name: "" if spec is None else spec.summary for term, spec in zip(terms, specs, strict=True)}


def _say_what_is_missing(tally: Tally, total: int, summaries: Mapping[str, str], *, weighted: bool, needs: str) -> None:
    """Name the samples without a score. Unreadable files, and a reward without any score, are bad input.

    Raises:
        DataError: files could not be read, or a reward could score nothing.
    """
    for name, column in tally.summary().items():
        if column.unscored and column.scored and (weighted or name != "reward"):
            some = f"{len(column.unscored):,} of {counted(total, 'sample')}"
            print(f"{name} could not score {some}: {_listed(column.unscored)}", file=sys.stderr)
    wrong = []
    if tally.problems:
        unreadable = [_named(name, problem.rstrip(".")) for name, problem in tally.problems.items()]
        some = f"{len(unreadable):,} of {counted(total, 'sample')} {'is' if len(unreadable) == 1 else 'are'}"
        wrong.append(f"{some} missing or unreadable: {_listed(unreadable, between='; ')}.")
    silent = [n for n, column in tally.summary().items() if column.unscored and not column.scored and n != "reward"]
    if silent:
        names = "; or by ".join(f"{name}: {summaries[name]}" if summaries[name] else name for name in silent)
        wrong.append(f"No sample could be scored by {names}. A reward may need {needs}")
    if wrong:
        raise DataError("\n".join(wrong))


def _named(name: str, problem: str) -> str:
    return problem if name in problem else f"{name} ({problem})"


def _listed(names: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return between.join(names[:_NAMED]) + more
