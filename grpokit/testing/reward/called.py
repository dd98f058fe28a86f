"""Rewards that score elsewhere, as something to call: the checks ask every reward in the same way."""

from __future__ import annotations

from collections.abc import Sequence

from grpokit.rewards.failures import collected
from grpokit.rewards.submission import Submits
from grpokit.rewards.terms import Reward, RewardTerm
from grpokit.types import Sample


def as_callable(reward: Reward | Submits) -> Reward:
    """The reward itself, or a function that submits samples and waits for their scores.

    Unlike in a run, an exception comes out as it was raised, and the reward gets no copies: a check looks at both.
    """
    if not isinstance(reward, Submits) or callable(reward):
        return reward
    term = RewardTerm(name=type(reward).__name__, reward=reward)

    def submit_and_wait(samples: Sequence[Sample]) -> list[float]:
        pending = reward.submit(samples)
        for _ in pending:  # raises what a portion raised, which `collected` would put into words
            pass
        return collected(term, pending, samples).values

    return submit_and_wait
