"""A policy under check: how to build it, its rollouts and log-probs, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from grpokit.policy import Policy
from grpokit.sampling import derive_seeds
from grpokit.training.contract import scorer
from grpokit.types import Ask, Decisions, Prompt, Rollout, Seeds
from grpokit_check.check import expect

LOW_PRECISION = 0.25
"""The largest difference of log-probs, in nats, that rounding explains where a policy computes in less than fp32."""

ROUNDED = "the policy computes in less than fp32, and rounding hides it; build it with dtype=float32 to check"
"""Why a check does not apply to such a policy."""


@dataclass(kw_only=True)
class Case:
    """What the checks of a policy share; see `policy_checks`. `drawn` holds the rollout that some of them share."""

    factory: Callable[[], Policy]
    prompts: Sequence[Prompt]
    group_size: int
    tolerance: float
    decode: Callable[[Rollout], Sequence[Any]] | None
    decisions: Callable[[Rollout], Tensor] | None
    makes: str
    drawn: list[Rollout] = field(default_factory=list)
    low_precision: bool = False  # whether the policy that was built computes in less than fp32

    def build(self) -> Policy:
        """A new policy."""
        policy = self.factory()
        dtypes = {p.dtype for module in policy.modules().values() for p in module.parameters()}
        self.low_precision = any(not dtype.is_floating_point or dtype.itemsize < 4 for dtype in dtypes)
        return policy

    def seeds(self, *, step: int = 0, group_size: int | None = None) -> Seeds:
        """Seeds for all prompts."""
        return derive_seeds(
            3, stream="train", step=step, prompts=len(self.prompts), group_size=group_size or self.group_size,
            first_group=5,
        )  # fmt: skip

    def rollout(
        self,
        policy: Policy,
        *,
        seeds: Seeds | None = None,
        row: int = 0,
        rows: int | None = None,
        evaluate: bool = False,
    ) -> Rollout:
        """Draw all rows, or `rows` of them from `row` on, with the seeds that they have in the whole batch.

        These are whole groups, or a part of one.
        """
        seeds = self.seeds() if seeds is None else seeds
        group_size = len(seeds.row) // len(seeds.group)
        end = row + (rows or len(seeds.row))
        groups = slice(row // group_size, (end - 1) // group_size + 1)
        own = replace(seeds, row=seeds.row[row:end], group=seeds.group[groups], group_ids=seeds.group_ids[groups])
        with torch.no_grad():
            return policy.rollout(self.prompts[groups], len(own.row) // len(own.group), seeds=own, evaluate=evaluate)

    def shared(self, policy: Policy) -> Rollout:
        """A rollout for checks that only score it: drawn by the first of them, since drawing may be slow."""
        if not self.drawn:
            self.drawn.append(self.rollout(policy))
        return self.drawn[0]


def all_logprobs(policy: Policy, rollout: Rollout) -> Tensor:
    """The log-probs of all decisions, [B, T], slice by slice and without gradient."""
    logprobs, score = torch.full_like(rollout.old.logprobs, torch.nan), scorer(policy)
    with torch.no_grad():
        for steps in policy.slices(rollout):
            logprobs[:, steps] = score(rollout, steps, Ask(entropy="no")).logprobs.to(logprobs)
    return logprobs


def scored_slices(policy: Policy, rollout: Rollout) -> list[tuple[slice, Decisions]]:
    """Every slice with its decisions, entropy and moments included, with gradient."""
    score = scorer(policy)
    return [(steps, score(rollout, steps, Ask(moments=True))) for steps in policy.slices(rollout)]


def detached_slices(policy: Policy, rollout: Rollout) -> list[tuple[slice, Decisions]]:
    """Every slice with its decisions, without gradient."""
    with torch.no_grad():
        return scored_slices(policy, rollout)


def expect_close(case: Case, a: Tensor, b: Tensor, mask: Tensor, expected: str, cause: str) -> None:
    """Fail where two tensors of log-probs differ by more than the tolerance at a decision."""
    differences = (a - b).abs()[mask].nan_to_num(nan=torch.inf)
    difference = float(differences.max()) if len(differences) else 0.0
    limit = max(case.tolerance, LOW_PRECISION) if case.low_precision and case.tolerance else case.tolerance
    expect(difference <= limit, expected, f"a log-prob difference of {difference:.3g}", cause)


def parameters(policy: Policy) -> dict[str, nn.Parameter]:
    """The trainable parameters by name."""
    return {
        f"{name}.{key}": p
        for name, module in policy.modules().items()
        for key, p in module.named_parameters()
        if p.requires_grad
    }


def perturb(policy: Policy, seed: int = 1) -> None:
    """Move every trainable parameter a little, in place, as an optimizer does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in parameters(policy).values():
            p.add_(0.1 * torch.randn(p.shape, generator=generator).to(p) * p.abs().mean().clamp(min=0.1))


def same_decisions(a: Rollout, i: int, b: Rollout, j: int, tolerance: float) -> bool:
    """Whether row i of a and row j of b hold the same decisions, as far as the trace shows under the mask."""
    first, second = _decided(a, i), _decided(b, j)
    as_many = int(a.mask[i].sum()) == int(b.mask[j].sum())
    return as_many and all(_close(x, second[name], tolerance) for name, x in first.items() if name in second)


def _decided(rollout: Rollout, row: int) -> dict[str, Tensor]:
    mask, tensors = rollout.mask[row], {"old log-probs": rollout.old.logprobs, **rollout.trace.per_row}
    per_decision = {name for name, x in tensors.items() if x.ndim > 1 and x.shape[1] == len(mask)}
    return {name: x[row][mask.to(x.device)] if name in per_decision else x[row] for name, x in tensors.items()}


def _close(x: Tensor, y: Tensor, tolerance: float) -> bool:
    if x.shape != y.shape:  # padded to the longest row of its batch
        return True
    if x.is_floating_point():
        return torch.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)
    return torch.equal(x, y)


def same_output(a: Any, b: Any) -> bool:
    """Whether two outputs are the same to rounding, which moves a pixel by one level at most."""
    if isinstance(a, Image.Image) and isinstance(b, Image.Image):
        alike = (a.mode, a.size) == (b.mode, b.size)
        return alike and bool((np.abs(np.asarray(a, np.int64) - np.asarray(b, np.int64)) <= 1).all())
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _close(a, b, 1e-4)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same_output, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-4 * max(1.0, abs(a))
    return type(a) is type(b) and bool(a == b)
