"""Notices an engine that ignores the adapter: training would look healthy, and every sample would be the base's."""

from __future__ import annotations

from torch import Tensor

from grpokit import RunError

_NOISE = 8.0  # standard errors by which log-probs must speak for the base before an adapter counts as ignored


def refuse_ignored_adapter(stated: Tensor, policy: Tensor, base: Tensor, mask: Tensor) -> None:
    """Stop where an engine's log-probs are those of the base model, and not of the adapter that was pushed.

    With e = stated, the sum of (e - base)^2 - (e - policy)^2 is about +G for an engine that uses the adapter and -G for
    one that does not, where G is the sum of (policy - base)^2. The engine's rounding s adds a normal error of 2 s
    sqrt(G). So an engine is only accused where -G is far outside of that.

    Args:
        stated: [b, t] log-probs of the engine.
        policy: [b, t] those of the policy for the same tokens.
        base: [b, t] those without the adapter.
        mask: [b, t] bool.

    Raises:
        RunError: the adapter is ignored.
    """
    e, p, r = (x[mask].double().cpu() for x in (stated, policy, base))
    if not len(e):
        return
    total, gap = float(((e - r) ** 2 - (e - p) ** 2).sum()), float(((p - r) ** 2).sum())
    rounding = float(((e - r) ** 2).mean()) ** 0.5
    if total + _NOISE * 2 * rounding * gap**0.5 < 0 < gap:
        near, far = (float((e - other).abs().mean()) for other in (r, p))
        raise RunError(
            f"The engine ignores the adapter: its log-probs differ from the base model's by {near:.2g} on average, and "
            f"from the policy's by {far:.2g}. "
            "Start it with --enable-lora, a --max-lora-rank of at least the adapter's r, the same base model and, for "
            "a temperature other than 1, --logprobs-mode processed_logprobs."
        )
