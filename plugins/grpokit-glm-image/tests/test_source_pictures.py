"""The codes of source pictures, against the model's own way from features to codes."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from grpokit_glm_image.source_pictures import source_codes
from grpokit_glm_image.tiny import CODES, tiny_pipeline


def test_codes_are_those_that_the_model_reads_in_a_prompt() -> None:
    pipeline = tiny_pipeline()
    model, processor = pipeline.vision_language_encoder, pipeline.processor
    random = np.random.default_rng(0)
    shapes = [(64, 96), (128, 64)]
    pictures = [Image.fromarray(random.integers(0, 255, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    codes = [source_codes(model, processor, picture) for picture in pictures]
    assert [len(own) for own in codes] == [6, 8]
    assert torch.cat(codes).max() < CODES

    read: list[torch.Tensor] = []
    inner = model.model.language_model.embed_tokens.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": "x"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    inputs = processor(text=[text], images=pictures, target_h=64, target_w=64, return_tensors="pt")
    with torch.no_grad():
        model(**inputs)
    inner.remove()
    assert torch.equal(read[0][inputs["input_ids"] == processor.image_token_id], torch.cat(codes))
    other = source_codes(model, processor, pictures[0].transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert not torch.equal(other, codes[0])


def test_codes_do_not_depend_on_a_mixed_precision() -> None:
    """With as many codes as the released model has, some are too close for bfloat16."""
    pipeline = tiny_pipeline()
    model = pipeline.vision_language_encoder
    quantizer = model.model.vqmodel.quantize
    values = torch.randn(16384, quantizer.embedding_dim, generator=torch.Generator().manual_seed(0))
    quantizer.embedding = torch.nn.Embedding.from_pretrained(values)
    random = np.random.default_rng(0)
    picture = Image.fromarray(random.integers(0, 255, (128, 128, 3), dtype=np.uint8))
    codes = source_codes(model, pipeline.processor, picture)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(source_codes(model, pipeline.processor, picture), codes)
