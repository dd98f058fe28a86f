"""What the fast path and the plain one must have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpokit import Rollout
from grpokit_lm.packed_path import PackedPath
from grpokit_lm.plain_path import PlainPath
from grpokit_lm.policy import CausalLMPolicy


def compare(
    fast: CausalLMPolicy, plain: CausalLMPolicy, drawn: Callable[[CausalLMPolicy], Rollout], *, least: float
) -> dict[str, Tensor]:
    """Assert that two equal policies write and score alike on their two paths; returns the gradients of one.

    Args:
        fast: on the fast path.
        plain: on the plain one.
        drawn: a rollout with completions of several lengths.
        least: the norm below which a gradient's difference counts as one of this norm.
    """
    assert fast.note == ""
    assert isinstance(fast.path, PackedPath)
    assert isinstance(plain.path, PlainPath)
    rollout = drawn(fast)
    assert [s.output for s in rollout.samples] == [s.output for s in drawn(plain).samples]
    assert len(set(rollout.lengths.tolist())) > 1
    slopes = torch.randn(rollout.mask.shape, generator=torch.Generator().manual_seed(0))
    gradients = []
    for policy in (fast, plain):
        view = policy.logprobs(rollout, slice(0, rollout.mask.shape[1]))
        assert torch.allclose(view.logprobs.detach(), rollout.old.logprobs, rtol=0, atol=2e-5)
        (view.logprobs * slopes).sum().backward()
        named = policy.model.named_parameters()
        gradients.append({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named})
    packed, padded = gradients
    for name, x in padded.items():
        assert (packed[name] - x).norm() <= 1e-4 * max(x.norm(), torch.tensor(least)), name
    return packed
