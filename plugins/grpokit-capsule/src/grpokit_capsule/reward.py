"""The run's end of a reward in a capsule: starts its copies, asks them, and replaces those that are lost."""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from grpokit import registry
from grpokit.errors import UsageError
from grpokit.registry.columns import of_samples
from grpokit.rewards.remote import RewardElsewhere, ScoreRequest
from grpokit_capsule import environments
from grpokit_capsule.copy import Copy
from grpokit_capsule.environments import Needs

_OF_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def place(
    use: str,
    params: Mapping[str, Any],
    timeout: float,
    *,
    requires: str | Sequence[str] = (),
    python: str | None = None,
    path: str | None = None,
    replicas: int = 1,
    gpu: int | None = None,
    offline: bool = False,
) -> CapsuleReward:
    """What `placement: {capsule: ...}` builds.

    Args:
        use: the reward's name.
        params: its parameters.
        timeout: seconds that a call may take.
        requires: what it needs: a list such as ["hpsv2==1.2.0"], or the path of a requirements.txt.
        python: a version such as "3.10", bounds such as ">=3.9,<3.12", or the path of an interpreter; by default the
            run's version. Without `requires`, a path means the interpreter of an environment that is used as it is.
        path: a folder to import from, before what is installed. The working folder comes last.
        replicas: how many copies of the reward there are.
        gpu: the number of the GPU that it sees; by default it sees what the run sees, and with torchrun the GPU of
            its process.
        offline: whether to build from the packages in uv's own cache alone.
    """
    reward = CapsuleReward(
        use,
        params,
        timeout=timeout,
        requires=requires,
        python=python,
        path=path,
        replicas=replicas,
        gpu=gpu,
        offline=offline,
    )
    reward.start()
    return reward


class CapsuleReward(RewardElsewhere):
    """A reward that processes of another environment run.

    One call has the samples of one group, and goes to a copy that is free. A copy that dies or hangs costs that group,
    and is started again. The arguments are those of `place`.

    Raises:
        UsageError: options that are out of range.
    """

    def __init__(
        self,
        use: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float = 600.0,
        requires: str | Sequence[str] = (),
        python: str | None = None,
        path: str | None = None,
        replicas: int = 1,
        gpu: int | None = None,
        offline: bool = False,
    ) -> None:
        super().__init__(use, params)
        if replicas < 1:
            raise UsageError(f"replicas is {replicas}; expected 1 or more.")
        if path is not None and not Path(path).expanduser().is_dir():
            raise UsageError(f"path is {path!r}; expected a folder.")
        self.timeout, self.replicas, self.offline = timeout, replicas, offline
        self.requires, self.python, self.path, self.gpu = requires, python, path, gpu
        self.versions: dict[str, str] = {}
        self._copies: list[Copy] = []

    def connect(self) -> list[ScoreRequest]:
        """Build the environment, start the copies, and wait until each has built the reward.

        Raises:
            UsageError: the environment cannot be built.
            PluginError: the reward cannot be built there.
        """
        atexit.register(self.close)
        interpreter = self._interpreter()
        order = self._order()
        variables = _variables(self.gpu)
        for number in range(self.replicas):
            copy = Copy(
                self.use,
                interpreter,
                order,
                variables=variables,
                timeout=self.timeout,
                log=environments.log_of(self.use, number),
            )
            self._copies.append(copy)
        for copy in self._copies:
            copy.ready()
        self.versions = self._copies[0].versions
        return [copy.ask for copy in self._copies]

    def disconnect(self) -> None:
        """End the copies."""
        atexit.unregister(self.close)
        for copy in self._copies:
            copy.end()
        self._copies = []

    def _interpreter(self) -> str:
        """The Python that runs the reward."""
        file = environments.ready_made(self.requires, self.python)
        if file is None:
            needs = Needs.of(self.requires, self.python)
            file = environments.environment(needs, what=f"'{self.use}'", offline=self.offline).python
        return str(file)

    def _order(self) -> dict[str, Any]:
        """What a copy has to build, and where it finds it."""
        plugin = registry.spec_of("reward", self.use)
        module, _, name = (plugin.factory if plugin else self.use).partition(":")
        top = module.partition(".")[0]
        spec = importlib.util.find_spec(top) if plugin else None
        return {
            "module": module,
            "name": name,
            "parameters": dict(self.params),
            "path": [str(Path(self.path).expanduser().absolute())] if self.path else [],
            "folder": os.getcwd(),
            "columns": inspect.getsourcefile(of_samples),
            "modules": {top: spec.origin} if spec is not None and spec.origin else {},
        }


def _variables(gpu: int | None) -> dict[str, str]:
    """The environment variables of a copy, which is no process of torchrun."""
    variables = environments.without_own_packages()
    rank = variables.get("LOCAL_RANK", "")
    if gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = str(gpu)
    elif rank.isdecimal():  # each process has a GPU of its own, and its rewards share it
        every = ",".join(map(str, range(torch.cuda.device_count())))
        seen = variables.get("CUDA_VISIBLE_DEVICES", every).split(",")
        variables["CUDA_VISIBLE_DEVICES"] = seen[int(rank) % len(seen)]
    return {name: value for name, value in variables.items() if name not in _OF_TORCHRUN}
