"""Calls of a reward under check: one that scores elsewhere as something to call, and the first call of any.

The first call is made once, whichever check runs first. A reward that raises, or returns too few scores, fails the
check `numbers` and no other: without one number per sample the other checks have nothing to compare, so they are
"not checked".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from grpokit.rewards.calling import check_scores
from grpokit.rewards.failures import collect
from grpokit.rewards.submission import Submits
from grpokit.rewards.terms import Reward, RewardTerm
from grpokit.types import Sample
from grpokit_check.check import NotChecked, attempt

UNSCORED = "numbers failed"
"""Why a check that needs scores did not run."""


def as_callable(reward: Reward | Submits) -> Reward:
    """The reward itself, or a function that submits samples and waits for their scores.

    Unlike in a run, an exception is passed on and the reward gets no copies: a check looks at both.
    """
    if not isinstance(reward, Submits) or callable(reward):
        return reward
    term = RewardTerm(name=type(reward).__name__, reward=reward)

    def submit_and_wait(samples: Sequence[Sample]) -> list[float]:
        pending = reward.submit(samples)
        for _ in pending:  # raises what a portion raised, which `collect` would put into words
            pass
        return collect(term, pending, samples).values

    return submit_and_wait


class Answer(NamedTuple):
    """What a reward returned or raised, the content of its samples before and after, and the list that it was given."""

    values: Any
    before: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    batch: Sequence[Sample]


class FirstCall:
    """A reward's first answer to the samples that it is checked on, made on first use."""

    def __init__(self, reward: Reward, samples: Sequence[Sample]) -> None:
        self.reward, self.samples = reward, samples

    @cached_property
    def answer(self) -> Answer:
        """The result of the call."""
        before = [content(sample) for sample in self.samples]
        batch = list(self.samples)  # the reward's own list, so that a change in place stays in this call
        values = attempt(self.reward, batch)
        return Answer(values, before, [content(sample) for sample in self.samples], batch)

    @cached_property
    def scores(self) -> Any:
        """One finite number or NaN per sample, or the error that says what there is instead."""
        return attempt(check_scores, self.answer.values, range(len(self.samples)), self.samples)

    def before(self, test: Callable[[], None]) -> None:
        """Make a test that needs scores, or say that there are none."""
        if isinstance(self.scores, BaseException):
            raise NotChecked(UNSCORED)
        test()


def content(sample: Sample) -> dict[str, Any]:
    """What a sample holds, as values that a change in place leaves alone."""
    parts = {f"prompt.{name}": getattr(sample.prompt, name) for name in ("text", "image", "target", "meta")}
    parts |= {name: getattr(sample, name) for name in ("output", "group", "info")}
    return {name: _plain(part) for name, part in parts.items()}


def _plain(value: Any) -> Any:
    # the repr of a tensor or an array leaves out digits and the middle
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return str(value.dtype), list(value.shape), value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes(), value.getpalette()
    if isinstance(value, Mapping):
        return {key: _plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else repr(value)
