"""A tiny Lumina-Image 2.0."""

from __future__ import annotations

from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline, Lumina2Transformer2DModel
from transformers import Gemma2Config, Gemma2Model, GemmaTokenizer

from grpokit_diffusers.tiny.parts import SMALL, WIDTH, vae

_OWN = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]


def pipeline() -> Lumina2Pipeline:
    """With random weights."""
    transformer = Lumina2Transformer2DModel(
        sample_size=16,
        in_channels=4,
        hidden_size=WIDTH,
        num_layers=2,
        num_refiner_layers=1,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=16,
        axes_dim_rope=(8, 4, 4),
        axes_lens=(300, 64, 64),
        cap_feat_dim=WIDTH,
    ).eval()
    texts = [*_OWN, "▁", *(f"<0x{number:02X}>" for number in range(256))]
    tokenizer = GemmaTokenizer(vocab={text: token for token, text in enumerate(texts)}, add_bos_token=True)
    own = {"vocab_size": len(texts), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    return Lumina2Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
        vae=vae(levels=4),
        text_encoder=Gemma2Model(Gemma2Config(**SMALL | own)).eval(),
        tokenizer=tokenizer,
    )
