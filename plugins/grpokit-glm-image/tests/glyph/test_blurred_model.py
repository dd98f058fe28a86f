"""The decoder of glm-glyph that was taught on blurred pictures learns to paint sharply."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpokit import Trainer, create
from grpokit.config import presets
from grpokit.evaluation.held_out import evaluate
from grpokit.runs import train as run
from grpokit_glm_image.glyph import letters, prompts

PRESET = "glm-glyph-dit"


def test_only_the_transformer_is_another() -> None:
    shipped = letters.LETTERS_FILE.parents[1] / "models"
    sharp, blurred = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (shipped / "glyph", shipped / "glyph-blurred")
    )
    assert sharp.keys() == blurred.keys()
    different = [path for path in sharp if sharp[path] != blurred[path]]
    assert different == [Path("transformer/diffusion_pytorch_model.safetensors")]


@pytest.mark.long
def test_a_few_steps_make_words_sharper() -> None:
    """By more than three standard errors of the difference, over words that are not trained on."""
    pytest.importorskip("grpokit_ssim")
    config, _ = presets.read_config(PRESET, [])
    policy, ssim = create("policy", config.policy.use, config.policy.params), create("reward", "ssim", {})
    trainer = Trainer(
        policy,
        [ssim],
        prompts(limit=8),
        seed=0,
        prompts_per_step=8,
        group_size=6,
        micro_batch_size=48,
        learning_rate=config.trainer.learning_rate,
        device="cpu",
    )
    held_out = prompts("eval", limit=16)
    before = evaluate(policy, [ssim], held_out).scores.totals
    for _ in range(2):
        trainer.step()
    gain = evaluate(policy, [ssim], held_out).scores.totals - before
    assert gain.mean() > 3 * gain.std() / len(gain) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_words_become_sharp(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpokit_ssim")
    pytest.importorskip("grpokit_ocr")
    monkeypatch.chdir(tmp_path)
    result = run.train(presets.read_config(PRESET, [f"seed={seed}", "trainer.device=cpu"])[0], name=PRESET)
    assert result.before is not None
    assert result.after is not None
    assert result.after.means["ssim"] > result.before.means["ssim"] + 0.07
