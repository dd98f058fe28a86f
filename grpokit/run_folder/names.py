"""The files and folders of a run."""

from __future__ import annotations

import os
from pathlib import Path

from grpokit.errors import UsageError

# What the run was started with; the config is written last.
VERSIONS, DATA, CONFIG = "versions.json", "data.json", "config.yaml"
MACHINE, TRACKERS = "machine.json", "trackers.json"

# What grows with the run: a row for each step, evaluation, warning, and study of what moves the rewards.
METRICS, EVALUATIONS, WARNINGS, ATTRIBUTION = "metrics.jsonl", "eval.jsonl", "warnings.jsonl", "attribution.jsonl"
END, WAITING = "end.json", "waiting.txt"

# Folders with a folder for each step: held-out samples, the best and worst groups, everything that was drawn, weights.
SAMPLES, GROUPS, ROLLOUTS, CHECKPOINTS = "samples", "groups", "rollouts", "checkpoints"
ROWS, SCORES, TRACE = "samples.jsonl", "scores.json", "trace.safetensors"  # in them
SCORE_LINES, PARTIAL_LINES = "scores.jsonl", "scores.partial.jsonl"  # of an evaluation of files: each sample's score

REPORT, REPORT_PICTURE, COMPARISON = "report.html", "report.png", "compare.html"


def check_run_folder(folder: Path) -> None:
    """Refuse what is not a run folder.

    Raises:
        UsageError: it has no config.
    """
    if not os.path.isfile(folder / CONFIG):  # unlike Path's, it is False for a name that no file can have
        raise UsageError(f"{folder} is not a run folder: it has no {CONFIG}.")
