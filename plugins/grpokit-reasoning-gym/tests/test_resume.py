"""A tiny language model trains on questions, and a resumed run is equal to the bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from whole_runs import assert_same, train_config

CONFIG = """
seed: 0
policy: {use: hf-lm, model: "grpokit_lm:models/arithmetic", max_new_tokens: 8, lora: {r: 4}, min_p: 0.0}
data:
  use: reasoning-gym
  tasks: {chain_sum: {min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}, coin_flip: {}}
  size: 20
  held_out: 4
  prompt: "{question}"
eval: {every: 1}
rewards: [{use: reasoning-gym, pattern: '(\\d)'}]
trainer: {steps: 3, prompts_per_step: 4, group_size: 8, learning_rate: 1e-3}
run: {threads: 1, save_every: 1, keep_last: null}
"""


@pytest.mark.slow
def test_a_resume_is_equal_to_the_bit(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    whole, again = tmp_path / "whole", tmp_path / "again"
    train_config(str(config), whole)
    steps = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert any(step["grad_norm"] > 0 for step in steps)
    assert "grpokit-reasoning-gym:reasoning-gym" in (whole / "config.yaml").read_text()
    shutil.copytree(whole, again)
    for later in (2, 3):
        shutil.rmtree(again / f"checkpoints/step_{later:06d}")
    train_config(str(config), again, resume=True)
    assert_same(whole, again)
