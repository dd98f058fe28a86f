"""Tiny language models from scratch, one per family, with a tokenizer made in code: for tests, without network.

Some ten thousand parameters each, in float32, made in a fraction of a second. Weights are drawn with a large deviation,
so that the distributions are far from flat and a wrong position, mask or window shows in the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from grpokit_hf.models.adapters import AdapterSettings, add_adapter

CONTEXT = 128
TOKENS = torch.arange(12)[None]
_PICTURES = ("<image>", "<vision>", "</vision>", "<video>")
SPECIALS = ("<pad>", "<bos>", "<eos>", "<user>", "<assistant>", "<system>", *_PICTURES)
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<vision><image></vision>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tiny_tokenizer(
    *, pad: bool = True, chat: bool = True, eos: bool = True, begins: bool = False, **named: str
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer: ids 0 to 255 are bytes, then come the special tokens. It reads any text.

    Args:
        pad: whether it has a pad token.
        chat: whether it has a chat template.
        eos: whether it has an end token.
        begins: whether it puts <bos> before a text, as Llama's does.
        named: further named special tokens, such as `image_token`.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    if begins:
        core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    roles = {"bos_token": "<bos>", "eos_token": "<eos>" if eos else None, "pad_token": "<pad>" if pad else None}
    roles = {role: name for role, name in roles.items() if name is not None}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, extra_special_tokens=named or None, **roles)
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    tokenizer.model_max_length = CONTEXT
    return tokenizer


VOCAB = 256 + len(SPECIALS)
ROWS = 272  # of the embeddings: like real ones, a few more than the tokenizer has tokens
PAD, BOS, EOS, IMAGE, VISION, VISION_END, VIDEO = (
    256 + SPECIALS.index(name) for name in ("<pad>", "<bos>", "<eos>", "<image>", "<vision>", "</vision>", "<video>")
)
IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
SHAPE = {
    "vocab_size": ROWS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_NO_HEAD_DIM = {k: v for k, v in SHAPE.items() if k != "head_dim"}

# Family -> (configuration class, its settings beside or instead of `SHAPE`). A window of 8 slides within a test's text.
FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", SHAPE),
    "qwen2": ("Qwen2Config", _NO_HEAD_DIM | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", SHAPE),
    "gemma2": (
        "Gemma2Config",
        SHAPE
        | {"tie_word_embeddings": True, "sliding_window": 8, "query_pre_attn_scalar": 4}
        | {"attn_implementation": "eager"},  # the only one that caps scores; transformers 5.17 takes another by default
    ),
    "gemma3": (
        "Gemma3TextConfig",
        SHAPE
        | {
            "tie_word_embeddings": True,
            "sliding_window": 8,
            "query_pre_attn_scalar": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "phi3": ("Phi3Config", _NO_HEAD_DIM),
    "mistral": ("MistralConfig", SHAPE | {"sliding_window": 8}),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": ROWS,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": CONTEXT,
            "initializer_range": 0.3,
            "resid_pdrop": 0.1,
            "embd_pdrop": 0.1,
            "attn_pdrop": 0.1,
        },
    ),
    "mixtral": ("MixtralConfig", SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        _NO_HEAD_DIM | _EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16},
    ),
    "qwen3-moe": ("Qwen3MoeConfig", SHAPE | _EXPERTS | {"num_experts": 4}),
    "cohere": ("CohereConfig", _NO_HEAD_DIM | {"logit_scale": 2.0}),
    "granite": ("GraniteConfig", _NO_HEAD_DIM | {"logits_scaling": 0.5}),
}

_MAMBA = {"vocab_size": ROWS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "initializer_range": 0.3}
# Families that the fast path cannot do. A window of 20 slides only in texts that are longer than those it is tried on.
ODD_FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "bloom": ("BloomConfig", {"vocab_size": ROWS, "hidden_size": 16, "n_layer": 2, "n_head": 4}),
    "gpt-oss": (
        "GptOssConfig",
        SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "diffllama": ("DiffLlamaConfig", _NO_HEAD_DIM),
    "qwen2-moe-window": (
        "Qwen2MoeConfig",
        _NO_HEAD_DIM
        | _EXPERTS
        | {"num_experts": 4, "shared_expert_intermediate_size": 16}
        | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "minimax": (
        "MiniMaxConfig",
        SHAPE
        | {"num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 8}
        | {"layer_types": ["linear_attention", "full_attention"]},
    ),
    "mamba": ("MambaConfig", _MAMBA),
}


def tiny_model(family: str, *, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A causal LM of a family, in eval mode; `settings` change its configuration."""
    kind, given = (FAMILIES | ODD_FAMILIES)[family]
    config = getattr(transformers, kind)(**(dict(given) | IDS | settings))

    def drawn() -> PreTrainedModel:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # which begin as zero, where nothing that is wrong with them would show
                torch.nn.init.normal_(parameter, std=0.3)
        return model

    return seeded(drawn, seed)


def save_tiny_model(folder: Path, family: str = "llama", *, seed: int = 0, **tokenizer: bool) -> Path:
    """A model folder as `save_pretrained` writes it, with its tokenizer; returns the folder."""
    tiny_model(family, seed=seed).save_pretrained(folder)
    tiny_tokenizer(**tokenizer).save_pretrained(folder)
    return folder


def seeded(make: Callable[[], PreTrainedModel], seed: int) -> PreTrainedModel:
    """The model that `make` draws from a seed, in eval mode; the global random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def logits(model: Any) -> torch.Tensor:
    """Of the same tokens for each model."""
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits  # type: ignore[no-any-return]


def change(model: torch.nn.Module) -> None:
    """Move what trains, as an update would."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)


def adapted(model: Any, kind: str, **settings: Any) -> Any:
    """The model with a small adapter, "lora" or "dora"."""
    return add_adapter(model, AdapterSettings(r=2, dora=kind == "dora", **settings))
