"""grpokit on both jobs: a policy in a `Trainer`, as a user would write it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from lm_job.clock import Clock
from PIL.Image import Image

from grpokit import Sample, Trainer
from grpokit.objectives import GRPO
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_glm_image.policy import GlmImageAR
from images_job import models
from images_job.job import Job


def brightness(picture: Image) -> float:
    """The reward, between 0 and 1."""
    return float(np.asarray(picture).mean()) / 255


def build_policy(job: Job, *, all_steps: bool = False) -> Any:
    """The policy of a job.

    Args:
        job: the job.
        all_steps: in "flow", let all steps of denoising be decisions, and no picture share what comes before them.
    """
    lora = {"r": job.rank, "alpha": 2 * job.rank}
    if job.part == "tokens":
        return GlmImageAR(models.glm_image(job), size=job.size, lora=lora, decode={"steps": 1, "guidance": 1.0})
    window: dict[str, Any] = {"shared_noise": False} if all_steps else {"window": {"width": job.window}}
    return DiffusersFlow(models.sd3(job), size=job.size, steps=job.steps, lora=lora, **window)


def build_trainer(job: Job, policy: Any, *, prompts: int, group: int, max_grad_norm: float | None = 1.0) -> Trainer:
    """A trainer for some prompts of the job."""

    def bright(samples: Sequence[Sample]) -> list[float]:
        return [brightness(sample.output) for sample in samples]

    return Trainer(
        policy,
        {"bright": bright},
        job.texts[:prompts],
        objective=GRPO(kl_coef=job.beta, kl="k3" if job.part == "tokens" else "gaussian"),
        prompts_per_step=prompts,
        group_size=group,
        micro_batch_size=job.micro,
        learning_rate=job.learning_rate,
        max_grad_norm=max_grad_norm,
        max_zero_std_steps=None,
        device="cpu",
    )


def stepper(job: Job, clock: Clock, *, all_steps: bool = False) -> Callable[[int, int], dict[str, float]]:
    """A function of a number of prompts and of samples for each, which takes a step and counts what it did."""
    policy = build_policy(job, all_steps=all_steps)
    clock.watch(policy, "rollout", "draw")
    clock.watch(*((policy.decoder if job.part == "tokens" else policy.family), "pictures", "pictures"))
    clock.watch(policy, "logprobs", lambda: "train" if torch.is_grad_enabled() else "score")
    trainer = functools.cache(lambda prompts, group: build_trainer(job, policy, prompts=prompts, group=group))

    def step(prompts: int, group: int) -> dict[str, float]:
        rollout = trainer(prompts, group).step().rollout
        return {"decisions": float(rollout.mask.sum()), "pictures": len(rollout.samples)}

    return step
