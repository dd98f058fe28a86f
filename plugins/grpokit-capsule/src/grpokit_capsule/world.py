"""The run's end of worlds in a capsule. All episodes of the run's process live in one process there."""

from __future__ import annotations

import atexit
import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpokit import Prompt, UsageError
from grpokit_capsule import environments
from grpokit_capsule.copy import Copy, LostError, prompt_fields

_INSIDE = str(Path(__file__).parent / "inside")  # worlds that are made of other libraries' environments
_NUMBERS = itertools.count(1)  # of the worlds
_processes: dict[str, Copy] = {}


class CapsuleWorld:
    """A world that lives in a process of another environment, which it shares with those of the other episodes.

    Where the process is lost, so are the worlds that were open. The next one to start gets a new process.

    Args:
        world: a class or function there that makes a world, as "package.module:Name".
        requires: what it needs: a list such as ["textworld==1.6"], or the path of a requirements.txt.
        python: a version such as "3.10", bounds such as ">=3.9,<3.12", or the path of an interpreter; by default the
            run's version. Without `requires`, a path means the interpreter of an environment that is used as it is.
        path: a folder to import from, before what is installed. The working folder comes last.
        gpu: the number of the GPU that it sees; by default it sees what the run sees.
        offline: whether to build from the packages in uv's own cache alone.
        timeout: seconds that a call may take.
        parameters: those of the world itself.

    Attributes:
        tools: the JSON schemas of the world's tools.

    Raises:
        UsageError: the environment cannot be built.
        PluginError: the world cannot be built there.
    """

    def __init__(
        self,
        world: str,
        *,
        requires: str | Sequence[str] = (),
        python: str | None = None,
        path: str | None = None,
        gpu: int | None = None,
        offline: bool = False,
        timeout: float = 600.0,
        **parameters: Any,
    ) -> None:
        key = repr((world, requires, python, path, gpu, offline, timeout, parameters, os.getcwd()))
        if key not in _processes:
            python = environments.interpreter(requires, python, what=f"world '{world}'", offline=offline)
            order = _order(world, path, parameters)
            log = environments.new_log(world)
            copy = Copy(f"world '{world}'", python, order, gpu=gpu, timeout=timeout, option="timeout", log=log)
            atexit.register(copy.end)
            copy.ready()
            _processes[key] = copy
        self._copy = _processes[key]
        self.tools: list[Any] = self._copy.tools
        self._number = next(_NUMBERS)
        self._process = 0  # not started yet
        self._facts: Any = {}

    def start(self, prompt: Prompt, seed: int) -> Any:
        """As `grpokit_lm.worlds.world.World.start`."""
        try:
            return self._answer("start", prompt_fields(prompt), seed)
        finally:
            self._process = self._copy.process or 0

    def reply(self, text: str) -> Any:
        """As `grpokit_lm.worlds.world.World.reply`."""
        message = self._open("reply", text)
        if message is None:  # what it says of the episode stays, should another one cost the process
            with suppress(Exception):  # is raised again when it is asked for
                self._facts = self._open("facts")
        return message

    def facts(self) -> Any:
        """What the world says of the episode; nothing where it was lost before its end."""
        with suppress(LostError):
            self._facts = self._facts or self._open("facts")
        return self._facts

    def close(self) -> None:
        """Let the world give back what it has opened."""
        with suppress(LostError):
            self._open("close")

    def _open(self, name: str, *arguments: Any) -> Any:
        """Call a method of a world that was started."""
        if self._copy.process != self._process:
            raise LostError("it was lost with the process of its capsule")
        return self._answer(name, *arguments)

    def _answer(self, name: str, *arguments: Any) -> Any:
        reply = self._copy.exchange([self._number, name, [*arguments]])
        if "raised" in reply:
            kind, text = reply["raised"]
            raise type(kind, (Exception,), {})(text)
        return reply["value"]


def _order(world: str, path: str | None, parameters: dict[str, Any]) -> dict[str, Any]:
    """What the process has to build, and where it finds it."""
    module, _, name = world.partition(":")
    if not name:
        raise UsageError(f"world is {world!r}; expected a class such as 'my_world:World'.")
    return {
        "kind": "world",
        "module": module,
        "name": name,
        "parameters": parameters,
        "path": [*environments.folders(path), _INSIDE],
        "folder": os.getcwd(),
        "modules": {},
    }


def openenv(environment: str, *, action: str = "", show: str = "", **options: Any) -> CapsuleWorld:
    """A world that is an environment of OpenEnv, in a capsule.

    Args:
        environment: the class that its server serves, as "package.module:Name".
        action: the class of its actions, if its `step` does not declare it.
        show: the field of an observation that the model reads; by default all, as JSON.
        options: those of `CapsuleWorld` but `world`, and the environment's own parameters.
    """
    return CapsuleWorld("grpokit_openenv:World", environment=environment, action=action, show=show, **options)


def verifiers(environment: Mapping[str, Any], **options: Any) -> CapsuleWorld:
    """A world that is an environment of verifiers, in a capsule.

    Args:
        environment: its config, such as {"taskset": {"id": "my_tasks"}}.
        options: those of `CapsuleWorld` but `world`.
    """
    return CapsuleWorld("grpokit_verifiers:World", environment=dict(environment), **options)
