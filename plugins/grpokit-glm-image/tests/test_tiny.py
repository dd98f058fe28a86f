"""The tiny GLM-Image: reproducible, small, and with pictures that its visual tokens decide."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import GlmImagePipeline

from grpokit_glm_image import tiny
from grpokit_glm_image.tiny import CODES, tiny_pipeline

MODELS = ("vision_language_encoder", "transformer", "vae", "text_encoder")


def same_weights(one: GlmImagePipeline, other: GlmImagePipeline) -> bool:
    pairs = [(getattr(one, name).state_dict(), getattr(other, name).state_dict()) for name in MODELS]
    return all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


def test_the_seed_decides_the_weights_and_the_global_random_state_stays() -> None:
    before = torch.get_rng_state()
    first, again, other = tiny_pipeline(), tiny_pipeline(), tiny_pipeline(seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert same_weights(first, again)
    assert not same_weights(first, other)


def test_visual_tokens_decide_the_brightness_of_pictures() -> None:
    pipeline = tiny_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    codes = torch.arange(CODES)[:, None].expand(-1, 16)  # one picture per code
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0)).expand(CODES, -1, -1, -1)
    pictures = pipeline(
        prompt=["a cat"] * CODES,
        prior_token_ids=codes,
        latents=noise,
        height=64,
        width=64,
        num_inference_steps=2,
        guidance_scale=1.0,
        output_type="np",
    ).images
    brightness = pictures.mean((1, 2, 3))
    assert brightness.std() > 0.05
    assert brightness.max() - brightness.min() > 0.25


def test_it_is_written_as_one_megabyte_that_stock_diffusers_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tiny"
    monkeypatch.setattr("sys.argv", ["tiny", str(folder)])
    tiny.main()
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 1.2e6
    assert same_weights(GlmImagePipeline.from_pretrained(folder), tiny_pipeline())
    with pytest.raises(SystemExit):
        tiny.main()
    assert "is not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize("prompt", ["a cat", 'the word "CAT" in snow'])
def test_stock_text_to_image_runs(prompt: str) -> None:
    pipeline = tiny_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    assert pipeline(prompt, height=64, width=96, num_inference_steps=1).images[0].size == (96, 64)
