"""A run of either half that is stopped or killed ends as one that was not, to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grpokit.config import schema
from grpokit.runs import train as run
from whole_runs import assert_same, finish, kill_and_resume, start

STEPS = 3
DECODE = "decode: {steps: 1}, eval_decode: {steps: 1}"
KINDS = {
    "edits": f"use: glm-image-ar, edits: true, lora: {{r: 4}}, reference_ema: {{decay: 0.5}}, top_p: 0.9, {DECODE}",
    "texts": f"use: glm-image-ar, train_tokens: large, {DECODE}",  # all weights, held to a copy
    "painter": "use: glm-image-dit, steps: 4, eval_steps: 1, token_sets: 2, lora: {r: 4}, ema: {decay: 0.8, every: 3}, "
    "reference_ema: {decay: 0, every: 2}, window: {width: 2, start: sliding, every: 1}",
    "edited paintings": "use: glm-image-dit, edits: true, steps: 2, eval_steps: 1, lora: {r: 4}, guidance: 1.5, "
    "gradient_checkpointing: true",
    "copies": "use: glm-image-dit, steps: 2, eval_steps: 1, token_sets: 2, lora: {r: 4}, matching: {times: 2}",
    "rounded": f"use: glm-image-ar, quantization: 4bit, lora: {{r: 4}}, {DECODE}",
    "rounded painter": "use: glm-image-dit, quantization: 8bit, steps: 3, eval_steps: 1, lora: {r: 4}, "
    "ema: {decay: 0.8}",
}
CONFIG = """
policy: {model: tiny, size: [64, 96], KIND}
data: {prompts: prompts.txt, IMAGES}
eval: {fraction: 0.25, every: 2}
rewards: [{use: brightness}]
trainer:
  steps: STEPS
  prompts_per_step: 2
  group_size: 2
  updates_per_rollout: 2
  kl_coef: 0.05
  KL
  learning_rate: 1e-2
  device: cpu
run: {record: true, save_every: 1, keep_last: KEEP, best: reward, threads: 1}
"""


def fill(folder: Path, kind: str, *, steps: int, keep: str) -> None:
    """A config, prompts and pictures to edit."""
    if "quantization" in KINDS[kind]:
        pytest.importorskip("bitsandbytes")
    (folder / "prompts.txt").write_text('red\ntwo dogs\na sign "OPEN"\nblue\n')
    (folder / "pictures").mkdir()
    random = np.random.default_rng(0)
    for line in range(1, 5):
        pixels = random.integers(0, 255, (64, 32 * (line + 1), 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{line}.png")
    text = CONFIG.replace("KIND", KINDS[kind]).replace("STEPS", str(steps)).replace("KEEP", keep)
    of_steps = "kl: gaussian\n" if "glm-image-dit" in KINDS[kind] else "\n"
    text = text.replace("KL\n", "kl: velocity\n  objective: nft\n" if kind == "copies" else of_steps)
    text = text.replace("IMAGES", "images: pictures," if "edits: true" in KINDS[kind] else "")
    (folder / "config.yaml").write_text(text)


@pytest.mark.usefixtures("without_report", "small_draft")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("painter", "edits") else pytest.mark.slow) for kind in KINDS]
)
def test_a_resume_is_bit_equal(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, kind, steps=STEPS, keep="null")
    text = (tmp_path / "config.yaml").read_text()

    def train(folder: str, *, resume: bool = False) -> Path:
        run.train(schema.parse(text, "config.yaml", [f"run.dir={folder}"]), resume=resume)
        return tmp_path / folder

    whole = train("whole")
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    shutil.rmtree(again / f"checkpoints/step_{STEPS:06d}")  # what it goes on from has moments and an average of its own
    assert_same(whole, train(again.name, resume=True))


@pytest.mark.very_slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_killed_ends_equal(kind: str, tmp_path: Path) -> None:
    fill(tmp_path, kind, steps=8, keep="2")
    finish(start(tmp_path / "whole"))
    kill_and_resume(tmp_path / "whole", 1, times=3)
