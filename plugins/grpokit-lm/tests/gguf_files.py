"""Tiny language models in GGUF files, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import BOS, CHAT_TEMPLATE, EOS, PAD, SPECIALS, VOCAB, tiny_tokenizer
from transformers import PreTrainedModel

from grpokit_lm.sources import READS_GGUF

needs_gguf = pytest.mark.skipif(not READS_GGUF, reason="an older transformers")


def save_gguf(file: Path, model: PreTrainedModel, *, kind: str = "F32") -> Path:
    """A Llama in one GGUF file, as llama.cpp's converter writes it, with its tokenizer; returns the file.

    Args:
        file: ends in .gguf.
        model: a Llama.
        kind: how matrices are stored: "F32", or "Q8_0", which packs rows in blocks of 32.
    """
    import gguf

    config: Any = model.config
    writer = gguf.GGUFWriter(file, "llama")
    for add, value in (
        (writer.add_context_length, config.max_position_embeddings),
        (writer.add_embedding_length, config.hidden_size),
        (writer.add_block_count, config.num_hidden_layers),
        (writer.add_feed_forward_length, config.intermediate_size),
        (writer.add_head_count, config.num_attention_heads),
        (writer.add_head_count_kv, config.num_key_value_heads),
        (writer.add_rope_dimension_count, config.head_dim),
        (writer.add_layer_norm_rms_eps, config.rms_norm_eps),
        (writer.add_vocab_size, config.vocab_size),
    ):
        add(value)
    _add_tokenizer(writer, config.vocab_size)
    names, stored = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers), gguf.GGMLQuantizationType
    for name, weight in model.state_dict().items():
        tensor, place = weight.numpy(), names.get_name(name, try_suffixes=(".weight",))
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:  # llama.cpp rotates neighbours, transformers the two halves of a head
            tensor = tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        if tensor.ndim == 1 or kind == "F32":
            writer.add_tensor(place, tensor)
        else:
            writer.add_tensor(place, gguf.quantize(tensor, stored[kind]), raw_dtype=stored[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: Any, rows: int) -> None:
    """That of `tiny_tokenizer`, filled up to as many tokens as the model has embeddings."""
    numbers = tiny_tokenizer().get_vocab()
    tokens = sorted(numbers, key=numbers.__getitem__) + [f"[PAD{i}]" for i in range(VOCAB, rows)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])  # 3: a control token
    writer.add_token_scores([0.0] * rows)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)
    writer.add_chat_template(CHAT_TEMPLATE)
