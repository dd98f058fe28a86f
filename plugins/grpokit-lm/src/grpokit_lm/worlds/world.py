"""What a world is, and how a policy's settings name one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from grpokit import Prompt, UsageError, create
from grpokit.errors import brief
from grpokit.rewards.isolation import outside_code
from grpokit.settings import Count, Settings

Message = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A text, which is a user's message; a message of a chat template; or a list of such messages."""

Errors = Literal["stop", "message", "end"]
"""What an error in `World.reply` does: stop the run, become the world's next message, or end the episode."""


class World(Protocol):
    """What a language model talks to. Each episode has an instance of its own.

    Three further members are optional. `tools` is a list of JSON schemas, which the chat template shows to the model.
    `facts()` is called after the end, and returns a mapping that goes into `Sample.info`, such as
    `{"return": 1.0, "success": True}`. `close()` is the last call of each world that `start` was called of, also after
    an error, and where nothing but the start was looked at: it gives back what the world has opened.
    """

    def start(self, prompt: Prompt, seed: int) -> Message | None:
        """What the model reads in place of the prompt; None for the prompt as it is.

        Args:
            prompt: from the data.
            seed: of the episode's group. All chance must come from it, so that the group's episodes start alike.
        """
        ...

    def reply(self, text: str) -> Message | None:
        """The answer to what the model wrote in this turn; None ends the episode."""
        ...


WorldName = str | Mapping[str, Any] | Callable[[], World]
"""A name, a mapping with `use` and the world's parameters, or in Python a class or function without arguments."""


@dataclass(frozen=True, kw_only=True)
class WorldSettings(Settings):
    """What a language model talks to.

    Attributes:
        world: what answers the model's turns, such as {"use": "guess-the-number"}; in Python also a class. None: a
            completion is one turn.
        max_turns: the most turns of the model with a world.
        world_errors: what an error in a world's `reply` does: "stop" the run, become the world's next "message", or
            "end" the episode.
    """

    world: WorldName | None = None
    max_turns: Count = 10
    world_errors: Errors = "stop"

    def check_together(self) -> None:
        """Refuse a mapping that names no world.

        Raises:
            UsageError: with an example.
        """
        if isinstance(self.world, Mapping) and not isinstance(self.world.get("use"), str):
            raise UsageError(
                f"world must name a world, as in {{use: guess-the-number}}, got {brief(dict(self.world))}."
            )


class Worlds:
    """Makes the worlds of a policy, and talks to them.

    Args:
        world: which.
    """

    def __init__(self, world: WorldName) -> None:
        self.world = world

    @property
    def name(self) -> str:
        """How messages call the world."""
        if isinstance(self.world, Mapping):
            return str(self.world["use"])
        return self.world if isinstance(self.world, str) else getattr(self.world, "__name__", str(self.world))

    def make(self) -> World:
        """A new world.

        Raises:
            PluginError: no world has this name, or it cannot be built.
            UsageError: it lacks `start` or `reply`.
        """
        world: World
        if callable(self.world):
            world = self.world()
        else:
            params = dict(self.world) if isinstance(self.world, Mapping) else {}
            params.pop("use", None)
            world = create("world", self.name, params)
        lacking = [name for name in ("start", "reply") if not callable(getattr(world, name, None))]
        if lacking:
            raise UsageError(
                f"The world '{self.name}' has no method {' and no '.join(lacking)}. A world needs "
                "start(prompt, seed) and reply(text)."
            )
        return world

    def tools(self) -> list[Mapping[str, Any]]:
        """The JSON schemas of the world's tools."""
        return list(getattr(self.make(), "tools", ()))

    def start(self, world: World, prompt: Prompt, seed: int) -> Message | None:
        """What the model reads first.

        Raises:
            RunError: the world failed.
        """
        with outside_code(f"The world '{self.name}' failed to start"):
            return world.start(prompt, seed)

    def close(self, world: World) -> None:
        """Let a world give back what it has opened.

        Raises:
            RunError: the world failed.
        """
        with outside_code(f"The world '{self.name}' failed in close"):
            if hasattr(world, "close"):
                world.close()
