"""Holds what an environment returns against the contract of gymnasium, in the process in which it plays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from grpokit import UsageError
from grpokit.errors import brief


def checked(env: Any) -> Any:
    """An environment with its answers checked, below the wrappers of `gymnasium.make`, which rely on them."""
    if isinstance(env, (OrderEnforcing, PassiveEnvChecker, TimeLimit)):
        env.env = checked(env.env)
        return env
    return Checked(env)


class Checked(gym.Wrapper[Any, Any, Any, Any]):
    """Returns numbers and truths of Python's own; of `info` only `is_success`, where there is one.

    Raises:
        UsageError: an answer is not one of gymnasium's; the message says what was expected and what came.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = _parts(self.env.reset(seed=seed, options=options), "observation", "info")
        return _real(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act."""
        names = ("observation", "reward", "terminated", "truncated", "info")
        observation, reward, terminated, truncated, info = _parts(self.env.step(action), *names)
        number = _number(reward)
        if not math.isfinite(number):
            raise UsageError(f"the reward is {brief(reward)}, expected a finite number.")
        success = info.get("is_success")
        reported = {} if success is None else {"is_success": _truth(success, "is_success")}
        ended, cut = _truth(terminated, "terminated"), _truth(truncated, "truncated")
        return _real(observation), number, ended, cut, reported


def _parts(answer: Any, *names: str) -> Any:
    """An answer of as many values as names, of which the last is a mapping."""
    expected = f"expected {', '.join(names[:-1])} and {names[-1]}"
    if not isinstance(answer, (tuple, list)):
        raise UsageError(f"{brief(answer)}, {expected}.")
    if len(answer) != len(names):
        raise UsageError(f"{len(answer)} values, {expected}.")
    if not isinstance(answer[-1], Mapping):
        raise UsageError(f"info is {brief(answer[-1])}, expected a dict.")
    return answer


def _real(observation: Any) -> Any:
    """An observation that is no array of texts or of complex numbers, which would be cast in silence."""
    if isinstance(observation, np.ndarray) and observation.dtype.kind in "cSU":
        raise UsageError(f"the observation is {brief(observation)}, expected real numbers.")
    return observation


def _truth(value: Any, name: str) -> bool:
    number = _number(value)
    if number not in (0, 1):
        raise UsageError(f"{name} is {brief(value)}, expected True or False.")
    return bool(number)


def _number(value: Any) -> float:
    """A real number or an array of one; NaN for anything else."""
    array = np.asarray(value)
    real = array.dtype.kind in "biuf"
    return float(array.item()) if real and array.size == 1 else math.nan
