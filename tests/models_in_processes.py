"""What each process of a test does with `hf-lm`: trainings of tiny language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiny_models import tiny_model, tiny_tokenizer

from grpokit import Prompt, Sample, Trainer
from grpokit_lm.policy import CausalLMPolicy
from in_processes import STEPS, learned
from tiny_policies import OBJECTIVES_BY_NAME

PROMPTS = [Prompt(text=f"say {letter}") for letter in "abcdefghijkl"]
LANGUAGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "all weights, a mean reference": ({"reference_ema": {"decay": 0.8}}, {}),
    "an adapter": ({"lora": {"r": 2}}, {"prompts_per_step": 1}),
    "a token budget": ({"lora": {"r": 2}}, {"micro_batch_tokens": 40, "dynamic_sampling": 2}),
}


def vowels(samples: Sequence[Sample]) -> list[float]:
    return [float(sum(letter < "h" for letter in sample.output)) for sample in samples]


def language_model(**options: Any) -> CausalLMPolicy:
    model = tiny_model("llama").double()
    return CausalLMPolicy(model, tokenizer=tiny_tokenizer(), max_new_tokens=8, chat=False, **options)


def language(case: str) -> Any:
    policy, options = LANGUAGE[case]
    sizes = {"prompts_per_step": 3, "group_size": 4, "updates_per_rollout": 2, "learning_rate": 1e-3, "device": "cpu"}
    objective = OBJECTIVES_BY_NAME["grpo"](kl_coef=0.1)
    trainer = Trainer(
        language_model(**policy),
        [vowels],
        PROMPTS,
        steps=STEPS,
        objective=objective,
        progress=False,
        **(sizes | options),
    )
    return learned(trainer)


def all_cases() -> dict[str, Any]:
    return {case: language(case) for case in LANGUAGE}
