"""One call of a reward, wherever it is made: in the run's own process, a worker process, or an actor of Ray.

Whatever comes of it is a `Portion`, so that failures are judged in one place. An exception of any class is a failure of
the reward; KeyboardInterrupt is the user's, and is passed on.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

from grpokit import registry
from grpokit.errors import (
    GrpokitError,
    PluginError,
    RewardError,
    UsageError,
    a_type,
    brief,
    error_line,
    plural,
    raised_at,
)
from grpokit.processes.forks import forks_ended
from grpokit.rewards.following import FollowsRun
from grpokit.rewards.submission import Portion
from grpokit.types import Sample

LARGEST = 1e30
"""The size up to which scores and weights can be multiplied, squared and added up."""

_PAGE = "guards#while-it-runs"


def build(use: str, params: Mapping[str, Any]) -> tuple[Any, Portion]:
    """Build a reward outside the run's process.

    Args:
        use: a plugin's name for it, or "package.module:function".
        params: for its factory.

    Returns:
        The reward, and a portion without rows whose `error` says why it cannot be built.
    """
    try:
        reward = registry.create("reward", use, params)
        if not callable(reward):
            raise PluginError(
                f"The reward '{use}' gave {a_type(reward)}, which cannot be called. If it scores elsewhere by itself, "
                "leave out `workers` and `placement`."
            )
        if isinstance(reward, FollowsRun):
            raise UsageError(
                f"The reward '{use}' takes part in the run that it scores for, which only works in the run's own "
                "process: leave out workers and placement."
            )
        return reward, Portion(rows=[])
    except GrpokitError as error:
        return None, Portion(rows=[], error=error)


def call_reward(reward: Any, rows: Sequence[int], samples: list[Sample]) -> Portion:
    """Have the samples of some rows scored, without gradients; they are the reward's own, to change as it likes."""
    torch = sys.modules.get("torch")  # a reward that does without it is spared its import
    order = tuple(map(id, samples))
    try:
        with forks_ended(), torch.no_grad() if torch else nullcontext():
            values = reward(samples)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return failure_of(error, rows, samples)
    if tuple(map(id, samples)) != order:
        wrong = (
            "it changed the order or the number of the samples in its list, so its scores may belong to other rows; "
            "expected one score per sample, in the order of the list. Sort a copy: `sorted(samples, key=...)`."
        )
        return Portion(rows=rows, error=RewardError(wrong, page="guards#a-reward-that-changes-things"))
    return portion_of(values, rows, samples)


def portion_of(values: Any, rows: Sequence[int], samples: Sequence[Sample]) -> Portion:
    """What a reward returned for the samples of some rows, as plain numbers or as the error that it is."""
    try:
        return Portion(rows=rows, values=check_scores(values, rows, samples))
    except RewardError as error:
        return Portion(rows=rows, error=error)


def failure_of(error: BaseException, rows: Sequence[int], samples: Sequence[Sample]) -> Portion:
    """What an exception of a reward means for some rows; a wrong parameter or target must not be skipped."""
    if isinstance(error, UsageError):
        return Portion(rows=rows, error=error)
    failure = f"raised {error_line(error)}{_meta(error, samples)} {raised_at(error)}"
    return Portion(rows=rows, failure=failure, cause=error)


def _meta(error: BaseException, samples: Sequence[Sample]) -> str:
    """After a KeyError, the keys of the first prompt whose meta has not that one; else empty."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if not isinstance(key, str):
        return ""
    prompts = (sample.prompt for sample in samples if key not in sample.prompt.meta)
    return next((f", and the meta of {brief(p.text)} has {brief(dict(p.meta))}" for p in prompts), "")


def check_scores(values: Any, rows: Sequence[int], samples: Sequence[Sample]) -> list[float]:
    """The scores that a reward returned, as plain numbers.

    Args:
        values: what it returned: a sequence, an array or a tensor.
        rows: the rows of the call.
        samples: of these rows.

    Raises:
        RewardError: not one number per sample, or one that is infinite or too large to compute with.
    """
    if hasattr(values, "tolist"):  # of numpy or torch
        with suppress(RuntimeError):  # a tensor without numbers, as on the device "meta": refused below
            values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise RewardError(f"it returned {a_type(values)}; expected one number per sample.", page=_PAGE)
    if len(values) != len(rows):
        raise RewardError(
            f"it returned {plural(len(values), 'score')} for {plural(len(rows), 'sample')}, from row {rows[0]} on "
            f"(prompt {samples[0].prompt.text!r}); expected one per sample.",
            page=_PAGE,
        )
    scores = []
    for value, row, sample in zip(values, rows, samples, strict=True):
        if hasattr(value, "item"):
            with suppress(RuntimeError, ValueError):  # more than one number: refused below
                value = value.item()
        where = f"row {row} (prompt {sample.prompt.text!r})"
        if not issubclass(type(value), numbers.Real):
            raise RewardError(
                f"it gave {brief(value)} ({type(value).__name__}) for {where}; expected a number, or NaN for 'cannot "
                "score this sample'.",
                page=_PAGE,
            )
        if abs(value) > LARGEST:
            raise RewardError(
                f"it gave {brief(value)} for {where}; expected a finite number of at most {LARGEST:g} in size, or NaN "
                "for 'cannot score this sample'.",
                page=_PAGE,
            )
        scores.append(float(value))
    return scores
