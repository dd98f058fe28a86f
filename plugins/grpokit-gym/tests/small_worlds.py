"""Environments that tests register with gymnasium: "small_worlds:Name-v0" imports this module first."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch


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


class Faulty(gym.Env[Any, Any]):
    """Does in its third step what `fault` says, or resets and draws as it says.

    `answer` replaces parts of what that step returns, by their places; a part that is `...` is left out.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 1}
    observation_space = gym.spaces.Box(-9, 9, (3,))
    action_space = gym.spaces.Discrete(2)
    generator, counter = np.random.default_rng(7), count()

    def __init__(self, fault: str = "", answer: Any = (), render_mode: str | None = None) -> None:
        self.fault, self.answer, self.render_mode, self.resets = fault, dict(answer), render_mode, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.resets = 0, self.resets + 1
        if self.fault == "second reset" and self.resets == 2:
            raise RuntimeError("the door is shut")
        if self.fault == "bare reset" and self.resets == 2:
            return np.zeros(3, np.float32)
        starts = {"global start": np.random.uniform, "own start": self.generator.uniform, "count": self.later}
        return np.full(3, starts.get(self.fault, self.np_random.uniform)(), np.float32), {}

    def later(self) -> float:
        return next(self.counter) / 100

    def step(self, action: int) -> Any:
        self.steps += 1
        seen, fault = np.array([action, self.steps, 0.5], np.float32), self.fault
        if self.steps == 3 and fault == "cancelled":
            raise asyncio.CancelledError
        if self.steps == 3 and fault in ("nan", "inf"):
            seen[1] = float(fault)
        if self.steps == 3 and fault == "one of three":
            seen = seen[:1]
        if fault == "torch":
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(True)
        answer = dict(enumerate((seen, 1.0, self.steps == 6 and fault == "end at the limit", False, {})))
        if self.steps == 3:
            answer.update(self.answer)
        return tuple(part for part in answer.values() if part is not ...)

    def render(self) -> Any:
        frames = {"frames": [np.zeros((4, 4, 3), np.uint8)], "no rows": np.zeros((0, 4, 3), np.uint8)}
        return frames.get(self.fault)


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


for world in (Corridor, Faulty, Single, Unbounded, Several, Growing):
    gym.register(f"{world.__name__}-v0", world, max_episode_steps=6)
gym.register("Endless-v0", Corridor)
