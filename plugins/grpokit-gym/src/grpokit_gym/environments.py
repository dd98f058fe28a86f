"""Environments of gymnasium that are played side by side, each until its own end."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import iterate
from PIL import Image

from grpokit import RunError, UsageError
from grpokit.errors import one_line, plural
from grpokit.rewards.isolation import outside_code, torch_state_kept
from grpokit_gym.answers import checked
from grpokit_gym.pictures import Film

Array = np.ndarray[Any, Any]
Vectorization = Literal["sync", "async"]

_PICTURES = (
    "For pictures it must take render_mode='rgb_array', and its render return an array [H, W, 3] of uint8. To do "
    "without, set policy.pictures: 0."
)


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
            self._middle = (actions.low + actions.high) / 2
            self._half = (actions.high - actions.low) / 2
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
        outside = bool((np.abs(decision) > 1).any())
        return np.clip(scaled, self._low, self._high), outside

    def random(self, generator: np.random.Generator) -> Array:
        """A decision [A] without a policy."""
        if self.discrete:
            return generator.integers(self.actions, size=1)
        return generator.uniform(-1, 1, self.actions).astype(np.float32)

    @contextmanager
    def at_work(self, act: str, *, remedy: str = "") -> Iterator[None]:
        """Inside runs the environment's own code; an error there names it and the act.

        Raises:
            RunError: the code raised.
            UsageError: what it returned cannot be used.
        """
        try:
            with outside_code(f"env: '{self.name}' raised in {act}", remedy=remedy):
                yield
        except RunError as error:
            if isinstance(error.__cause__, UsageError):
                raise UsageError(f"env: '{self.name}' gave a wrong answer in {act}: {error.__cause__}") from error
            raise

    def flat(self, observation: Any, act: str) -> Array:
        """An observation as numbers [O].

        Raises:
            UsageError: it does not have the size of its space, or one of its numbers is not finite.
        """
        with self.at_work(act):
            numbers = np.asarray(flatten(self._space, observation), dtype=np.float32)
        if numbers.shape != (self.observation,):
            raise UsageError(
                f"env: '{self.name}' gave an observation of {plural(numbers.size, 'number')} in {act}; its "
                f"observation_space {self._space} has {self.observation}."
            )
        wrong = np.flatnonzero(~np.isfinite(numbers))
        if wrong.size:
            raise UsageError(
                f"env: '{self.name}' gave an observation in {act} whose number {wrong[0]} is {numbers[wrong[0]]}; "
                "expected finite ones."
            )
        return numbers

    def frame(self, env: Any) -> Image.Image:
        """A picture of a state.

        Raises:
            RunError: there is none.
        """
        with self.at_work("render", remedy=_PICTURES):
            picture = Image.fromarray(env.render())
            if not all(picture.size):
                raise ValueError(f"a picture of {picture.width} x {picture.height} pixels")
        return picture

    def begin(self, seeds: Sequence[int], *, pictures: int = 0) -> Playing:
        """An episode for each seed; equal seeds start alike and meet the same chance.

        Args:
            seeds: in [0, 2**31).
            pictures: of an episode, evenly spread.

        Raises:
            RunError: the environment fails.
            UsageError: equal seeds start apart, or an observation cannot be used.
        """
        if self._async and not pictures:
            apart = self._vector(len(seeds))
            with self.at_work("reset"):
                seen, _ = apart.reset(seed=list(seeds))
            first = list(iterate(apart.observation_space, seen))
            envs: Sequence[Any] | AsyncVectorEnv = apart
        else:
            here = [self._single(i) for i in range(len(seeds))]
            first = [self._reset(env, seed) for env, seed in zip(here, seeds, strict=True)]
            envs = here
        playing = Playing(self, envs, first, pictures)
        begun: dict[int, Array] = {}
        for seed, seen in zip(seeds, playing.observations, strict=True):
            if not np.array_equal(begun.setdefault(seed, seen), seen):
                raise UsageError(
                    f"env: '{self.name}' starts the episodes of a group at different observations, though reset got "
                    "one seed for all of them. Its reset must call super().reset(seed=seed) and draw from "
                    "self.np_random alone."
                )
        return playing

    def _reset(self, env: Any, seed: int | None = None) -> Any:
        """The first observation."""
        with self.at_work("reset"):
            return env.reset(seed=seed)[0]

    def branched(self, seeds: Sequence[int], copies: int, most: int) -> Playing:
        """For each seed, episodes that part from copies of one environment after up to `most` random actions.

        Raises:
            UsageError: the environment cannot be copied.
        """
        envs, observations, env = [], [], self._single(0)
        for seed in seeds:
            generator, seen = np.random.default_rng(seed), self._reset(env, seed)
            for step in range(1, int(generator.integers(most + 1)) + 1):
                action, _ = self.action(self.random(generator))
                with self.at_work(f"step {step} before a branch"):
                    seen, _, ended, cut, _ = env.step(action)
                if ended or cut:
                    seen = self._reset(env)
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
        remedy = f" {_PICTURES}" if "render_mode" in self._options else ""
        try:
            with torch_state_kept():
                return checked(gym.make(self.name, **self._options))
        except Exception as error:  # whatever an environment's own code raises
            raise UsageError(f"env: gymnasium cannot make '{self.name}': {one_line(error)}.{remedy}") from error


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
        self.observations = np.stack([environments.flat(seen, "reset") for seen in first])
        count = len(first)
        self.open = np.ones(count, dtype=bool)
        self.rewards: list[list[float]] = [[] for _ in range(count)]
        self.truncated, self.clipped = [False] * count, 0
        self.success: list[bool | None] = [None] * count
        self._actions: list[Any] = [None] * count
        self.films = [Film(pictures) for _ in range(count)] if pictures else []

    def step(self, decisions: Array) -> None:
        """Act in all that are open: decisions [B, A]."""
        world, rows = self._environments, np.flatnonzero(self.open).tolist()
        act = f"step {len(self.rewards[rows[0]]) + 1}"
        for row in rows:
            self._actions[row], clipped = world.action(decisions[row])
            self.clipped += clipped
            if self.films:
                self.films[row].add(partial(world.frame, self._envs[row]))  # type: ignore[index]
        with world.at_work(act):
            answers = self._answers(rows)
        for row, (seen, reward, ended, cut, success) in zip(rows, answers, strict=True):
            self.observations[row] = world.flat(seen, act)
            self.rewards[row].append(float(reward))
            self.open[row] = not (ended or cut)
            self.truncated[row] = bool(cut and not ended)
            if success is not None:
                self.success[row] = bool(success)

    def _answers(self, rows: Sequence[int]) -> list[tuple[Any, float, bool, bool, Any]]:
        """Observation, reward, terminated, truncated and success of some rows."""
        if isinstance(self._envs, AsyncVectorEnv):  # all go on, and what has ended begins anew, unseen
            seen, rewards, ended, cut, info = self._envs.step(np.stack(self._actions))
            each = list(iterate(self._envs.observation_space, seen))
            reported = info.get("_is_success", [False] * len(each))  # the others have a False that nobody said
            success = [info["is_success"][row] if reported[row] else None for row in rows]
            every = list(zip(each, rewards, ended, cut, strict=True))
            return [(*every[row], told) for row, told in zip(rows, success, strict=True)]
        answers = [self._envs[row].step(self._actions[row]) for row in rows]
        return [(*answer[:4], answer[4].get("is_success")) for answer in answers]
