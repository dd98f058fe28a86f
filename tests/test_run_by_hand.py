"""A whole run beside the same run written out by hand, in fp64: every number of every update.

The hand-written loop knows nothing of micro-batches, slices or guards. It takes from the trainer only what was drawn
and which groups made each update.
"""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor

from grpokit import Trainer, objectives
from tiny_policies import BatchesSeen, TinyTokens, digit_sum

STEPS, PASSES, MINIBATCHES, GROUP = 3, 2, 2, 4
UPDATES = PASSES * MINIBATCHES
WARMUP, PEAK, DECAY, NORM = 2, 0.03, 0.2, 0.6
KL, ENTROPY, CLIP = 0.3, 0.05, 0.1


def rate(update: int) -> float:
    """Linear up over WARMUP updates, then a cosine down to 0 at the end of the run."""
    if update < WARMUP:
        return PEAK * (update + 1) / WARMUP
    return PEAK * (1 + math.cos(math.pi * (update - WARMUP) / (STEPS * UPDATES - WARMUP))) / 2


def test_a_run_equals_one_written_by_hand() -> None:
    trained = BatchesSeen(dtype=torch.float64)
    trainer = Trainer(
        trained,
        [digit_sum],
        [str(i) for i in range(12)],
        steps=STEPS,
        prompts_per_step=4,
        group_size=GROUP,
        micro_batch_size=16,
        updates_per_rollout=PASSES,
        minibatches=MINIBATCHES,
        objective=objectives.GRPO(clip_range=CLIP, kl_coef=KL, entropy_coef=ENTROPY),
        learning_rate=PEAK,
        warmup_steps=WARMUP,
        schedule="cosine",
        weight_decay=DECAY,
        max_grad_norm=NORM,
        device="cpu",
    )
    policy, start = TinyTokens(dtype=torch.float64), TinyTokens(dtype=torch.float64)
    parameters = list(policy.net.parameters())
    optimizer = torch.optim.AdamW(parameters, weight_decay=DECAY)

    for step, report in enumerate(trainer):
        rollout, every = report.rollout, slice(0, 7)
        mask, groups = rollout.mask, rollout.groups
        rewards = torch.tensor(digit_sum(rollout.samples), dtype=torch.float64)
        a = torch.cat([(r - r.mean()) / (r.std() + 1e-4) for r in rewards.split(GROUP)])[:, None]  # [B, 1]
        with torch.no_grad():
            old, reference = (p.logprobs(rollout, every).logprobs for p in (policy, start))
        seen: dict[str, list[Tensor]] = defaultdict(list)
        for i, batch in enumerate(trained.batches[step * UPDATES :][:UPDATES]):
            rows = torch.isin(groups, batch).nonzero()[:, 0]
            view, m = policy.logprobs(rollout, every), mask[rows]
            ratio = (view.logprobs - old)[rows].exp()
            d = (reference - view.logprobs)[rows]
            kl, entropy = d.exp() - d - 1, view.entropy[rows]
            surrogate = torch.minimum(ratio * a[rows], ratio.clamp(1 - CLIP, 1 + CLIP) * a[rows])
            loss = -((surrogate - KL * kl + ENTROPY * entropy) * m).sum(-1).div(m.sum(-1)).mean()
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, NORM)
            optimizer.param_groups[0]["lr"] = rate(step * UPDATES + i)
            optimizer.step()
            low, high = (ratio < 1 - CLIP) & (a[rows] < 0), (ratio > 1 + CLIP) & (a[rows] > 0)
            decisions = {"kl": kl, "entropy": entropy, "low": low.double(), "high": high.double(), "ratio": ratio}
            for name, values in decisions.items():
                seen[name].append(values.detach()[m])
            seen["loss"].append(loss.detach()[None])
            seen["norm"].append(norm[None])

        for made, expected in zip(trained.net.parameters(), parameters, strict=True):
            torch.testing.assert_close(made, expected, rtol=0, atol=1e-11)
        values = {name: torch.cat(parts) for name, parts in seen.items()}
        assert values["low"].any()  # every rule has acted
        assert values["high"].any()
        assert values["norm"].max() > NORM > values["norm"].min()
        assert report.metrics["logprob_diff/max"] < 1e-12  # measured before the first update of a step only
        lengths = mask.sum(-1).double()
        expected = {
            "loss": values["loss"].mean(),
            "kl": values["kl"].mean(),
            "entropy": values["entropy"].mean(),
            "clip_ratio/low_mean": values["low"].mean(),
            "clip_ratio/high_mean": values["high"].mean(),
            "ratio/min": values["ratio"].min(),
            "ratio/max": values["ratio"].max(),
            "grad_norm": values["norm"].mean(),
            "learning_rate": rate((step + 1) * UPDATES - 1),
            "reward": rewards.mean(),
            "reward_std": torch.stack([r.std() for r in rewards.split(GROUP)]).mean(),
            "advantage/std": a.std(),
            "length/mean": lengths.mean(),
            "length/max": lengths.max(),
        }
        assert {name: report.metrics[name] for name in expected} == pytest.approx(
            {name: float(value) for name, value in expected.items()}, rel=1e-9, abs=1e-12
        )
    assert report.step == STEPS
