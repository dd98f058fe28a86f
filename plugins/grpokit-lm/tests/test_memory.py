"""The figures of docs/memory.md, against what a small model takes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tiny_models import tiny_model, tiny_tokenizer
from torch.autograd.graph import saved_tensors_hooks

from grpokit import Ask, Prompt, Rollout
from grpokit.sampling import derive_seeds
from grpokit_hf.tokens import packed_attention
from grpokit_hf.tokens.group_decoding import GroupCache
from grpokit_lm import paths
from grpokit_lm.policy import CausalLMPolicy

HIDDEN, MLP, HEAD, KEYS = 64, 160, 16, 32  # KEYS is the width of a token's keys, HEAD that of a head
ADAPTER = {"r": 4}
GROUP = 4


@pytest.fixture(autouse=True)
def sizes_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the few rows that round sizes up on some CPUs, and without a trial of each model."""
    monkeypatch.setattr(paths, "_packed_problem", lambda model, probe: [])
    monkeypatch.setattr(packed_attention, "spare_rows", lambda count, like: 0)


def build(
    *,
    layers: int = 2,
    new: int = 64,
    dtype: torch.dtype = torch.float32,
    hidden: int = HIDDEN,
    mlp: int = MLP,
    keys: int = KEYS,
    **options: Any,
) -> CausalLMPolicy:
    model = tiny_model(
        "llama",
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=keys // HEAD,
        head_dim=HEAD,
        max_position_embeddings=512,
    ).to(dtype)
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 512
    return CausalLMPolicy(model, tokenizer=tokenizer, chat=False, ignore_eos=True, max_new_tokens=new, **options)


@pytest.mark.parametrize(("amp", "size"), [(False, 4), (True, 2)])
def test_a_token_of_the_cache(monkeypatch: pytest.MonkeyPatch, amp: bool, size: int) -> None:
    caches: list[GroupCache] = []
    begin = GroupCache.__init__

    def watched(self: GroupCache, *args: Any, **kwargs: Any) -> None:
        caches.append(self)
        begin(self, *args, **kwargs)

    monkeypatch.setattr(GroupCache, "__init__", watched)
    policy = build()
    caches.clear()  # those of the trial when it was built
    seeds = derive_seeds(0, stream="train", step=0, prompts=2, group_size=GROUP)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        policy.rollout([Prompt(text="abcd"), Prompt(text="efgh")], GROUP, seeds=seeds)
    (cache,) = caches
    taken = sum(x.nbytes for pair in [*cache._shared.values(), *cache._own.values()] for x in pair)
    prompt = len(tiny_tokenizer()("abcd").input_ids)
    assert taken == 2 * 2 * KEYS * size * (2 * prompt + 2 * GROUP * 64)


@cache
def drawn(new: int) -> Rollout:
    """Tokens for all models to score: what these keep depends on their number alone."""
    seeds = derive_seeds(0, stream="train", step=0, prompts=1, group_size=GROUP)
    return build(layers=1, new=new).rollout([Prompt(text="abcd")], GROUP, seeds=seeds)


def kept(layers: int, new: int, *, amp: bool, **options: Any) -> int:
    """Bytes that a forward pass keeps for its backward pass, weights aside."""
    policy, rollout = build(layers=layers, new=new, **options), drawn(new)
    weights = {p.untyped_storage().data_ptr() for m in policy.modules().values() for p in m.parameters()}
    sizes: dict[int, int] = {}
    alive = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        alive.append(x)  # else its address could be another tensor's later
        return x

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=amp)
    with policy.during("train"), saved_tensors_hooks(keep, lambda x: x), autocast:
        policy.logprobs(rollout, slice(0, new), ask=Ask(entropy="value"))
    return sum(size for place, size in sizes.items() if place not in weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "hidden", "mlp", "keys", "lengths"),
    [
        ({"amp": False}, 28, 8, 16, (16, 32)),
        ({"amp": False}, 28, 8, 16, (124, 140)),  # where attention works in several blocks
        ({"amp": False, "lora": ADAPTER}, 28, 16, 16, (16, 32)),
        ({"amp": True}, 32, 8, 8, (16, 32)),
        ({"amp": True, "lora": ADAPTER}, 24, 8, 8, (16, 32)),
        ({"amp": True, "lora": ADAPTER, "dtype": torch.bfloat16}, 24, 8, 8, (16, 32)),
        ({"amp": False, "lora": ADAPTER, "dtype": torch.bfloat16}, 36, 10, 8, (16, 32)),
    ],
)
def test_a_token_of_a_layer(
    options: dict[str, Any], hidden: int, mlp: int, keys: int, lengths: tuple[int, int]
) -> None:
    def bytes_per_token(**sizes: int) -> float:
        short, long = (kept(3, new, **options, **sizes) - kept(2, new, **options, **sizes) for new in lengths)
        return (long - short) / ((lengths[1] - lengths[0]) * GROUP)

    before = bytes_per_token()
    assert (bytes_per_token(hidden=2 * HIDDEN) - before) / HIDDEN == hidden + 4 / HEAD
    assert (bytes_per_token(mlp=2 * MLP) - before) / MLP == mlp
    assert (bytes_per_token(keys=2 * KEYS) - before) / KEYS == keys
    whole = hidden * HIDDEN + mlp * MLP + keys * KEYS
    assert before == pytest.approx(whole, rel=0.15 if options.get("lora") else 0.06)  # with 4 r per adapted layer


@pytest.mark.parametrize("lora", [None, ADAPTER])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_a_token_of_a_layer_that_is_computed_again(lora: dict[str, int] | None, dtype: torch.dtype, size: int) -> None:
    options: dict[str, Any] = {"amp": True, "lora": lora, "dtype": dtype, "gradient_checkpointing": True}
    short, long = (kept(3, new, **options) - kept(2, new, **options) for new in (48, 96))
    assert (long - short) / (48 * GROUP) == size * HIDDEN
