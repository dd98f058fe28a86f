"""The plain loop: `generate`, then log-probs from the full logits. What one writes on a single page.

As most such scripts do, it takes the old log-probs in a pass of their own.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor

from lm_job.job import Even, Job
from lm_job.models import EndAt, build_model, lora_config, precision
from lm_job.turns import Turns


def token_logprobs(model: Any, ids: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """Log-probs of the last `new` tokens, of the drawn ones and of all: [b, t] ids -> [b, new] and [b, new, V]."""
    logits = model(input_ids=ids, logits_to_keep=new + 1).logits[:, :-1].float()
    logs = logits.log_softmax(-1)
    return logs.gather(-1, ids[:, -new:, None]).squeeze(-1), logs


def loss(new: Tensor, old: Tensor, reference: Tensor, advantages: Tensor, mask: Tensor, beta: float) -> Tensor:
    """GRPO with k3, each row's mean, summed over rows: tensors [b, t], advantages [b] -> scalar."""
    ratio = (new - old).exp()
    surrogate = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    distance = reference - new
    kl = distance.exp() - distance - 1
    return (((beta * kl - surrogate) * mask).sum(1) / mask.sum(1)).sum()


def advantages(rewards: Tensor, group: int) -> Tensor:
    """[B] rewards -> [B], normalised in each group."""
    groups = rewards.view(-1, group)
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)


def run(job: Job, turns: Turns) -> None:
    """Take steps while there are turns."""
    model = build_model(job)
    if job.lora:
        from peft import get_peft_model

        model, reference_model = get_peft_model(model, lora_config(job)), None
    else:
        reference_model = copy.deepcopy(model).requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=job.learning_rate, weight_decay=0.0)
    model.train()  # there is no dropout; as the others do
    clock, even = turns.clock, Even()

    while turns.begin():
        prompts = torch.tensor(job.prompt_ids(turns.step), device=job.device).repeat_interleave(job.group, 0)  # [B, t]
        with clock("generate"), torch.no_grad(), precision(job):
            ids = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=job.new_tokens,
                do_sample=True,
                top_k=0,
                logits_processor=[EndAt(job, job.lengths(turns.step))] if job.ragged else [],
            )
        new = ids.shape[1] - job.prompt_tokens
        drawn = [row[: row.index(job.end) + 1] if job.end in row else row for row in ids[:, -new:].tolist()]
        lengths = [len(row) for row in drawn]
        mask = torch.arange(new, device=job.device) < torch.tensor(lengths, device=job.device)[:, None]  # [B, new]
        with clock("reward"):
            rewards = even(drawn)
            scale = advantages(torch.tensor(rewards, device=job.device), job.group)

        micro_batches = torch.arange(job.rows).split(job.micro)
        with torch.no_grad(), precision(job):
            with clock("old"):
                old = torch.cat([token_logprobs(model, ids[rows], new)[0] for rows in micro_batches])
            with clock("reference"), model.disable_adapter() if job.lora else contextlib.nullcontext():
                scored_by = reference_model or model
                reference = torch.cat([token_logprobs(scored_by, ids[rows], new)[0] for rows in micro_batches])
        entropies = []
        for rows in micro_batches:
            with clock("forward"), precision(job):
                new_logprobs, logs = token_logprobs(model, ids[rows], new)
                entropy = -(logs.detach().exp() * logs.detach()).sum(-1)
            with clock("loss"):
                value = loss(new_logprobs, old[rows], reference[rows], scale[rows], mask[rows], job.beta) / job.rows
                entropies.append(entropy[mask[rows]].mean())
            value.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        turns.end(
            tokens=sum(lengths),
            entropy=float(torch.stack(entropies).mean()),
            grad_norm=float(norm),
            reward=sum(rewards) / len(rewards),
            distinct=even.distinct,
        )
