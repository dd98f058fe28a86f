"""A sweep: the runs of a grid in turn, each an ordinary run folder, and a table of what the settings reached.

A number of the table is a mean over runs that differ in their seed alone: of the last evaluation on held-out prompts,
with a 95 % interval by Student's t over the seeds.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from grpokit.config import presets
from grpokit.config.component_names import with_lasting_names
from grpokit.config.grid import Point
from grpokit.config.schema import RunConfig
from grpokit.errors import GrpokitError, UsageError, error_line
from grpokit.evaluation.intervals import half_width
from grpokit.files import write_text, writing
from grpokit.run_folder.names import CONFIG, REPORT
from grpokit.run_folder.reader import RunHistory, read_run
from grpokit.run_folder.scales import on_another_scale, same_mix
from grpokit.runs import build, preflight, resuming
from grpokit.runs import train as training

PAGE = "sweep.md"
_STARTS = ("| setting ", "No finished run ")  # of the page
SettingScores: TypeAlias = dict[
    str, dict[str, dict[str, float]]
]  # setting -> score -> seed -> mean of the last evaluation


@dataclass(frozen=True, kw_only=True)
class Swept:
    """How a sweep ended.

    Attributes:
        folder: of the sweep.
        settings: what the finished runs reached.
        failed: folder's name -> the error, of the runs that failed.
        interrupted: it was stopped by Ctrl-C, and the same command continues it.
    """

    folder: Path
    settings: SettingScores
    failed: Mapping[str, str]
    interrupted: bool


def sweep(
    source: str,
    points: Sequence[Point],
    *,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
    watching: Callable[[], AbstractContextManager[training.Watcher]] = lambda: nullcontext(training.Watcher()),
) -> Swept:
    """Train the runs of a grid that are not finished yet, and write `sweep.md`, which compares them.

    Args:
        source: a preset, or a config file.
        points: the runs, from `grpokit.config.grid.points`.
        folder: of the sweep; by default sweeps/<name of the source>.
        say: gets a line before each run, and one where a run fails.
        watching: gives the callbacks for the progress of a run.

    Raises:
        UsageError: a config is wrong or differs from that of a finished run, or the folder is a run or has another
            file where the table goes; nothing was trained.
        RunError: the folder cannot be made.
    """
    configs: dict[str, RunConfig] = {}
    for point in points:  # all of them, so that the last run's mistake does not wait for the others
        config, name = presets.read_config(source, point.overrides)
        folder = folder or Path("sweeps") / name
        config, _ = with_lasting_names(config, resuming.names_before(folder / point.name))
        build.check_components(config)
        preflight.check_run(config)
        configs[point.name] = config
    assert folder is not None
    _refuse_other_files(folder)
    finished = {point.name for point in points if _finished(folder / point.name, configs[point.name])}
    failed: dict[str, str] = {}
    interrupted = False
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for number, point in enumerate(points, 1):
        place = folder / point.name
        config = configs[point.name]
        say(f"[{number}/{len(points)}] {place}{' is finished' if point.name in finished else ''}")
        if point.name in finished:
            continue
        config.run.dir = str(place)
        try:
            with watching() as watcher:
                interrupted = training.train(config, resume=True, watcher=watcher).interrupted
        except Exception as error:  # the other runs may be well
            failed[point.name] = str(error) if isinstance(error, GrpokitError) else error_line(error)
            say(f"failed: {failed[point.name]}")
        if interrupted:
            break
        gc.collect()  # the models of this run, before the next one needs the room
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    settings = _write_page(folder, points, failed)
    return Swept(folder=folder, settings=settings, failed=failed, interrupted=interrupted)


def _write_page(folder: Path, points: Sequence[Point], failed: Mapping[str, str]) -> SettingScores:
    """Write the table of the settings, with links to the runs' reports; returns what the settings reached."""
    names = [point.name for point in points]
    begun = [name for name in names if (folder / name / CONFIG).is_file()]
    runs = {name: read_run(folder / name) for name in begun}
    settings = _settings(points, runs)
    states = dict.fromkeys(names, "not begun")
    states |= {name: run.state for name, run in runs.items()}
    states |= dict.fromkeys(failed, "failed")
    links = "".join(f"- [{name}]({name}/{REPORT}): {state}\n" for name, state in states.items())
    write_text(folder / PAGE, f"{settings_table(settings)}\n{links}")
    return settings


def _refuse_other_files(folder: Path) -> None:
    page = folder / PAGE
    if (folder / CONFIG).is_file():
        raise UsageError(f"{folder} is a run. Choose another folder with --dir.")
    if page.exists():
        text = page.read_text(encoding="utf-8", errors="replace")
        if not text.startswith(_STARTS):
            raise UsageError(f"{page} is not the table of a sweep. Choose another folder with --dir.")


def _finished(place: Path, config: RunConfig) -> bool:
    """Whether a run is finished, and would still be trained as it was, since others are compared with it."""
    if not (place / CONFIG).is_file() or read_run(place).state != "finished":
        return False
    if not (place / REPORT).is_file():  # it was killed before it could write one, and does so when it goes on
        return False
    prompts, held_out = build.prompts(config)
    sequences = {"train": prompts, "held_out": held_out}
    changes = resuming.changed_prompts(place, resuming.prompt_digests(prompts, held_out), sequences)
    lines = [*resuming.changed_config(place, config), *changes.values()]
    if lines:
        raise UsageError(
            f"The finished run {place} cannot be compared with new ones: {'; '.join(lines)}. Choose another "
            "folder with --dir."
        )
    return True


def _settings(points: Sequence[Point], runs: Mapping[str, RunHistory]) -> SettingScores:
    done = {name: run for name, run in runs.items() if run.state == "finished" and run.evaluations}
    apart: set[str] = set()  # scores that are not the same in each setting
    compared = [*done.values()]
    for other in compared[1:]:
        apart.update(on_another_scale(compared[0], other))
        if not same_mix(compared[0], other):
            apart.add("reward")
    settings: SettingScores = {point.setting: {} for point in points}
    for point in points:
        if point.name not in done:
            continue
        last = done[point.name].evaluations[-1]
        for score, value in last["means"].items():
            if value is not None and score not in apart:
                by_seed = settings[point.setting].setdefault(score, {})
                by_seed[point.seed] = value
    return settings


def settings_table(settings: SettingScores) -> str:
    """The settings as a table of Markdown; differences to the first setting are paired by seed."""
    names = {score for reached in settings.values() for score in reached}
    scores = sorted(names, key=lambda name: (name != "reward", name))
    if not scores:
        return (
            "No finished run has a score on held-out prompts that all of them share, so there is nothing to compare.\n"
        )
    rows = [["setting", *scores, f"{scores[0]} minus the first", "runs"]]
    first = next(iter(settings.values())).get(scores[0], {})
    for setting, reached in settings.items():
        main = reached.get(scores[0], {})
        gaps = []
        if main is not first:
            gaps = [score - first[seed] for seed, score in main.items() if seed in first]
        row = [setting or "unchanged"]
        for score in scores:
            values = reached.get(score, {}).values()
            row.append(estimate(list(values)))
        row += [estimate(gaps, sign="+"), str(len(main))]
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(map(str.ljust, row, widths))} |\n" for row in rows)


def estimate(values: Sequence[float], *, sign: str = "") -> str:
    """The mean over seeds, and half of its 95 % interval where there are several.

    >>> estimate([1.0, 2.0, 3.0]), estimate([-0.1, 0.2], sign="+"), estimate([0.5]), estimate([])
    ('2.000 ± 2.484', '+0.050 ± 1.906, no clear difference', '0.500', '-')
    """
    if not values:
        return "-"
    mean = math.fsum(values) / len(values)
    width = half_width(values, range(len(values)))
    if math.isnan(width):
        return f"{mean:{sign}.3f}"
    unclear = ", no clear difference" if sign and abs(mean) <= width else ""
    return f"{mean:{sign}.3f} ± {width:.3f}{unclear}"
