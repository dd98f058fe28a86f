"""When two scorings of the same decisions count as different: the limits, and the guard of the first training pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpokit.errors import RunError


@dataclass(frozen=True, kw_only=True)
class LogprobDiffLimit:
    """The largest allowed difference, in nats, between two log-probs of the same decisions.

    Measured with a 12-layer transformer with random weights (8,192 tokens), between a sampler with a key-value cache
    and a full forward pass. In fp32 they differ by up to 8.5e-6 on average and 4.1e-5 at most. The smallest of the
    usual mistakes (a temperature of 0.9 in one of the two) makes 0.07 and 0.25. In bf16 the two passes differ by 0.005
    to 0.08 on average, so only gross mistakes can be noticed there (dropout left on: 0.3 to 6).
    """

    mean: float  # over the decisions of a step
    largest: float  # of a single one; infinite in low precision, where rare tokens may differ a lot

    @classmethod
    def of(cls, mean: float | None, *, low_precision: bool) -> LogprobDiffLimit:
        """The limits for a mean; None stands for the usual mean of the precision."""
        if low_precision:
            return cls(mean=0.1 if mean is None else mean, largest=math.inf)
        mean = 1e-4 if mean is None else mean
        return cls(mean=mean, largest=10 * mean)

    def exceeded(self, mean: float, largest: float) -> bool:
        """Whether measured differences are too large; NaN means that nothing was measured, and is not too large."""
        return mean > self.mean or largest > self.largest

    def __str__(self) -> str:
        if self.largest == math.inf:
            return f"{self.mean:g} on average in low precision"
        return f"{self.mean:g} on average and {self.largest:g} at most in fp32"


def check_logprob_diff(mean: float, largest: float, limit: LogprobDiffLimit, *, step: int, exact: bool = True) -> None:
    """Stop if the first log-probs of training differ from the rollout's: the importance ratio would not be 1.

    `exact` is False for an engine, which is not meant to compute as the policy does.
    """
    if not limit.exceeded(mean, largest):
        return
    if not exact:
        raise RunError(
            f"In step {step} the sampler states other log-probs than the policy has for the same decisions: they "
            f"differ by {mean:.3g} on average and {largest:.3g} at most; the limit is {limit}. Usual causes: an "
            "engine with another base model or another quantisation, or one that states log-probs from before "
            "sampling. If it is known to be less exact, raise trainer.max_logprob_diff, with a correction."
        )
    raise RunError(
        f"In step {step} logprobs() gives other log-probs than the rollout, before any update: they differ by "
        f"{mean:.3g} on average and {largest:.3g} at most; the limit is {limit}. The importance ratio would not "
        "start at 1. Usual causes: temperature, top-k, top-p or guidance in only one of the two, dropout left on, "
        "prompt or padding tokens scored, weights that the sampler does not share. `grpokit check` finds the "
        "cause. For a sampler that is known to be less exact, raise trainer.max_logprob_diff."
    )
