"""Environments of OpenEnv, with its own base classes; they run in capsules."""

from __future__ import annotations

import random

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.rubrics import Rubric


class Guess(Action):
    number: int


class Hint(Observation):
    hint: str


class Near(Rubric):
    def forward(self, action: Guess, observation: Hint) -> float:
        return 1.0 if observation.hint == "right" else 0.25


class Whole(Rubric):
    def __init__(self) -> None:
        super().__init__()
        self.near = Near()

    def forward(self, action: Guess, observation: Hint) -> float:
        return self.near(action, observation)


class Game(Environment[Guess, Hint, State]):
    """Guess a number, which the seed or `reset(number=...)` decides."""

    def __init__(self, high: int = 9) -> None:
        super().__init__(rubric=Whole())
        self.high = high

    def reset(self, seed: int | None = None, episode_id: str | None = None, number: int | None = None) -> Hint:
        self.number = number or random.Random(seed).randint(1, self.high)
        return Hint(hint=f"Guess my number from 1 to {self.high}.")

    def step(self, action: Guess, timeout_s: float | None = None) -> Hint:
        hint = "higher" if action.number < self.number else "lower"
        observation = Hint(hint="right" if action.number == self.number else hint)
        observation.done = observation.hint == "right"
        observation.reward = self._apply_rubric(action, observation)
        return observation

    @property
    def state(self) -> State:
        return State()


class Till(MCPEnvironment):
    """A tool that adds up what is bought."""

    def __init__(self) -> None:
        server = FastMCP("till")
        self.total = 0

        @server.tool
        def buy(price: int) -> str:
            """Buy something."""
            self.total += price
            return f"{self.total} in all"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None) -> Observation:
        observation = super().step(action, timeout_s)
        observation.reward = self.total / 10
        observation.done = self.total > 10
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State()
