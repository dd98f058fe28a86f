"""The checks that every policy passes, as one generator: each rule of `grpokit.policy.Policy` has at least one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from grpokit.errors import UsageError
from grpokit.policy import Policy
from grpokit.types import Prompt, Rollout
from grpokit_check.check import Check, checks_of
from grpokit_check.policy import logprob_checks, rollout_checks, weight_checks
from grpokit_check.policy.case import Case


def policy_checks(
    factory: Callable[[], Policy],
    prompts: Iterable[str | Prompt],
    *,
    group_size: int = 4,
    tolerance: float = 1e-4,
    decode: Callable[[Rollout], Sequence[Any]] | None = None,
    decisions: Callable[[Rollout], Tensor] | None = None,
    makes: str = "",
    module: str | None = None,
) -> Iterator[Check]:
    """Yield the checks of a policy. Nothing is built before a check runs.

    Args:
        factory: builds a new policy, always with the same weights; a policy's class will do.
        prompts: at least two that it can read.
        group_size: samples per prompt, at least 2.
        tolerance: the largest difference of log-probs that counts as equal; 1e-4 suits fp32.
        decode: rollout -> the outputs [B], decoded again from the trace alone; with it `scored-is-sampled` is exact.
        decisions: rollout -> the drawn values [B, T, ...] of Gaussian decisions; with it `gaussian` is exact.
        makes: the kind of output that its spec declares; with "image" or "text", outputs are checked for it.
        module: the plugin's module behind the entry point, which must import nothing heavy.

    Raises:
        UsageError: fewer than two prompts, or a group of one.
    """
    cases = [Prompt(text=p) if isinstance(p, str) else p for p in prompts]
    if len(cases) < 2 or group_size < 2:
        raise UsageError(
            f"A policy's checks need at least two prompts and two samples per prompt; got {len(cases)} prompts and "
            f"group_size={group_size}."
        )
    case = Case(
        factory=factory, prompts=cases, group_size=group_size, tolerance=tolerance, decode=decode, decisions=decisions,
        makes=makes,
    )  # fmt: skip
    tests = [test for test in _CHECKS if test is not rollout_checks.outputs or makes in ("image", "text")]
    yield from checks_of(tests, case, module)


_CHECKS: Sequence[Callable[[Case], None]] = (
    weight_checks.protocol,
    rollout_checks.shapes,
    rollout_checks.outputs,
    logprob_checks.ratio_is_one,
    rollout_checks.scored_is_sampled,
    logprob_checks.rows_independent,
    rollout_checks.batch_size,
    rollout_checks.joined,
    rollout_checks.seeded,
    rollout_checks.global_rng,
    logprob_checks.logprobs_repeat,
    logprob_checks.mask,
    logprob_checks.slices,
    logprob_checks.trimmed,
    logprob_checks.frequencies,
    logprob_checks.gaussian,
    logprob_checks.target,
    weight_checks.gradient,
    weight_checks.reference,
    weight_checks.save_load,
    rollout_checks.evaluate,
)
