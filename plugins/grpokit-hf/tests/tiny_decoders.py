"""Tiny decoders of transformers for tests of the fast path."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
MODELS = {
    "grouped": ("Llama", {}),
    "windowed": ("Mistral", {"sliding_window": 5}),
    "capped": (
        "Gemma2",
        {"head_dim": 4, "sliding_window": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": None}
        | {"attn_implementation": "eager"},  # transformers 5.17 takes one by default that leaves the caps out
    ),
}


def build(name: str) -> Any:
    torch.manual_seed(0)
    family, changes = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**SHAPE | changes)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()
