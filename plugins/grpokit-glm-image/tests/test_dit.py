"""glm-image-dit: the contract, its pictures against the stock pipeline, and what training changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grpokit import Prompt, Rollout
from grpokit.sampling import derive_seeds, normals
from grpokit.testing import outcomes, policy_checks
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.tiny import tiny_pipeline

PROMPTS = [Prompt(text=text) for text in ("cat", 'a red "CAT" sign')]


def build(model: Any = "tiny", **options: Any) -> GlmImageDiT:
    defaults: dict[str, Any] = {"size": (64, 96), "steps": 4, "eval_steps": 3}
    return GlmImageDiT(model, **defaults | options)


def drawn(policy: GlmImageDiT, *, group: int = 3, evaluate: bool = False) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=group)
    return policy.rollout(PROMPTS, group, seeds=seeds, evaluate=evaluate)


@pytest.mark.parametrize(
    "options",
    [
        {"lora": {"r": 2}, "window": {"width": 2}, "guidance": 1.5},
        {"token_sets": None, "gradient_checkpointing": True, "sampler": "cps"},
    ],
    ids=str,
)
def test_contract(options: dict[str, Any]) -> None:
    checks = policy_checks(lambda: build(**options), PROMPTS, makes="image", module="grpokit_glm_image.plugin")
    failures = [outcome for outcome in outcomes(checks) if outcome.state == "failed"]
    assert not failures, failures


def test_evaluations_are_pictures_of_the_stock_pipeline() -> None:
    """From the same tokens and noise: equal to one level of 255."""
    pipeline = tiny_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    policy = build(pipeline)
    rollout = drawn(policy, evaluate=True)
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(PROMPTS), group_size=3)
    for row in range(6):
        place = row // 3
        codes = rollout.trace.per_group["codes"][place : place + 1]
        prior = codes.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)
        noise = normals(seeds.row[row : row + 1], 4 * 8 * 12, start=2**40).float().view(1, 4, 8, 12)
        stock = pipeline(
            PROMPTS[place].text,
            height=64,
            width=96,
            num_inference_steps=3,
            guidance_scale=1.5,
            prior_token_ids=prior,
            latents=noise,
        ).images[0]
        ours = np.asarray(rollout.samples[row].output, dtype=int)
        assert np.abs(ours - np.asarray(stock, dtype=int)).max() <= 1
