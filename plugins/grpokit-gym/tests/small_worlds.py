"""Environments that tests register with gymnasium: "small_worlds:Name-v0" imports this module first."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Corridor(gym.Env[Any, Any]):
    """Walk to the right end of a corridor: observations are a mapping, and the action 1 goes left, 2 goes right."""

    observation_space = gym.spaces.Dict({"place": gym.spaces.Discrete(4), "wind": gym.spaces.Box(-1, 1, (2,))})
    action_space = gym.spaces.Discrete(2, start=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 1
        return self._seen(), {}

    def step(self, action: int) -> Any:
        assert action in self.action_space
        self.place += 1 if action == 2 else -1
        over = self.place in (0, 3)
        return self._seen(), float(self.place == 3), over, False, {"is_success": self.place == 3} if over else {}

    def _seen(self) -> Any:
        return {"place": self.place, "wind": self.np_random.uniform(-1, 1, 2).astype(np.float32)}


class Broken(Corridor):
    """Fails in its third step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action: int) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("the motor is on fire")
        return self._seen(), 0.0, False, False, {}


class Single(Corridor):
    """Cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one robot")


class Unbounded(Corridor):
    action_space = gym.spaces.Box(-np.inf, np.inf, (2,))  # type: ignore[assignment]


class Several(Corridor):
    action_space = gym.spaces.MultiDiscrete([2, 2])  # type: ignore[assignment]


class Growing(Corridor):
    observation_space = gym.spaces.Sequence(gym.spaces.Discrete(2))  # type: ignore[assignment]


for world in (Corridor, Broken, Single, Unbounded, Several, Growing):
    gym.register(f"{world.__name__}-v0", world, max_episode_steps=6)
gym.register("Endless-v0", Corridor)
