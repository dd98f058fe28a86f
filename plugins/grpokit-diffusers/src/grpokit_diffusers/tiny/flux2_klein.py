"""A tiny FLUX.2 [klein]."""

from __future__ import annotations

from diffusers import Flux2KleinPipeline
from transformers import Qwen3Config, Qwen3ForCausalLM

from grpokit_diffusers.tiny.flux2 import DEEP, parts
from grpokit_diffusers.tiny.parts import qwen_tokenizer


def pipeline() -> Flux2KleinPipeline:
    """With random weights."""
    return Flux2KleinPipeline(
        **parts(guidance_embeds=False),
        text_encoder=Qwen3ForCausalLM(Qwen3Config(**DEEP)).eval(),
        tokenizer=qwen_tokenizer(),
    )
