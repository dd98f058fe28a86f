"""Is it the same mathematics? grpokit's loss and gradients against the plain loop's, on the same weights and tokens.

Two steps of two updates each, on a small part of the job, in fp32 and without clipping of gradients: the second
update of a step is off-policy, and in the second step the policy has left its reference, so that every term counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from grpokit import Trainer
from grpokit.objectives import GRPO
from lm_job import plain
from lm_job.job import Even, Job
from lm_job.models import build_model
from lm_job.with_grpokit import build_policy, prompts, tokens

TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}
"""Of the loss, and of the gradient relative to its norm."""

State = dict[str, Tensor]


def check(job: Job) -> dict[str, str]:
    """Compare; "problem" is empty if all is equal, and "words" says how nearly."""
    least = {"layers": 4, "vocab": 32768, "prompt_tokens": 64, "new_tokens": 16}
    sizes: dict[str, Any] = {name: min(size, getattr(job, name)) for name, size in least.items()}
    rows: dict[str, Any] = {"prompts": 2, "group": 4, "micro": 4}
    small = dataclasses.replace(job, **sizes, **rows, lora=0, ragged=False, learning_rate=1e-3)
    policy = build_policy(small)
    even = Even()
    trainer = Trainer(
        policy,
        {"even": lambda samples: even(tokens(samples))},
        prompts(small),
        objective=GRPO(kl_coef=small.beta),
        prompts_per_step=small.prompts,
        group_size=small.group,
        micro_batch_size=small.micro,
        updates_per_rollout=2,
        learning_rate=small.learning_rate,
        max_grad_norm=None,
        device=small.device,
        seed=small.seed,
    )
    model = policy.modules()["model"]
    updates: list[tuple[State, State]] = []

    def keep(*_: Any) -> None:
        named = dict(model.named_parameters())
        weights = {name: p.detach().clone() for name, p in named.items()}
        updates.append((weights, {name: p.grad.clone() for name, p in named.items()}))

    hook = register_optimizer_step_pre_hook(keep)
    reports = [trainer.step() for _ in range(2)]
    hook.remove()

    twin, reference = build_model(small), build_model(small)
    worst_loss = worst_gradient = 0.0
    for number, report in enumerate(reports):
        trace = report.rollout.trace
        asked, written = (part.to(small.device) for part in (trace.per_group["prompt"], trace.per_row["tokens"]))
        ids = torch.cat([asked.repeat_interleave(small.group, 0), written], 1)  # [B, t]
        rewards = torch.tensor(even(tokens(report.rollout.samples)), device=small.device)
        both = updates[2 * number : 2 * number + 2]
        losses = []
        for weights, gradient in both:
            value, expected = _plain(twin, reference, ids, rewards, small, weights=weights, old_weights=both[0][0])
            losses.append(value)
            worst_gradient = max(worst_gradient, difference(gradient, expected))
        worst_loss = max(worst_loss, abs(report.metrics["loss"] - sum(losses) / 2))
    figures = f"loss {worst_loss:.1e}, gradient {worst_gradient:.1e} relative"
    most = TOLERANCE[small.device]
    if worst_loss <= most and worst_gradient <= most:
        return {"problem": "", "words": f"grpokit against the plain loop, largest differences: {figures}"}
    return {"problem": f"grpokit and the plain loop differ by more than {most:g}: {figures}.", "words": ""}


def _plain(
    twin: Any, reference: Any, ids: Tensor, rewards: Tensor, job: Job, *, weights: State, old_weights: State
) -> tuple[float, State]:
    """The plain loop's loss and gradient with `weights`; ids: [B, t], rewards: [B]."""
    with torch.no_grad():
        twin.load_state_dict(old_weights)
        old, frozen = (plain.token_logprobs(model, ids, job.new_tokens)[0] for model in (twin, reference))
        twin.load_state_dict(weights)
    twin.zero_grad()
    new, _ = plain.token_logprobs(twin, ids, job.new_tokens)
    scale = plain.advantages(rewards, job.group)
    value = plain.loss(new, old, frozen, scale, torch.ones_like(new), job.beta) / job.rows
    value.backward()
    return float(value.detach()), {name: p.grad for name, p in twin.named_parameters()}


def difference(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Norm of the difference over the norm."""
    apart = sum(float((found[name] - expected[name]).double().square().sum()) for name in expected)
    whole = sum(float(gradient.double().square().sum()) for gradient in expected.values())
    return float((apart / whole) ** 0.5)
