"""The presets learn what they promise: shortened here, in full with three seeds under `-m very_slow`."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpokit import Sample
from grpokit.config import presets
from grpokit.runs import build, build_rewards
from whole_runs import train_config

GLYPH_TARGETS = 0.97  # the least that the reader must score on the true target pictures


@pytest.mark.slow
def test_toy_glyph_rises_in_a_few_steps(tmp_path: Path) -> None:
    small = ("trainer.steps=10", "trainer.group_size=8", "eval.every=0", "rewards.1.every=100")
    done = train_config("toy-glyph", tmp_path / "r", "rewards.1.weight=0", *small)
    assert done.before.means["ssim"] < 0.75
    assert done.after.means["ssim"] > done.before.means["ssim"] + 0.08
    assert done.after.means["ocr"] > done.before.means["ocr"] + 0.08  # not trained on here


@pytest.mark.very_slow
def test_toy_lm_rises_in_a_few_steps(tmp_path: Path) -> None:
    done = train_config("toy-lm", tmp_path / "r", "trainer.steps=30", "trainer.micro_batch_size=64")
    assert done.after.means["format"] > done.before.means["format"] + 0.05
    assert done.after.means["reward"] > done.before.means["reward"]


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_toy_glyph_becomes_legible(seed: int, tmp_path: Path) -> None:
    config, _ = presets.read_config("toy-glyph")
    _, held_out = build.prompts(config)
    true = build_rewards.rewards(config)[1].reward
    best = true([Sample(prompt=p, output=p.target, group=0) for p in held_out])
    assert sum(best) / len(best) >= GLYPH_TARGETS
    done = train_config("toy-glyph", tmp_path / "r", f"seed={seed}")
    assert done.before.means["ocr"] <= 0.5
    assert done.after.means["ocr"] >= 0.95 * sum(best) / len(best)
    assert done.after.means["ssim"] >= 0.95


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_toy_lm_solves_four_fifths(seed: int, tmp_path: Path) -> None:
    done = train_config("toy-lm", tmp_path / "r", f"seed={seed}", "trainer.group_size=8", "trainer.micro_batch_size=2")
    assert done.after.means["right"] >= 2 * done.before.means["right"]
    assert done.after.means["right"] >= 0.8
