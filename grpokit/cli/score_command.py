"""The command that scores files: score."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpokit.cli.app import app, console, grid
from grpokit.config.overrides import parse_parameters
from grpokit.errors import DataError, UsageError, counted
from grpokit.files import write_text, writing

if TYPE_CHECKING:
    from grpokit.config.schema import RunConfig
    from grpokit.evaluation.sample_files import Entry
    from grpokit.evaluation.score_files import Column, Row
    from grpokit.rewards.terms import RewardTerm

_FEW = 20  # rows that a table shows one by one
_NAMED = 5  # files that a message names


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
    reward: Annotated[
        list[str] | None, typer.Option("--reward", help="A reward: its name, or package.module:function.")
    ] = None,
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
        Path | None, typer.Option("--out", dir_okay=False, help="A file for the scores, one JSON object per sample.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines; the summary goes to stderr.")] = False,
    max_pixels: Annotated[
        int | None, typer.Option("--max-pixels", min=1, help="Most pixels of a picture; by default 36 million.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples in memory at a time.")] = 32,
) -> None:
    """Score files, or the rollouts of a run, without training.

    Give --reward once or several times, or --config. With --prompts, a picture's name is the line of its prompt. For a
    run, it shows how the rankings would change with another reward.
    """
    if out is not None and out.exists():
        inputs = (path, prompts, target, source, Path(config) if config else None)
        _refuse_to_replace(out, inputs, overwrite=overwrite)
    from grpokit.run_folder.names import CONFIG, ROLLOUTS

    files = {"prompt": prompt, "target": target, "source": source}
    files |= {"prompts": prompts, "targets": targets, "sources": sources}
    if (path / CONFIG).is_file() and any((path / ROLLOUTS).glob("step_*")):
        if config or any(files.values()):
            raise UsageError(
                f"{path} is a run, whose rollouts have their own prompts and pictures: give only --reward."
            )
        _score_run(path, reward or [], words or [], out)
        return
    with _rewards(reward or [], words or [], config) as (terms, uses, settings):
        rows = _scored(_entries(path, files, settings, max_pixels), terms, uses, out, batch_size)
    _show(rows, out, weighted=settings is not None, as_json=as_json)


def _refuse_to_replace(out: Path, inputs: Sequence[Path | None], *, overwrite: bool) -> None:
    if not overwrite:
        raise UsageError(f"{out} exists already. Choose another with --out, or add --overwrite.")
    if any(file and file.exists() and out.samefile(file) for file in inputs):
        raise UsageError(f"{out} is a file that is read. Choose another with --out.")


def _score_run(run: Path, names: Sequence[str], words: Sequence[str], out: Path | None) -> None:
    """Score a run's recorded rollouts with another reward, and compare the rankings."""
    from grpokit.runs.rescore import HEADINGS, lines, rescore, table

    if len(names) != 1:
        raise UsageError("Recorded rollouts are scored with one reward at a time. Give one --reward NAME.")
    with _writer(out) as write:
        result = rescore(run, names[0], _parameters(names, words)[names[0]], write=lambda row: write(json.dumps(row)))
    console().print(grid(["reward", *HEADINGS], table(result, names[0].rpartition(":")[2])))
    for line in lines(result):
        print(line)


@contextmanager
def _rewards(
    names: Sequence[str], words: Sequence[str], config: str | None
) -> Iterator[tuple[Sequence[RewardTerm], Sequence[str], RunConfig | None]]:
    """The rewards of --reward or of --config, the names that plugins know them by, and the config."""
    if bool(names) == bool(config):
        raise UsageError("Name rewards with --reward, once or several times, or by --config PRESET_OR_FILE.")
    from grpokit import registry
    from grpokit.config import presets

    settings = presets.read_config(config, words)[0] if config else None  # before torch is imported
    from grpokit.rewards.terms import RewardTerm, as_terms
    from grpokit.runs import build_rewards

    if settings is not None:
        terms, names = build_rewards.rewards(settings), [reward.use for reward in settings.rewards]
    else:
        terms = [
            RewardTerm(name=name.rpartition(":")[2], reward=registry.create("reward", name, params))
            for name, params in _parameters(names, words).items()
        ]
    try:
        yield as_terms(terms), names, settings
    finally:
        build_rewards.close(terms)


def _parameters(names: Sequence[str], words: Sequence[str]) -> Mapping[str, dict[str, Any]]:
    """NAME.KEY=VALUE words -> the parameters of each reward; of a single one the name may be left out."""
    assignments: dict[str, list[str]] = {name: [] for name in names}
    for word in words:
        owner = next((name for name in names if word.startswith(f"{name}.")), names[0] if len(names) == 1 else None)
        if owner is None:
            expected = " or ".join(f"{name}.KEY=VALUE" for name in names)
            raise UsageError(f"'{word}' names no parameter of {' or '.join(names)}. Expected {expected}.")
        assignments[owner].append(word.removeprefix(f"{owner}."))
    return {name: parse_parameters(own) for name, own in assignments.items()}


def _entries(path: Path, files: Mapping[str, Any], settings: RunConfig | None, max_pixels: int | None) -> list[Entry]:
    """What is to be scored; pictures of a folder whose kind cannot be scored are named."""
    from grpokit.evaluation import sample_files
    from grpokit.images import MAX_PIXELS, PICTURES, other_pictures, to_convert

    entries = sample_files.find(
        path,
        **files,
        max_pixels=max_pixels or (settings and settings.data.max_pixels) or MAX_PIXELS,
        columns=settings.data.columns if settings else None,
    )
    listed = files["prompts"] is None and (path / sample_files.SAMPLES).is_file()
    others = other_pictures(path) if path.is_dir() and not listed else []
    if others:
        print(f"In {path} {to_convert(others)}. Only {', '.join(PICTURES)} are scored.", file=sys.stderr)
    return entries


def _scored(
    entries: Sequence[Entry], terms: Sequence[RewardTerm], uses: Sequence[str], out: Path | None, batch_size: int
) -> list[Row]:
    """Score entries, with a bar on a terminal; each row is written to `out` at once."""
    from rich.progress import track

    from grpokit.evaluation import score_files

    score_files.check_accepts(uses, entries)
    scored = score_files.score_files(
        terms,
        entries,
        batch_size=batch_size,
        whole_groups=score_files.compares_groups(uses),
        say=lambda line: print(line, file=sys.stderr),
    )
    screen = console(stderr=True)
    followed = track(scored, "scoring", len(entries), console=screen, transient=True, disable=not screen.is_terminal)
    rows = []
    with _writer(out) as write:
        for row in followed:
            rows.append(row)
            write(_line(row))
    return rows


@contextmanager
def _writer(out: Path | None) -> Iterator[Callable[[str], None]]:
    """Yields what adds a line to the file of --out, if there is one; after an error it holds the earlier ones."""
    if out is None:
        yield lambda line: None
        return
    with writing(out):
        file = out.open("w", encoding="utf-8", buffering=1)

    def write(line: str) -> None:
        with writing(out):
            file.write(f"{line}\n")

    with file:
        yield write


def _line(row: Row, *, total: float | None = None) -> str:
    """A row as a line of JSON; an unpaired surrogate, which UTF-8 cannot hold, becomes its JSON escape."""
    return json.dumps(row.as_json(total=total), ensure_ascii=False).encode(errors="backslashreplace").decode()


def _show(rows: Sequence[Row], out: Path | None, *, weighted: bool, as_json: bool) -> None:
    """Print what came out; the totals, which are known once all rows are scored, are written to `out` as well."""
    from grpokit.evaluation import score_files

    screen, totals = console(stderr=as_json), score_files.totals(rows)
    columns = {name: own for name, own in score_files.summary(rows).items() if weighted or name != "reward"}
    pairs = list(zip(rows, totals, strict=True))
    if out is not None and weighted:
        write_text(out, "".join(f"{_line(row, total=total)}\n" for row, total in pairs))
    if as_json:
        print(*(_line(row, total=total if weighted else None) for row, total in pairs), sep="\n")
    elif 1 < len(rows) <= _FEW:
        cells = []
        for row, total in pairs:
            unread = ("missing" if row.entry.missing else "unreadable") if row.problem else ""
            values = {**row.scores, "reward": total}
            cells.append([row.entry.where, *(unread or _shown(values[name]) for name in columns), row.entry.text])
        screen.print(grid(["file", *columns, "prompt"], cells, words=("prompt",)))
        screen.print()
    summary = []
    for name, column in columns.items():
        numbers = map(_shown, (column.mean, column.half_width, column.lowest, column.highest))
        summary.append([name, *numbers, f"{column.scored:,}", f"{len(column.unscored):,}"])
    screen.print(grid(["reward", "mean", "± 95 %", "lowest", "highest", "scored", "not scored"], summary))
    if out is not None:
        print(f"scores: {out}", file=screen.file)
    _say_what_is_missing(rows, columns)


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:z.4f}"


def _say_what_is_missing(rows: Sequence[Row], columns: Mapping[str, Column]) -> None:
    """Name the samples without a score.

    Raises:
        DataError: files could not be read, or a reward could score nothing.
    """
    wrong, total = [], len(rows)
    if problems := {row.entry.where: row.problem for row in rows if row.problem}:
        lines = [problem if name in problem else f"{name} ({problem})" for name, problem in problems.items()]
        some = f"{len(problems):,} of {counted(total, 'sample')}"
        wrong.append(f"{some} cannot be read:\n  " + _listed(lines, between="\n  "))
    for name, column in columns.items():
        if column.unscored and column.scored:
            some = f"{len(column.unscored):,} of {counted(total, 'sample')}"
            print(f"{name} could not score {some}: {_listed(column.unscored)}", file=sys.stderr)
        elif column.unscored and name != "reward":
            wrong.append(
                f"No sample could be scored by {name}. It may need a prompt (--prompt, --prompts), a target (--target, "
                "--targets) or a source (--source, --sources); records name them in `prompt`, `target` and `image`."
            )
    if wrong:
        raise DataError("\n".join(wrong))


def _listed(names: Sequence[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return between.join(names[:_NAMED]) + more
