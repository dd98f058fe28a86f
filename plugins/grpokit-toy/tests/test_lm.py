"""toy-lm: its task, its splits, its start, and that a text is decoded from exactly the stored decisions."""

from __future__ import annotations

import pytest
import torch

from grpokit import Prompt, UsageError, evaluate
from grpokit.config import presets
from grpokit.runs import build, build_rewards
from grpokit.sampling import derive_seeds
from grpokit_toy.lm import (
    CHARACTERS,
    END,
    LENGTH,
    ToyLM,
    prompt_tokens,
    response_tokens,
    solution,
    sum_problems,
    sum_prompts,
)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (47, 32, "<think>7+2=9;4+3=7</think><answer>79</answer>"),
        (7, 2, "<think>7+2=9;0+0=0</think><answer>09</answer>"),
        (90, 9, "<think>0+9=9;9+0=9</think><answer>99</answer>"),
    ],
)
def test_solutions_by_hand(a: int, b: int, text: str) -> None:
    assert solution(a, b) == text
    assert len(response_tokens(text)) == LENGTH


def test_splits_are_disjoint_and_cover_all_sums_without_a_carry() -> None:
    splits = {name: sum_problems(name) for name in ("train", "eval", "pretrain")}
    together = [pair for pairs in splits.values() for pair in pairs]
    assert len(together) == len(set(together)) == 55**2
    assert len(splits["eval"]) >= 200
    assert all(a % 10 + b % 10 < 10 and a // 10 + b // 10 < 10 for a, b in together)


def test_prompts_carry_the_sum() -> None:
    for prompt, (a, b) in zip(sum_prompts("eval", limit=20), sum_problems("eval"), strict=False):
        assert prompt.text == f"{a:02d}+{b:02d}"
        assert prompt.target == str(a + b)


def test_texts_are_the_stored_decisions() -> None:
    rollout = ToyLM().rollout(
        sum_prompts(limit=4), 8, seeds=derive_seeds(1, stream="train", step=0, prompts=4, group_size=8)
    )
    for row, sample in enumerate(rollout.samples):
        kept = rollout.trace.per_row["tokens"][row][rollout.mask[row]].tolist()
        assert sample.output == "".join(CHARACTERS[t] for t in kept if t != END)
        assert (sample.info["finish"] == "stop") == (kept[-1] == END)
        assert sample.info["token_ids"].tolist() == kept


@pytest.mark.parametrize("evaluate", [False, True])
def test_logprobs_are_the_sampled_ones(evaluate: bool) -> None:
    policy = ToyLM(temperature=0.8, eval_temperature=0.5)
    seeds = derive_seeds(1, stream="train", step=0, prompts=4, group_size=8)
    rollout = policy.rollout(sum_prompts(limit=4), 8, seeds=seeds, evaluate=evaluate)
    new = policy.logprobs(rollout, slice(0, LENGTH)).logprobs
    assert (new - rollout.old.logprobs)[rollout.mask].abs().max() < 1e-4
    alone = rollout.select(torch.tensor([13]))
    assert (policy.logprobs(alone, slice(0, LENGTH)).logprobs[0] - new[13]).abs().max() < 1e-4


def test_the_start_is_mediocre_and_knows_the_format() -> None:
    config, _ = presets.read_config("toy-lm")
    found = evaluate(build.policy(config), build_rewards.rewards(config), sum_prompts("eval")).summary.means
    assert 0.25 < found["right"] < 0.4
    assert 0.6 < found["format"] < 0.9
    greedy = evaluate(ToyLM(eval_temperature=0), build_rewards.rewards(config), sum_prompts("eval")).summary.means
    assert greedy["format"] > 0.95  # stopped early, not damaged


@pytest.mark.parametrize("text", ["", "4*3", "what is 4+3?"])
def test_unreadable_prompts(text: str) -> None:
    with pytest.raises(UsageError, match="toy-lm reads sums of two two-digit numbers such as '47\\+32'"):
        prompt_tokens(text)


def test_too_long_a_prompt() -> None:
    with pytest.raises(UsageError, match="6 tokens long; this policy reads 1 to 5"):
        ToyLM().rollout(
            [Prompt(text="147+32")], 2, seeds=derive_seeds(1, stream="sample", step=0, prompts=1, group_size=2)
        )


def test_unknown_split() -> None:
    with pytest.raises(UsageError, match="train, eval, pretrain; got 'test'"):
        sum_problems("test")
