"""Positions are those of the model's own `get_rope_index`, for texts and for edits."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from PIL import Image

from grpokit import Prompt, UsageError
from grpokit_glm_image.grids import Grid, Target
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.tiny import tiny_pipeline

PIPE = tiny_pipeline()
AR: Any = PIPE.vision_language_encoder


@pytest.mark.parametrize("size", [(64, 64), (64, 96), (128, 32)], ids=str)
def test_a_text_and_its_picture_stand_where_the_model_puts_them(size: tuple[int, int]) -> None:
    encoder = PromptEncoder(PIPE.processor, AR.config, size=size, edits=False, context=8192)
    reading = encoder.encode(Prompt(text='a red "CAT" sign'))
    height, width = size
    inputs = PIPE.processor(text=['a red "CAT" sign'], target_h=height, target_w=width, return_tensors="pt")
    assert torch.equal(reading.tokens, inputs["input_ids"][0])
    prompt, _ = AR.model.get_rope_index(**inputs)
    behind = AR.model._cached_decode_position_ids[0]  # of the tokens and of the end token behind them
    assert encoder.target.count == behind.shape[1] - 1
    assert torch.equal(reading.positions, torch.cat([prompt[:, 0], behind], 1)[:, :-2])


def test_a_short_text_is_let_pass_only_where_its_tokens_fit() -> None:
    roomy = PromptEncoder(PIPE.processor, AR.config, size=(64, 64), edits=False, context=8192)
    room = len(roomy.encode(Prompt(text="a cat " * 9)).tokens) + roomy.target.count
    tight = PromptEncoder(PIPE.processor, AR.config, size=(64, 64), edits=False, context=room)
    for length in range(1, 100):
        prompt = Prompt(text=("a cat " * 20)[:length])
        fits = len(roomy.encode(prompt).tokens) + roomy.target.count <= room
        with nullcontext() if fits else pytest.raises(UsageError, match="Shorten the prompt"):
            tight.check([prompt])


@pytest.mark.parametrize("sources", [1, 2])
def test_source_pictures_stand_where_the_model_puts_them(sources: int) -> None:
    encoder = PromptEncoder(PIPE.processor, AR.config, size=(64, 96), edits=True, context=8192)
    pictures = [Image.new("RGB", (96, 64)), Image.new("RGB", (64, 128))][:sources]
    codes = [torch.arange(6), torch.arange(8) + 20][:sources]
    prompt = Prompt(text="make it blue", images=pictures)
    reading = encoder.encode(prompt, codes)
    text = f"{'<|dit_token_64|><|image|><|dit_token_65|>' * sources}make it blue"
    inputs = PIPE.processor(text=[text], images=pictures, target_h=64, target_w=96, return_tensors="pt")
    pictures_at = inputs["input_ids"][0] == AR.config.image_token_id
    assert torch.equal(reading.tokens[pictures_at], torch.cat(codes))
    assert torch.equal(reading.tokens[~pictures_at], inputs["input_ids"][0][~pictures_at])
    inputs.pop("pixel_values")
    positions, _ = AR.model.get_rope_index(**inputs)
    behind = AR.model._cached_decode_position_ids[0]
    assert torch.equal(reading.positions, torch.cat([positions[:, 0], behind], 1)[:, :-2])
    assert encoder.target == Target(draft=None, large=Grid(rows=2, columns=3))
