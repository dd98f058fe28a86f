"""Whole runs of a tiny policy in the current folder, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpokit.config import schema
from grpokit.runs import train as run

STEPS = 6


def write_prompts(texts: list[str], name: str = "prompts.jsonl") -> None:
    Path(name).write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))


def train(
    folder: str, *, resume: bool = False, overwrite: bool = False, force: bool = False, **changes: Any
) -> run.Result:
    """Train on `prompts.jsonl`; `changes` are like `run__save_every=2` or `rewards=[...]`."""
    settings: dict[str, Any] = {
        "policy": {"use": "switched:Switched"},
        "data": {"prompts": "prompts.jsonl"},
        "eval": {"prompts": "prompts.jsonl"},
        "rewards": [{"use": "switched:reward", "name": "digits"}],
        "trainer": {"steps": STEPS, "prompts_per_step": 2, "group_size": 4, "learning_rate": 0.02, "device": "cpu"},
        "run": {"dir": folder, "threads": 1},
        "trackers": {},
    }
    watcher = changes.pop("watcher", None)
    for key, value in changes.items():
        part, _, name = key.partition("__")
        if name:
            settings[part][name] = value
        else:
            settings[part] = value
    config = schema.parse(json.dumps(settings), "test", [])
    return run.train(config, resume=resume, overwrite=overwrite, force=force, watcher=watcher)


def rows(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
