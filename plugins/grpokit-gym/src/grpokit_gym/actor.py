"""The network that acts, and the distributions of its actions."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from grpokit import UsageError
from grpokit.errors import a_type, one_line
from grpokit.flow import gaussian_logprobs
from grpokit.sampling import sample_categorical

_FAR = 10.0  # standard deviations at which a normalised observation is cut


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """Of n actions; decisions are their numbers [..., 1]."""

    logits: Tensor  # [..., n]

    def draw(self, draws: Tensor, *, greedy: bool) -> Tensor:
        """Actions by uniform numbers [B, 1], or the likeliest ones: [B, 1] int64."""
        if greedy:
            return self.logits.argmax(-1, keepdim=True)
        return sample_categorical(self.logits, draws[:, 0])[0][:, None]

    def logprobs(self, actions: Tensor) -> Tensor:
        """[...] of actions [..., 1]."""
        return self.logits.log_softmax(-1).gather(-1, actions)[..., 0]

    def entropy(self) -> Tensor:
        """[...] in nats."""
        scores = self.logits.log_softmax(-1)
        return -(scores.exp() * scores).sum(-1)

    def moments(self) -> dict[str, Tensor]:
        """None: these are no Gaussians."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """Of actions [..., A] before they are brought to the environment's range; log-probs are means over dimensions."""

    mean: Tensor  # [..., A]
    std: Tensor  # [A]

    def draw(self, draws: Tensor, *, greedy: bool) -> Tensor:
        """Actions by normal numbers [B, A], or the means: [B, A]."""
        return self.mean if greedy else self.mean + self.std * draws

    def logprobs(self, actions: Tensor) -> Tensor:
        """[...] of actions [..., A], in nats per dimension."""
        dims = actions.shape[-1]
        x = actions.reshape(-1, 1, dims)  # [..., A] -> [b, 1, A]
        mean = self.mean.reshape(-1, 1, dims)
        return gaussian_logprobs(x, mean, self.std).view(actions.shape[:-1])

    def entropy(self) -> Tensor:
        """[...] in nats per dimension."""
        of_std_1 = 0.5 * math.log(2 * math.pi * math.e)
        own = (self.std.log() + of_std_1).mean()
        return own.expand(self.mean.shape[:-1])

    def moments(self) -> dict[str, Tensor]:
        """Mean and standard deviation."""
        return {"mean": self.mean, "std": self.std.expand_as(self.mean)}


class Space(Protocol):
    """What an actor knows of its environment."""

    observation: int
    actions: int
    discrete: bool


class Actor(nn.Module):
    """A network with the normalisation of its observations.

    Args:
        net: from observations [..., O] to logits or means [..., A].
        space: of the environment.
        std: of Gaussian actions at the start.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, net: nn.Module, space: Space, *, std: float) -> None:
        super().__init__()
        self.net, self.discrete = net, space.discrete
        self.register_buffer("mean", torch.zeros(space.observation))
        self.register_buffer("scale", torch.ones(space.observation))
        if not self.discrete:
            start = torch.full((space.actions,), math.log(std))
            self.log_std = nn.Parameter(start)

    def normalise(self, observations: np.ndarray[Any, Any]) -> None:
        """Take mean and spread of observations [n, O]."""
        self.mean.copy_(torch.from_numpy(observations.mean(0)))
        spread = torch.from_numpy(observations.std(0))
        self.scale.copy_(spread.clamp(min=1e-3))

    def forward(self, observations: Tensor) -> Categorical | Gaussian:
        """The distribution of actions for observations [..., O]."""
        normal = (observations - self.mean) / self.scale
        answer = self.net(normal.clamp(-_FAR, _FAR)).float()
        if self.discrete:
            return Categorical(logits=answer)
        return Gaussian(mean=answer, std=self.log_std.exp())


def network_of(network: nn.Module | str | None, hidden: Sequence[int], space: Space) -> nn.Module:
    """The network that a config names, or a plain one whose answers begin near 0.

    Raises:
        UsageError: the name leads to no network.
    """
    if isinstance(network, nn.Module):
        return network
    if network is None:
        widths = [space.observation, *hidden]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.Tanh()]
        last = nn.Linear(widths[-1], space.actions)
        nn.init.normal_(last.weight, std=0.01 / math.sqrt(widths[-1]))
        nn.init.zeros_(last.bias)
        return nn.Sequential(*layers, last)
    module, _, attribute = network.partition(":")
    try:
        built = getattr(importlib.import_module(module), attribute)(space.observation, space.actions)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"network: expected 'package.module:function' that can be imported, got {network!r}: {one_line(error)}."
        ) from error
    if not isinstance(built, nn.Module):
        raise UsageError(f"network: '{network}' returned {a_type(built)}; expected a torch.nn.Module.")
    return built
