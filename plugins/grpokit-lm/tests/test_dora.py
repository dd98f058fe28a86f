"""DoRA decodes without forming each weight for every token, with the same numbers, and keeps nothing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from peft.tuners.lora.dora import DoraLinearLayer
from tiny_models import tiny_model, tiny_tokenizer

from grpokit import Prompt, Rollout
from grpokit.sampling import derive_seeds
from grpokit_lm import policy as policies
from grpokit_lm.policy import CausalLMPolicy

LAYERS = {"llama": 14, "gpt2": 8}  # which the adapter is in


def change(policy: CausalLMPolicy, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.model.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)


def drawn(policy: CausalLMPolicy) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=2, group_size=3)
    return policy.rollout([Prompt(text="hello"), Prompt(text="a")], 3, seeds=seeds)


@pytest.mark.parametrize("family", LAYERS)
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_norm_is_computed_once_per_rollout(
    family: str, fast: bool, mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    own = DoraLinearLayer.get_weight_norm

    def counted(self: Any, *given: Any, **named: Any) -> torch.Tensor:
        calls.append(self)
        return own(self, *given, **named)

    monkeypatch.setattr(DoraLinearLayer, "get_weight_norm", counted)
    options: dict[str, Any] = {"lora": {"r": 2, "dora": True}, "max_new_tokens": 8, "fast": fast, "chat": False}
    policy = CausalLMPolicy(tiny_model(family), tokenizer=tiny_tokenizer(), **options)
    for seed in (1, 2):  # as by updates
        change(policy, seed)
        calls.clear()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            quick = drawn(policy)
        assert len(calls) == len(set(calls)) == LAYERS[family]
        with monkeypatch.context() as plainly:
            plainly.setattr(policies, "kept_norms", lambda model: nullcontext())
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                usual = drawn(policy)
        assert torch.equal(quick.trace.per_row["tokens"], usual.trace.per_row["tokens"])
        assert torch.equal(quick.old.logprobs, usual.old.logprobs)
        if not mixed:
            scored = policy.logprobs(quick, slice(0, quick.mask.shape[1])).logprobs.detach()
            assert torch.allclose(scored, quick.old.logprobs, rtol=0, atol=2e-5)
