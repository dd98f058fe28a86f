"""The presets for the released model: their weights are the published ones, and they run on a tiny one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grpokit import UsageError
from grpokit.config import presets
from grpokit.runs import train as run

pytestmark = pytest.mark.usefixtures("small_draft")
WEIGHTS = {
    "glm-image-t2i": {"lpips": 0.4, "ssim": 0.2, "ocr": 0.3, "aesthetic": 0.1},
    "glm-image-i2i": {"lpips": 0.35, "aesthetic": 0.25, "ocr": 0.25, "structure": 0.15},
}
TINY = (
    "policy.model=tiny",
    "policy.size=[64, 96]",
    "policy.decode.steps=1",
    "policy.eval_decode={steps: 1, guidance: 1.0}",
    "eval.fraction=0.25",
    "rewards=[{use: brightness, name: first}, {use: mse, name: second}]",  # which need no weights
    "trainer.steps=2",
    "trainer.prompts_per_step=2",
    "trainer.group_size=2",
    "trainer.device=cpu",
    "trainer.mixed_precision=no",
)


def fill(folder: Path, *, count: int = 4) -> None:
    """Prompts and pictures as the presets look for them."""
    random = np.random.default_rng(0)
    (folder / "prompts.txt").write_text("".join(f'a door that says "{i}"\n' for i in range(count)))
    for pictures in ("source_images", "target_images"):
        (folder / pictures).mkdir()
        for line in range(1, count + 1):
            pixels = random.integers(0, 255, (64, 96, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / pictures / f"{line}.png")


@pytest.mark.slow
@pytest.mark.parametrize("preset", WEIGHTS)
def test_a_tiny_model_trains_on_the_layout_of_the_current_folder(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path)
    result = run.train(presets.read_config(preset, TINY)[0], name=preset)
    assert result.steps == 2
    assert result.after is not None
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row["logprob_diff/max"] < 1e-4 and row["unscored_rows"] == 0 for row in rows)
    assert all(row["grad_norm"] > 0 for row in rows)


@pytest.mark.parametrize("preset", WEIGHTS)
def test_rewards_are_mixed_as_published(preset: str) -> None:
    config, _ = presets.read_config(preset, [])
    assert {reward.use: reward.weight for reward in config.rewards} == WEIGHTS[preset]


@pytest.mark.parametrize("preset", WEIGHTS)
def test_absent_data_is_the_first_thing_that_a_run_says(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it looks for the weights of a reward, or of the model."""
    monkeypatch.chdir(tmp_path)
    config, _ = presets.read_config(preset, [])
    with pytest.raises(UsageError, match=r"data\.prompts: The text file prompts\.txt does not exist"):
        run.train(config, name=preset)
    fill(tmp_path)
    (tmp_path / "target_images" / "3.png").unlink()
    with pytest.raises(UsageError, match=r"line 3, has no picture in target_images: expected 3\.png"):
        run.train(config, name=preset)
    assert not (tmp_path / "runs").exists()
