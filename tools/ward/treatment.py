"""Trains the runs of the ward, measures what became of them, asks for a diagnosis, and follows its advice.

A run is trained once: a file beside its folder says with which words, and the same words are not trained again.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ward.patients import Base, Case

if TYPE_CHECKING:
    from grpokit.evaluation.paired import Change

TOOLS = Path(__file__).parents[1]
CHECKPOINTS = 4  # of a run, evenly spread


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run.

    Attributes:
        first: the mean training score in the first quarter of the steps.
        last: the same in the last quarter.
        change: of the held-out score, from the first evaluation to the last; NaN without two of them.
        width: half the 95 % interval of the change, paired by prompt.
        seconds: of its training on one core.
        error: the message of a run that stopped itself.
    """

    first: float
    last: float
    change: float
    width: float
    seconds: float
    error: str = ""

    @property
    def rises(self) -> bool:
        """Whether the held-out score is clearly better than before."""
        return self.change > self.width

    def clearly_better(self, other: Outcome) -> bool:
        """Whether this run rises, and its change is above another run's by more than the intervals of both."""
        if math.isnan(other.change):
            return self.rises
        return self.rises and self.change - other.change > math.hypot(self.width, other.width)


def folder_of(home: Path, name: str, seed: int) -> Path:
    """Where a run lies: under its name for the seed 1, else with the seed behind it."""
    return home / (name if seed == 1 else f"{name}-seed{seed}")


def words_of(base: Base, seed: int) -> Sequence[str]:
    """What `grpokit train` is told: the preset and its overrides."""
    from grpokit.config import presets

    words = [base.preset, *base.overrides, f"seed={seed}", "run.threads=1", "run.keep_last=null"]
    steps = presets.read_config(base.preset, base.overrides)[0].trainer.steps
    return [*words, f"run.save_every={max(1, steps // CHECKPOINTS)}"]


def is_trained(base: Base, home: Path, seed: int) -> bool:
    """Whether a run lies there, trained with these words."""
    record = _record(folder_of(home, base.name, seed))
    return record.is_file() and json.loads(record.read_text())["words"] == words_of(base, seed)


def _record(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def train(base: Base, home: Path, seed: int = 1) -> Path:
    """Train a run in one thread, unless it is there already; returns its folder.

    Args:
        base: what is trained.
        home: holds the runs.
        seed: of the run.
    """
    folder = folder_of(home, base.name, seed)
    if is_trained(base, home, seed):
        return folder
    words = words_of(base, seed)
    record = _record(folder)
    record.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    begun = time.perf_counter()
    command = [sys.executable, "-m", "grpokit", "train", *words, f"run.dir={folder}"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: the run stopped itself
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    facts = {
        "words": words,
        "seconds": round(time.perf_counter() - begun, 1),
        "error": done.stderr.strip()[-500:] if done.returncode else "",
    }
    record.write_text(json.dumps(facts, indent=1))
    return folder


def outcome(folder: Path, score: str = "reward") -> Outcome:
    """Measure a trained run by a score."""
    from grpokit.report.verdict import headline
    from grpokit.run_folder.reader import read_run

    run = read_run(folder)
    key = "reward" if score == "reward" else f"rewards/{score}/mean"
    values = [row[key] for row in run.metrics if row.get(key) is not None]
    quarter = max(1, len(values) // 4)
    change, width = _held_out_change(headline(run), score)
    facts = json.loads(_record(folder).read_text())
    return Outcome(
        first=_mean(values[:quarter]),
        last=_mean(values[-quarter:]),
        change=change if len(run.evaluations) > 1 else math.nan,
        width=width if len(run.evaluations) > 1 else math.nan,
        seconds=facts["seconds"],
        error=facts["error"],
    )


def _held_out_change(changes: Sequence[Change], score: str) -> tuple[float, float]:
    """The change of a score and half of its interval; NaN where there is none."""
    of_score = [change for change in changes if change.name == score]
    if score == "reward" and not of_score:  # which is one reward alone
        of_score = [change for change in changes if not change.monitor]
    if not of_score or of_score[0].change is None or of_score[0].width is None:
        return math.nan, math.nan
    return of_score[0].change, of_score[0].width


def diagnosed(run: Path) -> Sequence[Mapping[str, Any]]:
    """The causes that `grpokit diagnose` names, the likeliest first, each with its `id` and its `overrides`."""
    command = [sys.executable, "-m", "grpokit", "diagnose", str(run), "--probe", "--json"]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    causes: Sequence[Mapping[str, Any]] = json.loads(done.stdout)["causes"]
    return causes


@dataclass(frozen=True, kw_only=True)
class Treated:
    """A diagnosis, and what its advice did.

    Attributes:
        causes: the ids that were named.
        advice: the overrides that were followed; those of the case's cure, where the right cause has none.
        sick: before.
        after: what became of the run with the advice.
        healed: whether it is clearly better.
    """

    causes: Sequence[str]
    advice: Sequence[str]
    sick: Outcome
    after: Outcome
    healed: bool


def treated(case: Case, home: Path, seed: int = 1) -> Treated:
    """Train a sick run, diagnose it, and train it again as the first cause advises."""
    folder = train(case.run, home, seed)
    causes = diagnosed(folder)
    advice = list(causes[0]["overrides"]) if causes else []
    if causes and causes[0]["id"] == case.cause and not advice:
        advice = list(case.cure)
    ids = [cause["id"] for cause in causes]
    sick = outcome(folder, case.score)
    if not advice:
        return Treated(causes=ids, advice=advice, sick=sick, after=sick, healed=False)
    again = Base(name=f"{case.name}-treated", preset=case.base.preset, overrides=[*case.run.overrides, *advice])
    after = outcome(train(again, home, seed), case.score)
    healed = after.rises if case.healed == "seen" else after.clearly_better(sick)
    return Treated(causes=ids, advice=advice, sick=sick, after=after, healed=healed)


def _environment() -> Mapping[str, str]:
    """That of a run: one thread, and the ward's components within reach."""
    paths = [str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
