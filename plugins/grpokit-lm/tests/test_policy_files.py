"""What a policy saves is all that a resume needs, whatever trains; what it exports is what it has learnt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tiny_models import save_tiny_model
from transformers import AutoModelForCausalLM

from grpokit import Objective, Prompt, Sample, Trainer, create
from grpokit_lm.adapters import quiet
from grpokit_lm.policy import CausalLMPolicy

STEPS = 4
KINDS: dict[str, dict[str, Any]] = {
    "lora": {"lora": {"r": 2}},
    "dora": {"lora": {"r": 2, "dora": True}},
    "full": {},
    "average": {"reference_ema": {"decay": 0.8, "every": 2}},
    "recomputed": {"lora": {"r": 2}, "gradient_checkpointing": True},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "base")


def vowels(samples: Sequence[Sample]) -> list[float]:
    return [sum(sample.output.count(vowel) for vowel in "aeiou0123456789") / 12 for sample in samples]


def trainer(base: Path, kind: str) -> tuple[Any, Trainer]:
    policy = CausalLMPolicy(base, max_new_tokens=12, **KINDS[kind])
    objective: Objective = create("objective", "grpo", {"kl_coef": 0.1})
    prompts = [Prompt(text=f"say {letter}") for letter in "abcdef"]
    settings: dict[str, Any] = {"steps": STEPS, "prompts_per_step": 2, "group_size": 4, "device": "cpu"}
    return policy, Trainer(policy, [vowels], prompts, objective=objective, learning_rate=0.01, **settings)


def weights(policy: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_equal_to_the_bit_at_every_step(kind: str, base: Path, tmp_path: Path) -> None:
    policy, straight = trainer(base, kind)
    start = weights(policy)
    losses = []
    for step in range(1, STEPS + 1):
        losses.append(straight.step().metrics["loss"])
        straight.save(tmp_path / str(step))
    end = weights(policy)
    assert any(not torch.equal(start[name], x) for name, x in end.items())
    for step in range(1, STEPS):
        other, resumed = trainer(base, kind)
        resumed.load(tmp_path / str(step))
        assert [resumed.step().metrics["loss"] for _ in range(step, STEPS)] == losses[step:]
        assert all(torch.equal(end[name], x) for name, x in weights(other).items())


def test_the_base_under_an_adapter_stays_to_the_bit(base: Path) -> None:
    policy, training = trainer(base, "lora")
    before = weights(policy)
    for _ in range(STEPS):
        training.step()
    changed = {name for name, x in weights(policy).items() if not torch.equal(before[name], x)}
    assert changed
    assert all("lora_" in name for name in changed)


@pytest.mark.parametrize("merge", [False, True])
def test_an_export_is_what_the_policy_has_learnt(merge: bool, base: Path, tmp_path: Path) -> None:
    policy, training = trainer(base, "lora")
    training.step()
    facts = policy.export(tmp_path, merge=merge)
    assert "transformers 5." in facts["versions"]
    plain: Any = AutoModelForCausalLM.from_pretrained(tmp_path if merge else base)
    with quiet():
        plain = plain if merge else PeftModel.from_pretrained(plain, tmp_path)
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        live = policy.model(input_ids=tokens).logits
        with policy.model.disable_adapter():
            start = policy.model(input_ids=tokens).logits
        torch.testing.assert_close(plain(input_ids=tokens).logits, live, rtol=1e-4, atol=1e-4)
    assert (live - start).abs().max() > 1e-2
