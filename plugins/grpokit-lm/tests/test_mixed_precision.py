"""Training in mixed precision: frozen weights are cast once per stretch of work, and never stay as they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_models import tiny_model, tiny_tokenizer
from torch import Tensor

from grpokit import Prompt, Sample, Trainer, objectives
from grpokit.sampling import derive_seeds
from grpokit_lm.policy import CausalLMPolicy

PROMPTS = [Prompt(text=text) for text in ("hello world, this", "a", "some text")]
ADAPTER = {"r": 4}


def build(**options: Any) -> CausalLMPolicy:
    return CausalLMPolicy(tiny_model("llama"), tokenizer=tiny_tokenizer(), max_new_tokens=12, chat=False, **options)


def length(samples: Sequence[Sample]) -> list[float]:
    return [float(len(s.output)) for s in samples]


def training(policy: CausalLMPolicy, **options: Any) -> Trainer:
    """A trainer in bfloat16, held to its reference."""
    sizes = {"prompts_per_step": 3, "group_size": 4, "micro_batch_size": 8, "learning_rate": 1e-3}
    settings = {"objective": objectives.GRPO(kl_coef=0.1), "mixed_precision": "bf16", **sizes, **options}
    return Trainer(policy, [length], PROMPTS, progress=False, **settings)


@pytest.mark.parametrize("average", [None, {"decay": 0.9}], ids=["still", "moving"])
def test_frozen_weights_are_cast_once_in_all_updates_of_a_rollout(average: dict[str, float] | None) -> None:
    policy = build(lora=ADAPTER, reference_ema=average)
    trainer = training(policy, steps=1, updates_per_rollout=3)
    casts: list[list[Tensor]] = []
    trainer.updates.optimizer.register_step_pre_hook(
        lambda *_: casts.append([copy for *_, copy in policy.path.casts._copies.values()])
    )
    list(trainer)
    assert [len(copies) for copies in casts] == [15] * 3
    assert len({id(copy) for copies in casts for copy in copies}) == 15


@pytest.mark.parametrize("options", [{}, {"lora": ADAPTER}], ids=str)
def test_a_reference_that_moves_is_cast_again(options: dict[str, Any]) -> None:
    policy = build(**options, reference_ema={"decay": 0.5})
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=4)
    rollout = policy.rollout(PROMPTS, 4, seeds=seeds)

    def held_to() -> Tensor:
        with policy.reference():
            return policy.logprobs(rollout, slice(None)).logprobs

    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), policy.during("score"):
        before = held_to()
        for p in policy.model.parameters():
            p.add_(torch.ones_like(p) * 0.1 if p.requires_grad else 0)
        policy.updated(1)
        after = held_to()
        policy.path.casts.clear()
        assert torch.equal(after, held_to())
        assert (after - before).abs().max() > 1e-2
