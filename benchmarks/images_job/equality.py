"""Is it the same work? The pages' log-probs and gradients against grpokit's, of the samples that grpokit drew.

On a part of the job, with an adapter that is not zero: each adapter has the same random weights.
"""

from __future__ import annotations

import dataclasses

import torch
from lm_job.clock import Clock
from lm_job.equality import difference
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from grpokit import Rollout
from images_job.job import Job
from images_job.pages import Flow, Page, Tokens, Walked
from images_job.with_grpokit import brightness, build_policy, build_trainer

TOLERANCE = {"log-probs": 1e-4, "gradient": 1e-4}
"""In nats, of a token or of a dimension of a latent; and relative to the gradient's norm."""


def check(job: Job) -> dict[str, str]:
    """Compare; "problem" is empty if all is equal, and "words" says how nearly."""
    small = dataclasses.replace(job, prompts=2, group=2, micro=2)
    policy = build_policy(small)
    weights = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    torch.manual_seed(0)
    values = {name: p.detach() + 0.02 * torch.randn_like(p) for name, p in weights.items()}
    with torch.no_grad():
        for name, p in weights.items():
            p.copy_(values[name])
    gradient: dict[str, Tensor] = {}
    hook = register_optimizer_step_pre_hook(
        lambda *_: gradient.update({name: p.grad.clone() for name, p in weights.items()})
    )
    rollout = build_trainer(small, policy, prompts=2, group=2, max_grad_norm=None).step().rollout
    hook.remove()

    clock = Clock(cuda=False)
    pages: dict[str, Page] = (
        {f"{n} at a time": Tokens(small, clock, at_once=n) for n in (1, small.rows)}
        if job.part == "tokens"
        else {"the loop": Flow(small, clock, window=small.window)}
    )
    words, problem = [], ""
    for name, page in pages.items():
        own = dict(page.model.named_parameters())
        with torch.no_grad():
            for key, value in values.items():
                own[key].copy_(value)
        old = _learnt(page, rollout)
        apart = {
            "log-probs": float((old - rollout.old.logprobs).abs().max()),
            "gradient": difference({key: own[key].grad for key in values}, gradient),
        }
        found = f"{name}: log-probs {apart['log-probs']:.1e}, gradient {apart['gradient']:.1e} relative"
        words.append(found)
        if not all(apart[what] <= most for what, most in TOLERANCE.items()):
            problem = f"grpokit and a page differ by more than {TOLERANCE}: {found}."
    return {"problem": problem, "words": f"{job.part}, largest differences from grpokit: {'; '.join(words)}"}


def _learnt(page: Page, rollout: Rollout) -> Tensor:
    """Let a page compute the gradient of a rollout; returns its log-probs [B, t] of that."""
    rewards = [brightness(sample.output) for sample in rollout.samples]
    texts = [sample.prompt.text for sample in rollout.samples]
    group = len(texts) // 2
    if isinstance(page, Tokens):
        n = page.at_once
        tokens = rollout.trace.per_row["tokens"]
        written = [page.written(page.read(texts[i : i + n]), tokens[i : i + n]) for i in range(0, len(texts), n)]
        return torch.cat(page.learn(written, rewards, group))
    assert isinstance(page, Flow)
    walked, olds = [], []
    for place, latents in enumerate(rollout.trace.per_row["latents"].split(group)):
        first = int(rollout.trace.per_group["steps"][rollout.group_index[place * group], 0])
        walk = Walked(
            text=page.told(texts[place * group], group),
            steps=range(first, first + page.job.window),
            latents=latents.unbind(1),
        )
        walked.append(walk)
        with torch.no_grad():
            olds.append(torch.stack([page.scored(walk, j)[0] for j in range(len(walk.steps))], 1))
    page.learn(walked, olds, rewards)
    return torch.cat(olds)
