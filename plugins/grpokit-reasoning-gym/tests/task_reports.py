"""What another process makes of tasks: `python task_reports.py TASKS STATE` prints it as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from grpokit import Sample
from grpokit_reasoning_gym.questions import questions
from grpokit_reasoning_gym.reward import ReasoningGym
from grpokit_reasoning_gym.tasks import entry

SIZE = 6
CODE = "__import__('os').environ.__setitem__('RAN', 'yes')"


def report(task: str) -> dict[str, Any]:
    """Its questions, digests of entries, scores of own answers (None where it gives none), whether it runs answers."""
    learned, evaluated = (questions(split, tasks=[task], size=SIZE, held_out=SIZE) for split in ("train", "eval"))
    samples = [Sample(prompt=p, output=f"<answer>{p.target}</answer>", group=0) for p in evaluated]
    reward = ReasoningGym(pattern="<answer>(.*)</answer>")
    scores = reward(samples)
    os.environ["RAN"] = "no"
    reward([replace(sample, output=f"<answer>{CODE}</answer>") for sample in samples])
    return {
        "learned": [prompt.text for prompt in learned],
        "evaluated": [prompt.text for prompt in evaluated],
        "digests": [hashlib.sha256(repr(entry(**prompt.meta)).encode()).hexdigest() for prompt in evaluated],
        "scores": [None if s.prompt.target is None else score for s, score in zip(samples, scores, strict=True)],
        "runs_code": os.environ["RAN"] == "yes",
    }


def reports(tasks: Collection[str], *, state: int, hash_seed: str) -> dict[str, dict[str, Any]]:
    """Task -> its report in a process whose global generators begin with `state`."""
    words = [sys.executable, __file__, json.dumps([*tasks]), str(state)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.lstrip("."))  # type: ignore[no-any-return]  # bf prints a dot for each question


if __name__ == "__main__":
    random.seed(int(sys.argv[2]))
    np.random.seed(int(sys.argv[2]))
    print(json.dumps({task: report(task) for task in json.loads(sys.argv[1])}))
