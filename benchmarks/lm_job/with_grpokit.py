"""grpokit on the job: the policy `hf-lm` in a `Trainer`, as a user would write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import grpokit
from grpokit import Sample, Trainer
from grpokit.objectives import GRPO
from lm_job.job import Even, Job, words
from lm_job.models import build_model, build_tokenizer
from lm_job.turns import Turns

STEPS = 1000
"""Prompts are made for this many; nobody takes more."""


def build_policy(job: Job) -> Any:
    """The policy of a job."""
    params: dict[str, Any] = {
        "model": build_model(job),
        "tokenizer": build_tokenizer(job, end=1),
        "ignore_eos": not job.ragged,
        "max_new_tokens": job.new_tokens,
        "temperature": 1.0,
    }
    if job.lora:
        params["lora"] = {"r": job.lora, "alpha": 2 * job.lora, "targets": "all-linear"}
    policy = grpokit.create("policy", "hf-lm", params)
    if policy.note:
        raise RuntimeError(f"the fast path is not used: {policy.note}")
    return policy


def tokens(samples: Sequence[Sample]) -> list[list[int]]:
    """The tokens of each sample."""
    return [[int(word[1:]) for word in sample.output.split()] for sample in samples]


def prompts(job: Job) -> list[str]:
    """The texts of the job's prompts."""
    return [words(ids) for step in range(STEPS) for ids in job.prompt_ids(step)]


def run(job: Job, turns: Turns) -> None:
    """Take steps while there are turns."""
    policy = build_policy(job)
    clock, even = turns.clock, Even()
    clock.watch(policy, "rollout", "generate")
    clock.watch(policy, "logprobs", lambda: "forward" if torch.is_grad_enabled() else "reference")
    clock.watch(GRPO, "__call__", "loss")

    def timed(samples: Sequence[Sample]) -> list[float]:
        with clock("reward"):
            return even(tokens(samples))

    trainer = Trainer(
        policy,
        {"even": timed},
        prompts(job),
        objective=GRPO(kl_coef=job.beta),
        steps=STEPS,
        prompts_per_step=job.prompts,
        group_size=job.group,
        micro_batch_size=job.micro,
        learning_rate=job.learning_rate,
        max_grad_norm=1.0,
        max_zero_std_steps=None,
        device=job.device,
        mixed_precision="bf16" if job.device == "cuda" else "no",
        seed=job.seed,
    )
    while turns.begin():
        if job.ragged:
            policy.stops = _Lengths(job.lengths(turns.step))
        report = trainer.step()
        facts = {name: report.metrics[name] for name in ("entropy", "grad_norm", "reward")}
        turns.end(tokens=float(report.rollout.mask.sum()), distinct=even.distinct, **facts)


class _Lengths:
    """Ends each sample at its length, in place of the stop tokens."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.wanted = torch.tensor(lengths)

    def ended(self, tokens: Tensor, first: int) -> Tensor:
        """[B] bool: whose length lies behind column `first` of tokens [B, t]."""
        return (self.wanted > first) & (self.wanted <= tokens.shape[1])

    def lengths(self, tokens: Tensor) -> tuple[list[int], list[bool]]:
        """For each sample in tokens [B, T]: its length, and that it has ended."""
        return self.wanted.tolist(), [True] * len(self.wanted)
