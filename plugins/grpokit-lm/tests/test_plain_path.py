"""The plain path: what it does beside giving the numbers of the fast one."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import tiny_model, tiny_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from grpokit import Prompt
from grpokit.sampling import derive_seeds
from grpokit_lm.policy import CausalLMPolicy


class Casts(TorchDispatchMode):
    """The shapes of all tensors that are cast."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.shapes.append(args[0].shape)
        return func(*args, **(kwargs or {}))


def test_frozen_weights_are_cast_once_and_not_for_every_token() -> None:
    model = tiny_model("llama", intermediate_size=48)
    options = {"max_new_tokens": 6, "chat": False, "ignore_eos": True, "lora": {"r": 2}, "fast": False}
    policy = CausalLMPolicy(model, tokenizer=tiny_tokenizer(), **options)
    seeds = derive_seeds(0, stream="train", step=0, prompts=1, group_size=2)
    with policy.during("rollout"), torch.autocast("cpu", torch.bfloat16), Casts() as casts:
        policy.rollout([Prompt(text="abcd")], 2, seeds=seeds)
    assert casts.shapes.count(torch.Size([16, 48])) == 2  # `down` of two layers, and not times 6
    assert not policy.path.casts._copies
