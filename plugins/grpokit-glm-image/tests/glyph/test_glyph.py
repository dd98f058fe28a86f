"""What the shipped glm-glyph can do: its decoder paints what tokens say, its autoregressive half spells badly.

The decoder that was taught on blurred pictures learns to paint sharply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL.Image import Image

from grpokit import Sample, Trainer, create
from grpokit.config import presets
from grpokit.evaluation.held_out import evaluate
from grpokit.runs import train as run
from grpokit.sampling import derive_seeds
from grpokit_glm_image.decoder import DecodeSettings
from grpokit_glm_image.glyph import letters, prompts
from grpokit_glm_image.policy import GlmImageAR

MODEL = "grpokit_glm_image:models/glyph"
PROMPTS = prompts("eval", limit=16)
SEEDS = derive_seeds(0, stream="train", step=0, prompts=len(PROMPTS), group_size=1)
DECODE = {"steps": 4, "guidance": 1.0}


@pytest.fixture(scope="module")
def policy() -> GlmImageAR:
    return GlmImageAR(MODEL, size=letters.SIZE, decode=DECODE, eval_decode=DECODE, eval_temperature=0, device="cpu")


def read(pictures: Sequence[Image]) -> float:
    """The mean score of the reward `ocr`, which reads pictures of held-out words."""
    samples = [Sample(prompt=p, output=x, group=i) for i, (p, x) in enumerate(zip(PROMPTS, pictures, strict=True))]
    return float(np.mean(create("reward", "ocr", {"threads": 1})(samples)))


def painted(policy: GlmImageAR, quoted: Sequence[str]) -> list[Image]:
    """Pictures of the true tokens of `PROMPTS`, beside prompts that quote other words."""
    own = [prompt.meta["word"] for prompt in PROMPTS]
    grids = [letters.word_codes(word) for word in own]
    tokens = torch.tensor([letters.draft_codes(codes) + codes for codes in grids])
    beside = [replace(p, text=p.text.replace(word, other)) for p, word, other in zip(PROMPTS, own, quoted, strict=True)]
    settings = DecodeSettings.read(DECODE, key="decode")
    return policy.decoder.pictures(tokens, beside, seeds=SEEDS, settings=settings, target=policy.target)


def test_true_tokens_become_legible_words(policy):
    pytest.importorskip("grpokit_ocr")
    assert read(painted(policy, [prompt.meta["word"] for prompt in PROMPTS])) > 0.9


def test_a_picture_shows_its_tokens_and_not_the_prompts_word(policy):
    pytest.importorskip("grpokit_ocr")
    words = [prompt.meta["word"] for prompt in PROMPTS]
    assert read(painted(policy, [*words[1:], words[0]])) > 0.9


@pytest.mark.slow
def test_the_autoregressive_half_spells_badly(policy):
    """Bad enough to learn, and good enough to begin: the most likely tokens spell better than drawn ones."""
    pytest.importorskip("grpokit_ocr")
    drawn, likely = (policy.rollout(PROMPTS, 1, seeds=SEEDS, evaluate=greedy) for greedy in (False, True))
    samples, greedy = (read([sample.output for sample in rollout.samples]) for rollout in (drawn, likely))
    assert 0.3 < samples < 0.7
    assert samples < greedy < 0.95


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


@pytest.mark.slow
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


@pytest.mark.very_slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_words_become_sharp(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpokit_ssim")
    pytest.importorskip("grpokit_ocr")
    monkeypatch.chdir(tmp_path)
    result = run.train(presets.read_config(PRESET, [f"seed={seed}", "trainer.device=cpu"])[0], name=PRESET)
    assert result.before is not None
    assert result.after is not None
    assert result.after.means["ssim"] > result.before.means["ssim"] + 0.07
