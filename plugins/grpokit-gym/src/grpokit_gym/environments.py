"""Environments of gymnasium that are played side by side, each until its own end."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import iterate

from grpokit import UsageError
from grpokit.errors import one_line, typed_line
from grpokit_gym.pictures import Film

Array = np.ndarray[Any, Any]
Vectorization = Literal["sync", "async"]


class Environments:
    """Copies of one environment, as many as are played at a time.

    Args:
        name: gymnasium's name of it, "module:Name-v0" to import the module first.
        options: keywords of `gymnasium.make`.
        vectorization: "sync" steps one after the other in this process; "async" each in a process of its own.
        pictured: whether pictures of episodes will be asked for.

    Attributes:
        name: as above.
        observation: numbers of a flattened observation, O.
        actions: n of discrete actions, or the dimensions of a continuous one.
        discrete: whether actions are numbers of a list.
        limit: the most steps of an episode.

    Raises:
        UsageError: there is no such environment, or one of its spaces cannot be used.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], *, vectorization: Vectorization = "sync", pictured: bool = False
    ) -> None:
        if vectorization not in ("sync", "async"):
            raise UsageError(f"vectorization must be 'sync' or 'async', got {vectorization!r}.")
        self.name, self._async = name, vectorization == "async"
        if pictured:
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a screen, and looks for none
        self._options = {**options, **({"render_mode": "rgb_array"} if pictured else {})}
        self._here: list[Any] = []
        self._apart: dict[int, AsyncVectorEnv] = {}
        first = self._single(0)
        self._space, actions = first.observation_space, first.action_space
        try:
            self.observation = flatdim(self._space)
        except (NotImplementedError, ValueError) as error:
            raise UsageError(f"'{name}' has observations {self._space}, which have no fixed size. Wrap it.") from error
        self.discrete = isinstance(actions, gym.spaces.Discrete)
        if self.discrete:
            self.actions, self._first = int(actions.n), int(actions.start)
        elif isinstance(actions, gym.spaces.Box) and actions.is_bounded() and actions.dtype.kind == "f":
            self.actions, self._low, self._high = flatdim(actions), actions.low, actions.high
            self._middle, self._half = (actions.low + actions.high) / 2, (actions.high - actions.low) / 2
        else:
            raise UsageError(
                f"'{name}' has actions {actions}; expected Discrete, or a Box of floats with finite bounds. Wrap it, "
                "such as with gymnasium.wrappers.RescaleAction."
            )
        limit = None if first.spec is None else first.spec.max_episode_steps
        if limit is None:
            raise UsageError(f"'{name}' has no limit of steps. Give one: options: {{max_episode_steps: 500}}.")
        self.limit = int(limit)

    def action(self, decision: Array) -> tuple[Any, bool]:
        """An action from a decision [A], and whether it was brought within the bounds; decisions have the range ±1."""
        if self.discrete:
            return self._first + int(decision[0]), False
        scaled = self._middle + self._half * decision.reshape(self._middle.shape)
        return np.clip(scaled, self._low, self._high), bool((np.abs(decision) > 1).any())

    def random(self, generator: np.random.Generator) -> Array:
        """A decision [A] without a policy."""
        if self.discrete:
            return generator.integers(self.actions, size=1)
        return generator.uniform(-1, 1, self.actions).astype(np.float32)

    def flat(self, observation: Any) -> Array:
        """An observation as numbers [O]."""
        return np.asarray(flatten(self._space, observation), dtype=np.float32)

    def begin(self, seeds: Sequence[int], *, pictures: int = 0) -> Playing:
        """An episode for each seed; equal seeds start alike and meet the same chance.

        Args:
            seeds: in [0, 2**31).
            pictures: of an episode, evenly spread.
        """
        if self._async and not pictures:
            vector = self._vector(len(seeds))
            seen, _ = vector.reset(seed=list(seeds))
            return Playing(self, vector, list(iterate(vector.observation_space, seen)))
        envs = [self._single(i) for i in range(len(seeds))]
        return Playing(self, envs, [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)], pictures)

    def branched(self, seeds: Sequence[int], copies: int, most: int) -> Playing:
        """For each seed, episodes that part from copies of one environment after up to `most` random actions.

        Raises:
            UsageError: the environment cannot be copied.
        """
        envs, observations, env = [], [], self._single(0)
        for seed in seeds:
            generator, (seen, _) = np.random.default_rng(seed), env.reset(seed=seed)
            for _ in range(int(generator.integers(most + 1))):
                seen, _, ended, cut, _ = env.step(self.action(self.random(generator))[0])
                if ended or cut:
                    seen, _ = env.reset()
            try:
                envs += [copy.deepcopy(env) for _ in range(copies)]
            except Exception as error:  # whatever its parts raise
                raise UsageError(f"branch: '{self.name}' cannot be copied: {one_line(error)}. Leave it out.") from error
            observations += [seen] * copies
        return Playing(self, envs, observations)

    def explored(self, episodes: int, seed: int) -> Array:
        """Observations [n, O] of episodes of random actions."""
        generator, seen = np.random.default_rng(seed), []
        for start in generator.integers(2**31, size=episodes).tolist():
            playing = self.begin([start])
            while playing.open.any():
                seen.append(playing.observations[0].copy())
                playing.step(self.random(generator)[None])
        return np.stack(seen)

    def _single(self, index: int) -> Any:
        while len(self._here) <= index:
            self._here.append(self._made())
        return self._here[index]

    def _vector(self, count: int) -> AsyncVectorEnv:
        if count not in self._apart:
            self._apart[count] = AsyncVectorEnv([self._made] * count)
        return self._apart[count]

    def _made(self) -> Any:
        try:
            return gym.make(self.name, **self._options)
        except Exception as error:  # whatever an environment's own code raises
            raise UsageError(f"env: gymnasium cannot make '{self.name}': {one_line(error)}.") from error


class Playing:
    """Episodes under way.

    Attributes:
        observations: [B, O] fp32, of the last step; of an episode that has ended, its last one.
        open: [B] bool, which are still played.
        rewards: B lists, one number for each step.
        truncated: B bools, whether a limit of steps ended it, and not the environment.
        success: B, as the environment says at the end; None where it says nothing.
        clipped: the number of actions that were brought within the bounds.
        films: of each episode.
    """

    def __init__(
        self, environments: Environments, envs: Sequence[Any] | AsyncVectorEnv, first: Sequence[Any], pictures: int = 0
    ) -> None:
        self._environments, self._envs = environments, envs
        self.observations = np.stack([environments.flat(seen) for seen in first])
        count = len(first)
        self.open = np.ones(count, dtype=bool)
        self.rewards: list[list[float]] = [[] for _ in range(count)]
        self.truncated, self.clipped = [False] * count, 0
        self.success: list[bool | None] = [None] * count
        self._actions: list[Any] = [None] * count
        self.films = [Film(pictures) for _ in range(count)] if pictures else []

    def step(self, decisions: Array) -> None:
        """Act in all that are open: decisions [B, A]."""
        rows = np.flatnonzero(self.open).tolist()
        for row in rows:
            self._actions[row], clipped = self._environments.action(decisions[row])
            self.clipped += clipped
            if self.films:
                self.films[row].add(self._envs[row].render)  # type: ignore[index]
        try:
            answers = self._answers(rows)
        except Exception as error:  # whatever an environment's own code raises
            count = len(self.rewards[rows[0]]) + 1
            raise UsageError(
                f"env: '{self._environments.name}' raised in step {count}: {typed_line(error)}."
            ) from error
        for row, (seen, reward, ended, cut, success) in zip(rows, answers, strict=True):
            self.observations[row] = self._environments.flat(seen)
            self.rewards[row].append(float(reward))
            self.open[row] = not (ended or cut)
            self.truncated[row] = bool(cut and not ended)
            if success is not None:
                self.success[row] = bool(success)

    def _answers(self, rows: Sequence[int]) -> list[tuple[Any, float, bool, bool, Any]]:
        """Observation, reward, terminated, truncated and success of some rows."""
        if isinstance(self._envs, AsyncVectorEnv):  # all go on, and what has ended begins anew, unseen
            seen, *numbers, info = self._envs.step(np.stack(self._actions))
            each = list(iterate(self._envs.observation_space, seen))
            told = info.get("is_success", [None] * len(each))
            return [(each[row], *(x[row] for x in numbers), told[row]) for row in rows]
        answers = [self._envs[row].step(self._actions[row]) for row in rows]
        return [(*answer[:4], answer[4].get("is_success")) for answer in answers]
