"""`grpokit try`: one reward on a few pictures or texts, and which part of each its score comes from."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpokit import UsageError
from grpokit.cli.app import console, grid
from grpokit.cli.options import Json
from grpokit.errors import on_one_line, plural
from grpokit.images import MAX_PIXELS

if TYPE_CHECKING:
    from grpokit_diagnosis.trial.inputs import Given
    from grpokit_diagnosis.trial.trial import Trial

_PAGES, _PICTURE = (".html", ".htm"), ".png"


def try_reward(
    reward: Annotated[
        str, typer.Argument(metavar="REWARD", help="A reward: a plugin's name for it, or package.module:function.")
    ],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|TEXT|KEY=VALUE",
            help="Pictures, folders, records, files of text, or texts; and the reward's parameters.",
            show_default=False,
        ),
    ],
    prompt: Annotated[str | None, typer.Option("--prompt", help="The prompt of all of them.")] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="FILE|TEXT", help="The picture or text to compare with.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--source", help="The picture that was edited.")] = None,
    squares: Annotated[
        int, typer.Option("--squares", min=1, max=64, help="Squares along the longer side of a picture.")
    ] = 8,
    maps: Annotated[
        int, typer.Option("--maps", min=1, help="Of several samples, how many are explained, the best first.")
    ] = 8,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples in one call of the reward.")] = 32,
    max_pixels: Annotated[int, typer.Option("--max-pixels", min=1, help="Most pixels of a picture.")] = MAX_PIXELS,
    out: Annotated[
        Path | None, typer.Option("--out", help="The page, or the heat map as .png; by default try-REWARD.html.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Try a reward on a picture or a text, and see where the score comes from.

    Squares of a picture are covered one after the other, words of a text are left out. What the score loses is what the
    part is worth. Several samples are ranked. A text that begins with a dash comes behind `--`.
    """
    from grpokit_diagnosis.trial import inputs
    from grpokit_diagnosis.trial.trial import as_json as facts_of

    parameters = [word for word in words if inputs.is_parameter(word)]
    names = [word for word in words if word not in parameters]
    if not names:
        raise UsageError(
            f"Name what '{reward}' is tried on: a picture, a folder, a file of records, or a text. A text such as "
            "x=12 is read as a parameter; put it into a file."
        )
    given = inputs.samples_of(names, inputs.read_prompt(prompt, target, source, max_pixels), max_pixels=max_pixels)
    path = _place(out, reward, given, needed=out is not None or not as_json)
    trial = _run(reward, parameters, given, squares, maps, batch_size)
    for each in given:
        if (count := inputs.frames(each)) > 1:
            print(f"warning: {each.entry.where} has {count} pictures; the first was scored", file=sys.stderr)
    if path is not None:
        _write(path, trial, squares)
    if as_json:
        print(json.dumps({**facts_of(trial), "page": path and str(path)}))
    else:
        _print(trial)
        print(f"{'heat map' if path and path.suffix.lower() == _PICTURE else 'page'}: {path}")


def _place(out: Path | None, reward: str, given: Sequence[Given], *, needed: bool) -> Path | None:
    """Where the page or the picture goes; None if neither is asked for.

    Raises:
        UsageError: something else is there, or the name has another ending.
    """
    from grpokit.report.page import page_file
    from grpokit_diagnosis.trial.heat_map import check_png

    if not needed:
        return None
    name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in reward.rpartition(":")[2])
    default = Path(f"try-{name}.html")
    path = out or default
    if path.suffix.lower() == _PICTURE:
        texts = [each.entry.where for each in given if each.entry.kind == "text"]
        if texts:
            raise UsageError(f"{path} is a picture, and {texts[0]} is a text. Give --out a name that ends in .html.")
        check_png(path)
        return path
    if path.suffix.lower() not in _PAGES and not path.is_dir():
        raise UsageError(f"--out {path} ends in neither .html nor .png.")
    return page_file(path, default)


def _run(
    reward: str, parameters: Sequence[str], given: Sequence[Given], squares: int, maps: int, batch_size: int
) -> Trial:
    """The trial, with a bar on a terminal; what the reward prints goes to stderr."""
    from rich.progress import Progress

    from grpokit_diagnosis.trial import trial

    screen = console(stderr=True)
    bar = Progress(console=screen, transient=True, disable=not screen.is_terminal)
    with redirect_stdout(sys.stderr), bar:
        task = bar.add_task("scoring", total=None)
        return trial.run(
            reward,
            parameters,
            given,
            squares=squares,
            maps=maps,
            batch_size=batch_size,
            progress=lambda done, planned: bar.update(task, completed=done, total=planned),
        )


def _write(path: Path, trial: Trial, squares: int) -> None:
    from grpokit.report.page import write_whole
    from grpokit_diagnosis.trial import heat_map, page

    if path.suffix.lower() == _PICTURE:
        write_whole(path, heat_map.png(trial.apart, trial.reward))
    else:
        write_whole(path, page.page(trial, squares))


def _print(trial: Trial) -> None:
    """The scores, what the reward needed, and where the score of each sample comes from."""
    from grpokit_diagnosis.trial.sentences import about_needs, about_parts, figure

    best = trial.tried[0]
    if len(trial.tried) == 1:
        print(f"{trial.reward} gives {on_one_line(best.where)} {figure(best.score)}")
    else:
        rows = [[on_one_line(tried.where), figure(tried.score)] for tried in trial.tried]
        console().print(grid(["sample", trial.reward], rows))
    print(about_needs(trial.apart[0], compares=trial.compares))
    for tried in trial.tried:
        name = f"{on_one_line(tried.where)}: " if len(trial.tried) > 1 else ""
        if math.isnan(tried.score):
            print(f"{name}no score, {tried.problem}")
        elif tried.divided is not None:
            print(f"{name}{' '.join(about_parts(tried))}")
    others = sum(tried.divided is None and not math.isnan(tried.score) for tried in trial.tried)
    if others:
        print(f"{plural(others, 'sample')} not explained; --maps {len(trial.tried)} explains all")
