"""Training and evaluation draw by their own settings, and log-probs are those of what was drawn from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import tiny_model, tiny_tokenizer

from grpokit import Prompt, Rollout, Trace
from grpokit.sampling import derive_seeds
from grpokit_lm.policy import CausalLMPolicy

PROMPTS = [Prompt(text=text) for text in ("hello world, this", "a", "some text")]


def build(family: str = "llama", **options: Any) -> CausalLMPolicy:
    ends = {"stop_tokens": range(0, 250, 8)}
    return CausalLMPolicy(
        tiny_model(family), tokenizer=tiny_tokenizer(), max_new_tokens=12, chat=False, **ends, **options
    )


def drawn(policy: CausalLMPolicy, **options: Any) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=4)
    return policy.rollout(PROMPTS, 4, seeds=seeds, **options)


def everything(rollout: Rollout) -> slice:
    return slice(0, rollout.mask.shape[1])


def test_greedy_evaluation_takes_the_likeliest_token() -> None:
    policy = build("qwen3", eval_temperature=0)
    rollout = drawn(policy, evaluate=True)
    tokens, lengths = rollout.trace.per_row["tokens"], rollout.trace.per_group["prompt_length"]
    prompt = rollout.trace.per_group["prompt"][0, : lengths[0]]
    logits = policy.model(input_ids=torch.cat([prompt, tokens[0]])[None]).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == tokens[0].tolist()
    assert tokens[0].tolist() == tokens[1].tolist()


@pytest.mark.parametrize("narrow", [{"top_k": 3}, {"top_p": 0.4}, {"min_p": 0.4}, {"temperature": 0.4}], ids=str)
def test_evaluation_draws_from_its_own_part_of_the_distribution(narrow: dict[str, Any]) -> None:
    """Each as if the policy had those settings alone, with exact log-probs."""
    off = {"eval_top_k": 0, "eval_top_p": 1.0, "eval_min_p": 0.0, "eval_temperature": 1.0}
    plain, narrowed = (drawn(build(**options)).trace.per_row["tokens"] for options in ({}, narrow))
    assert not torch.equal(plain, narrowed)
    for policy, training, evaluation in (
        (build(**{f"eval_{name}": value for name, value in narrow.items()}), plain, narrowed),
        (build(**narrow, **off), narrowed, plain),
        (build(**narrow), narrowed, narrowed),
    ):
        assert torch.equal(drawn(policy).trace.per_row["tokens"], training)
        rollout = drawn(policy, evaluate=True)
        assert torch.equal(rollout.trace.per_row["tokens"], evaluation)
        scored = policy.logprobs(rollout, everything(rollout)).logprobs.detach()
        assert torch.allclose(scored, rollout.old.logprobs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("options", [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"temperature": 0.5}], ids=str)
def test_truncated_draws_keep_their_exact_log_probs(options: dict[str, Any], fast: bool) -> None:
    policy = build(**options, fast=fast)
    rollout = drawn(policy)
    scored = policy.logprobs(rollout, everything(rollout)).logprobs.detach()
    assert torch.allclose(scored, rollout.old.logprobs, rtol=0, atol=1e-5)
    facts = {name: x for name, x in rollout.trace.per_row.items() if name != "kept"} | {"temperature": torch.ones(12)}
    forgetful = replace(rollout, trace=Trace(per_row=facts, per_group=rollout.trace.per_group))
    other = policy.logprobs(forgetful, everything(rollout)).logprobs.detach()
    assert (other - scored).abs().max() > 0.1
