"""Notices an engine whose log-probs are not those of the policy, but of the base model, or from before sampling.

An engine that ignores the adapter draws from the base, and training would look healthy. One that states log-probs from
before the temperature makes every importance weight wrong.
"""

from __future__ import annotations

from torch import Tensor

from grpokit import RunError

_NOISE = 8.0  # standard errors by which log-probs must speak for another distribution before an engine is accused


def refuse_ignored_adapter(stated: Tensor, policy: Tensor, base: Tensor, mask: Tensor) -> None:
    """Stop where an engine's log-probs are those of the base model, and not of the adapter that was pushed.

    Args:
        stated: [b, t] log-probs of the engine.
        policy: [b, t] those of the policy for the same tokens.
        base: [b, t] those without the adapter.
        mask: [b, t] bool.

    Raises:
        RunError: the adapter is ignored.
    """
    if _are_of_other(stated, policy, base, mask):
        raise RunError(
            f"The engine ignores the adapter: its log-probs differ from the base model's by "
            f"{_mean(stated, base, mask):.2g} on average, and from the policy's by {_mean(stated, policy, mask):.2g}. "
            "Start it with --enable-lora, a --max-lora-rank of at least the adapter's r, and the same base model."
        )


def refuse_untempered(stated: Tensor, policy: Tensor, untempered: Tensor, mask: Tensor) -> None:
    """Stop where an engine's log-probs are from before the temperature.

    Args:
        stated: [b, t] log-probs of the engine.
        policy: [b, t] those of the policy for the same tokens, at its temperature.
        untempered: [b, t] those at the temperature 1.
        mask: [b, t] bool.

    Raises:
        RunError: they are.
    """
    if _are_of_other(stated, policy, untempered, mask):
        raise RunError(
            f"The engine states log-probs from before the temperature: they differ from those at the temperature 1 by "
            f"{_mean(stated, untempered, mask):.2g} on average, and from those at the policy's by "
            f"{_mean(stated, policy, mask):.2g}. Start it with --logprobs-mode processed_logprobs."
        )


def _are_of_other(stated: Tensor, policy: Tensor, other: Tensor, mask: Tensor) -> bool:
    """Whether an engine's log-probs are those of another distribution than the policy's.

    With e = stated, the sum of (e - other)^2 - (e - policy)^2 is about +G for an engine that draws from the policy and
    -G for one that draws from the other, where G is the sum of (policy - other)^2. The engine's rounding s adds a
    normal error of 2 s sqrt(G). So an engine is only accused where -G is far outside of that.
    """
    e, p, o = (x[mask].double().cpu() for x in (stated, policy, other))
    if not len(e):
        return False
    total, gap = float(((e - o) ** 2 - (e - p) ** 2).sum()), float(((p - o) ** 2).sum())
    rounding = float(((e - o) ** 2).mean()) ** 0.5
    return bool(total + _NOISE * 2 * rounding * gap**0.5 < 0 < gap)


def _mean(one: Tensor, other: Tensor, mask: Tensor) -> float:
    """The mean difference, in nats."""
    return float((one - other)[mask].abs().mean())
