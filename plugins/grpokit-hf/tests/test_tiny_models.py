"""The tiny models are what the other tests take them for."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from tiny_models import FAMILIES, ROWS, VOCAB, tiny_model, tiny_tokenizer
from tiny_vision import VISION_FAMILIES, tiny_processor, tiny_vision_model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_tiny_seeded_and_far_from_flat(family: str) -> None:
    model = tiny_model(family)
    assert sum(p.numel() for p in model.parameters()) < 30_000
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        logits, again = model(tokens).logits, tiny_model(family)(tokens).logits
        others = tiny_model(family, seed=1)(tokens).logits
    assert torch.equal(logits, again)
    assert not torch.allclose(logits, others)
    logprobs = logits.log_softmax(-1)
    assert -(logprobs.exp() * logprobs).sum(-1).mean() < 0.92 * torch.tensor(float(ROWS)).log()


def test_the_tokenizer_reads_any_text() -> None:
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == VOCAB
    text = 'a "ü" 漢\n\t1+1='
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_what_a_vision_model_sees_changes_its_answer(family: str) -> None:
    model, processor = tiny_vision_model(family), tiny_processor(family)
    content = [{"type": "image"}, {"type": "text", "text": "What?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    logits = []
    for color in ("red", "blue"):
        inputs = processor(text=text, images=[Image.new("RGB", (16, 16), color)], return_tensors="pt")
        with torch.no_grad():
            logits.append(model(**inputs).logits[0, -1])
    assert (logits[0] - logits[1]).abs().max() > 0.01
