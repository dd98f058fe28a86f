"""kill -9 at any moment of a run from the command line: the resumed run ends as the uninterrupted one, to the bit.

Slow, since every process loads torch and transformers. `test_policy_files.py` resumes at every step in one process.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import save_tiny_model

from whole_runs import finish, kill_and_resume, start

KINDS = {
    "lora": "lora: {r: 2}",
    "full": "reference_dtype: float32",
    "average": "reference_ema: {decay: 0.8}",
    "average of an adapter": "lora: {r: 2}, reference_ema: {decay: 0.8}",
}
CONFIG = """
policy: {use: hf-lm, model: base, max_new_tokens: 12, stop: [e], POLICY}
data: {prompts: prompts.jsonl}
eval: {fraction: 0.25, every: 3}
rewards: [{use: length, name: short, minimum: 5, maximum: 8}]
trainer:
  steps: 12
  prompts_per_step: 2
  group_size: 4
  updates_per_rollout: 2
  kl_coef: 0.05
  learning_rate: 1e-2
  device: cpu
run: {record: true, save_every: 1, keep_last: 2, best: short, threads: 1}
"""


def whole(folder: Path, kind: str) -> Path:
    """An uninterrupted run, beside its model, its prompts and its config."""
    save_tiny_model(folder / "base")
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"say {c}"}) + "\n" for c in "abcdefghijkl"))
    (folder / "config.yaml").write_text(CONFIG.replace("POLICY", KINDS[kind]))
    finish(start(folder / "whole"))
    return folder / "whole"


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_ten_times_ends_equal(kind: str, tmp_path: Path) -> None:
    kill_and_resume(whole(tmp_path, kind), 1, times=10)
