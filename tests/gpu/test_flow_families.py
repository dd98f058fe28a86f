"""Every family of diffusers-flow on a GPU: what it makes of texts and source pictures is where the transformer is."""

from __future__ import annotations

import pytest
import torch
from tiny_edits import prompts_of

from grpokit.sampling import derive_seeds
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import PIPELINES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("model", PIPELINES)
def test_a_group_is_drawn_and_scored(model: str) -> None:
    options = {"size": (32, 32), "steps": 2, "eval_steps": 2, "guidance": 2.0, "lora": {"r": 2}, "dtype": "float32"}
    policy = DiffusersFlow(model, device="cuda", **options)
    prompts, seeds = prompts_of(model), derive_seeds(1, stream="train", step=0, prompts=2, group_size=2)
    rollout = policy.rollout(prompts, 2, seeds=seeds)
    again = policy.logprobs(rollout, slice(0, 2)).logprobs
    torch.testing.assert_close(again.detach(), rollout.old.logprobs, rtol=0, atol=1e-4)
    again.sum().backward()
    assert all(p.grad is not None and p.grad.is_cuda for p in policy.model.parameters() if p.requires_grad)
    assert len(policy.rollout(prompts, 2, seeds=seeds, evaluate=True).samples) == 4
