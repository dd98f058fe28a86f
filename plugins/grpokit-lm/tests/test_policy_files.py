"""What a policy saves is all that a resume needs, whatever trains; what it exports is what it has learnt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from echo_world import Echo
from peft import PeftModel
from safetensors.torch import load_file
from tiny_models import save_tiny_model
from transformers import AutoModelForCausalLM

from grpokit import Objective, Prompt, Sample, Trainer, create
from grpokit_hf.models.adapters import quiet
from grpokit_lm.policy import CausalLMPolicy

STEPS = 4
KINDS: dict[str, dict[str, Any]] = {
    "lora": {"lora": {"r": 2}},
    "dora": {"lora": {"r": 2, "dora": True}},
    "full": {},
    "average": {"reference_ema": {"decay": 0.8, "every": 2}},
    "average of an adapter": {"lora": {"r": 2}, "reference_ema": {"decay": 0.8, "every": 2}},
    "recomputed": {"lora": {"r": 2}, "gradient_checkpointing": True},
    "world": {"lora": {"r": 2}, "world": Echo, "max_new_tokens": 50, "stop_tokens": range(0, 250, 8)},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "base")


def vowels(samples: Sequence[Sample]) -> list[float]:
    return [sum(sample.output.count(vowel) for vowel in "aeiou0123456789") / 12 for sample in samples]


def trainer(base: Path, kind: str) -> tuple[Any, Trainer]:
    policy = CausalLMPolicy(base, **{"max_new_tokens": 12, **KINDS[kind]})
    objective: Objective = create("objective", "grpo", {"kl_coef": 0.1})
    prompts = [Prompt(text=f"say {letter}") for letter in "abcdef"]
    settings: dict[str, Any] = {"steps": STEPS, "prompts_per_step": 2, "group_size": 4, "device": "cpu"}
    return policy, Trainer(policy, [vowels], prompts, objective=objective, learning_rate=0.01, **settings)


def weights(policy: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def measured(training: Trainer) -> dict[str, float]:
    """A step's metrics, without what depends on the clock or the machine."""
    return {k: v for k, v in training.step().metrics.items() if not re.search("time|memory|seconds", k)}


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint: weights, optimizer, and a reference that moves."""
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{file.name}: {name}": x for file in files for name, x in load_file(file).items()}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("full", "lora") else pytest.mark.slow) for kind in KINDS]
)
def test_a_resume_is_equal_to_the_bit(kind: str, base: Path, tmp_path: Path) -> None:
    """Metrics, weights, optimizer and reference."""
    policy, straight = trainer(base, kind)
    start, metrics = weights(policy), []
    for step in range(1, STEPS + 1):
        metrics.append(measured(straight))
        straight.save(tmp_path / str(step))
    assert metrics[-1]["kl"] > 0
    assert any(not torch.equal(start[name], x) for name, x in weights(policy).items())
    end = saved(tmp_path / str(STEPS))
    assert any("reference/" in name for name in end) == ("average" in kind)
    steps = {"average": (1, 3), "world": (1, 2, 3)}.get(kind, (2,))  # 1: before the average has moved
    for step in steps:
        _, resumed = trainer(base, kind)
        resumed.load(tmp_path / str(step))
        assert [measured(resumed) for _ in range(step, STEPS)] == metrics[step:]
        resumed.save(tmp_path / "again")
        again = saved(tmp_path / "again")
        assert again.keys() == end.keys()
        assert all(torch.equal(x, again[name]) for name, x in end.items()), step


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
    modes = {file.stat().st_mode for file in tmp_path.rglob("*") if file.is_file()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode}
