"""Vision-language models: pictures in prompts, on both paths and in a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from tiny_vision import VISION_FAMILIES, tiny_processor, tiny_vision_model

from grpokit import Prompt, Rollout
from grpokit.sampling import derive_seeds
from grpokit.testing import outcomes, policy_checks
from grpokit_lm.packed_path import PackedPath
from grpokit_lm.plain_path import PlainPath
from grpokit_lm.policy import CausalLMPolicy


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Random colours."""
    generator = torch.Generator().manual_seed(seed)
    return Image.fromarray(torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8).numpy())


PROMPTS = [
    Prompt(text="what?", image=picture(16, 16)),
    Prompt(text="no picture"),
    Prompt(text="a longer question", image=picture(40, 24, seed=1)),
    Prompt(text="both", images=[picture(16, 24, seed=2), picture(24, 16, seed=3)]),
]


def build(family: str, **options: Any) -> CausalLMPolicy:
    defaults = {"max_new_tokens": 8, "stop_tokens": range(0, 250, 8)}
    return CausalLMPolicy(tiny_vision_model(family), tokenizer=tiny_processor(family), **defaults | options)


def drawn(policy: CausalLMPolicy, prompts: list[Prompt] = PROMPTS, group: int = 3, **options: Any) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=group)
    return policy.rollout(prompts, group, seeds=seeds, **options)


def everything(rollout: Rollout) -> slice:
    return slice(0, rollout.mask.shape[1])


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_both_paths_write_and_score_alike(family: str) -> None:
    fast, plain = build(family, train_vision=True), build(family, train_vision=True, fast=False)
    assert fast.note == ""
    assert isinstance(fast.path, PackedPath)
    assert isinstance(plain.path, PlainPath)
    rollout = drawn(fast)
    assert [s.output for s in rollout.samples] == [s.output for s in drawn(plain).samples]
    assert len(set(rollout.lengths.tolist())) > 1
    slopes = torch.randn(rollout.mask.shape, generator=torch.Generator().manual_seed(0))
    gradients = []
    for policy in (fast, plain):
        view = policy.logprobs(rollout, everything(rollout))
        assert torch.allclose(view.logprobs.detach(), rollout.old.logprobs, rtol=0, atol=2e-5)
        (view.logprobs * slopes).sum().backward()
        named = policy.model.named_parameters()
        gradients.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named})
    for name, padded in gradients[1].items():
        assert (gradients[0][name] - padded).norm() <= 1e-4 * max(padded.norm(), torch.tensor(1e-3)), name
    assert any(x.norm() > 0 for name, x in gradients[0].items() if "vis" in name)


@pytest.mark.parametrize(
    ("family", "options"),
    [("qwen2.5-vl", {"lora": {"r": 4}}), ("qwen2.5-vl", {"fast": False}), ("llava", {})],
    ids=str,
)
def test_contract(family: str, options: dict[str, Any]) -> None:
    checks = policy_checks(lambda: build(family, **options), PROMPTS, makes="text", module="grpokit_lm.plugin")
    failures = [outcome for outcome in outcomes(checks) if outcome.state == "failed"]
    assert not failures, failures
