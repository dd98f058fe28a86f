"""Rewards, prompts and policies of the ward: each has one setting that makes it sick, and is healthy without.

Configs name them "ward.components:Name", with `tools/` on PYTHONPATH.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from PIL import Image

from grpokit import Prompt, Rollout, Sample, Seeds, UsageError, frozen_copy, registry, swapped
from grpokit.builtin.image_rewards import brightness
from grpokit_lm.tasks import arithmetic
from grpokit_toy.lm import ToyLM


class Noisy:
    """Another reward plus Gaussian noise, which differs each time that a sample is scored.

    Args:
        reward: the name of the other reward; its own parameters stand beside.
        noise: the standard deviation; 0 for none.
    """

    def __init__(self, *, reward: str, noise: float, **parameters: Any) -> None:
        self.reward = registry.create("reward", reward, parameters)
        self.noise = noise
        self._random = random.Random(0)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        return [score + self._random.gauss(0, self.noise) for score in self.reward(samples)]


class Coarse:
    """Another reward, rounded.

    Args:
        reward: the name of the other reward; its own parameters stand beside.
        step: scores are multiples of it; 0 leaves them as they are.
    """

    def __init__(self, *, reward: str, step: float, **parameters: Any) -> None:
        self.reward = registry.create("reward", reward, parameters)
        self.step = step

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """One number per sample."""
        scores = self.reward(samples)
        if not self.step:
            return list(scores)
        return [self.step * round(score / self.step) for score in scores]


def darkness(samples: Sequence[Sample]) -> list[float]:
    """One less the brightness of a small copy: 0 for white, 1 for black."""
    small = []
    for sample in samples:
        assert isinstance(sample.output, Image.Image)
        copy = sample.output.reduce(2)
        small.append(Sample(prompt=sample.prompt, output=copy, group=sample.group))
    return [1 - score for score in brightness(small)]


def sums(split: str = "train", *, digits: int = 2, held_out: int = 200) -> list[Prompt]:
    """The sums of lm-arithmetic, or longer ones, which its model has never seen.

    Args:
        split: "train" or "eval".
        digits: of each number.
        held_out: the number of prompts to evaluate on.
    """
    factor = 10 ** (digits - 2)
    prompts = []
    for a, b in arithmetic.problems(split):
        longer_a, longer_b = a * factor + b % factor, b * factor + a % factor
        text = arithmetic.question(longer_a, longer_b)
        prompts.append(Prompt(text=text, target=str(longer_a + longer_b)))
    return prompts[:held_out] if split == "eval" else prompts


class RoundedLM(ToyLM):
    """toy-lm whose weights are rounded after each update, as those of a model that is kept in bf16 are.

    Args:
        dtype: what the weights are rounded to; "float32" leaves them as they are.
        parameters: of `ToyLM`.
    """

    def __init__(self, *, dtype: Literal["float32", "bfloat16"], **parameters: Any) -> None:
        super().__init__(**parameters)
        self.dtype = getattr(torch, dtype)
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        for weight in self.model.parameters():
            weight.copy_(weight.to(self.dtype))

    def updated(self, version: int) -> None:
        """Round the weights."""
        self._round()


class EngineLM(ToyLM):
    """toy-lm that draws training samples with a copy of its weights, as with an engine beside the training.

    Args:
        push_every: the copy gets the weights after so many optimizer steps.
        tells: whether a rollout says how old its weights are. If not, it passes for one of another arithmetic.
        parameters: of `ToyLM`.
    """

    def __init__(self, *, push_every: int = 1, tells: bool = True, **parameters: Any) -> None:
        super().__init__(**parameters)
        if push_every < 1:
            raise UsageError(f"push_every must be at least 1, got {push_every}.")
        self.push_every, self.tells = push_every, tells
        self._engine = frozen_copy(self.model)
        self._pushed = 0

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """Draw with the copy; in evaluation with the weights themselves."""
        if evaluate:
            return super().rollout(prompts, group_size, seeds=seeds, evaluate=True)
        with swapped(self, "model", self._engine):
            rollout = super().rollout(prompts, group_size, seeds=seeds)
        facts = {"version": self._pushed} if self.tells else {"exact": False}
        return Rollout(**{**vars(rollout), **facts})

    def updated(self, version: int) -> None:
        """Push the weights if it is time."""
        if version - self._pushed >= self.push_every:
            self._engine.load_state_dict(self.model.state_dict())
            self._pushed = version

    def state_dict(self) -> dict[str, Any]:
        """The weights, and those of the engine."""
        engine = {f"engine.{name}": weight for name, weight in self._engine.state_dict().items()}
        return {**super().state_dict(), **engine, "pushed": self._pushed}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load both."""
        own = dict(state)
        self._pushed = own.pop("pushed")
        engine = {name.removeprefix("engine."): own.pop(name) for name in state if name.startswith("engine.")}
        super().load_state_dict(own)
        self._engine.load_state_dict(engine)
