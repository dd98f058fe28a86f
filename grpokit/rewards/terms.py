"""What a reward is, and the term that gives it a name and a part in the mix.

`scoring` calls terms and `failures` judges what they raise, so terms stand in a file above both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from grpokit.errors import PluginError, UsageError, brief
from grpokit.registry import of_samples
from grpokit.rewards.calling import LARGEST
from grpokit.rewards.submission import Submits
from grpokit.settings import RewardSettings, numbered_names
from grpokit.types import Prompt, Sample

Reward: TypeAlias = Callable[[Sequence[Sample]], Sequence[float]]
"""B samples, whole groups -> B numbers, in the same order; NaN for a sample that it cannot score."""


@dataclass(frozen=True, kw_only=True)
class RewardTerm(RewardSettings):
    """A reward with its name and its part in the mix.

    Attributes:
        name: the column's name in metrics.
        reward: the callable, or an object with `submit` and `close`.
        unscorable: says why no sample of a prompt can be scored, or "" if they can be; None where that is not known.
        statistic: whether it describes and does not judge.
    """

    name: str
    reward: Reward | Submits
    unscorable: Callable[[Prompt], str] | None = None
    statistic: bool = False

    @property
    def monitor(self) -> bool:
        """Whether it is only measured."""
        return self.weight == 0

    def due(self, step: int | None) -> bool:
        """Whether it is measured in a training step, counted from 1; None stands for an evaluation."""
        return step is None or not self.monitor or (step - 1) % self.every == 0


Rewards: TypeAlias = Sequence[Reward | Submits | RewardTerm] | Mapping[str, Reward | Submits]
"""Rewards as a user gives them: a list, or name -> reward."""


def as_terms(rewards: Rewards) -> list[RewardTerm]:
    """Rewards as a user gives them -> named terms; a name that is taken gets a number.

    Raises:
        UsageError: an object that cannot score, or a function that only another trainer can call.
    """
    if isinstance(rewards, Mapping):
        unnumbered = [RewardTerm(name=str(name), reward=reward) for name, reward in rewards.items()]
    elif callable(rewards) or not isinstance(rewards, Iterable):
        raise UsageError(
            f"rewards is {brief(rewards)}; expected a list of rewards, as in [reward], or a mapping from names to "
            "rewards."
        )
    else:
        unnumbered = [
            each if isinstance(each, RewardTerm) else RewardTerm(name=_name_of(each), reward=each) for each in rewards
        ]
    for term in unnumbered:
        if not (callable(term.reward) or isinstance(term.reward, Submits)):
            raise UsageError(
                f"Reward '{term.name}' is {term.reward!r}; expected something to call with samples, or an object with "
                "the methods `submit` and `close`."
            )
        if not abs(term.weight) <= LARGEST:  # NaN is no smaller either
            raise UsageError(
                f"Reward '{term.name}' has the weight {term.weight}; expected a finite number of at most {LARGEST:g} "
                "in size."
            )
    names = numbered_names(term.name for term in unnumbered)
    return [
        replace(term, name=name, reward=of_samples(term.reward, error=PluginError))
        for term, name in zip(unnumbered, names, strict=True)
    ]


def _name_of(reward: Any) -> str:
    reward = getattr(reward, "func", reward)  # functools.partial
    return str(getattr(reward, "__name__", type(reward).__name__))
