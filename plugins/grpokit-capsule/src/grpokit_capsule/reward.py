"""The run's end of a reward in a capsule: starts its copies, asks them, and replaces those that are lost."""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from grpokit import Portion, Sample, registry
from grpokit.errors import RewardError, UsageError, error_line
from grpokit.registry.columns import of_samples
from grpokit.rewards.remote import RewardElsewhere, ScoreRequest
from grpokit_capsule import environments
from grpokit_capsule.copy import Copy, LostError, prompt_fields


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
    if replicas < 1:
        raise UsageError(f"replicas is {replicas}; expected 1 or more.")
    if gpu is not None and gpu < 0:
        raise UsageError(f"gpu is {gpu}; expected the number of a GPU, such as 0.")
    folders = environments.folders(path)
    interpreter = environments.interpreter(requires, python, what=f"'{use}'", offline=offline)
    reward = CapsuleReward(use, params, interpreter, folders, timeout=timeout, replicas=replicas, gpu=gpu)
    reward.start()
    return reward


class CapsuleReward(RewardElsewhere):
    """A reward that processes of another environment run.

    One call has the samples of one group, and goes to a copy that is free. A copy that dies or hangs costs that group,
    and is started again.

    Args:
        use: the reward's name.
        params: its parameters.
        interpreter: of the environment.
        folders: to import from, before what is installed.
        timeout: seconds that a call may take.
        replicas: how many copies of the reward there are.
        gpu: as of `place`.

    Attributes:
        versions: of Python, the packages and the reward's code there, once it is started.
    """

    def __init__(
        self,
        use: str,
        params: Mapping[str, Any],
        interpreter: str,
        folders: list[str],
        *,
        timeout: float,
        replicas: int,
        gpu: int | None,
    ) -> None:
        super().__init__(use, params)
        self.interpreter, self.folders = interpreter, folders
        self.timeout, self.replicas, self.gpu = timeout, replicas, gpu
        self.versions: dict[str, str] = {}
        self._copies: list[Copy] = []

    def connect(self) -> list[ScoreRequest]:
        """Start the copies, and wait until each has built the reward.

        Raises:
            UsageError: the interpreter cannot be started.
            PluginError: the reward cannot be built there.
        """
        atexit.register(self.close)
        order = self._order()
        for _ in range(self.replicas):
            copy = Copy(
                f"reward '{self.use}'",
                self.interpreter,
                order,
                gpu=self.gpu,
                timeout=self.timeout,
                option="reward_timeout",
                log=environments.new_log(self.use),
            )
            self._copies.append(copy)
        for copy in self._copies:
            copy.ready()
        self.versions = self._copies[0].versions
        return [partial(_ask, copy) for copy in self._copies]

    def disconnect(self) -> None:
        """End the copies."""
        atexit.unregister(self.close)
        for copy in self._copies:
            copy.end()
        self._copies = []

    def _order(self) -> dict[str, Any]:
        """What a copy has to build, and where it finds it."""
        plugin = registry.spec_of("reward", self.use)
        module, _, name = (plugin.factory if plugin else self.use).partition(":")
        top = module.partition(".")[0]
        spec = importlib.util.find_spec(top) if plugin else None
        return {
            "kind": "reward",
            "module": module,
            "name": name,
            "parameters": dict(self.params),
            "path": self.folders,
            "folder": os.getcwd(),
            "columns": inspect.getsourcefile(of_samples),
            "modules": {top: spec.origin} if spec is not None and spec.origin else {},
        }


def _ask(copy: Copy, rows: list[int], samples: list[Sample]) -> Portion:
    """Have the samples of some rows scored.

    Raises:
        PluginError: the reward cannot be built again.
        UsageError: the samples cannot be sent.
    """
    try:
        reply = copy.exchange(_request(samples))
    except TypeError as error:
        raise UsageError(
            f"samples cannot be sent to its capsule: {error}. Leave that out of the prompts, or write it as text."
        ) from error
    except LostError as error:
        return Portion(rows=rows, failure=str(error))
    except (OSError, ValueError) as error:  # such as a picture whose file is cut
        return Portion(rows=rows, failure=f"could not be sent its samples: {error_line(error)},", cause=error)
    if "error" in reply:
        return Portion(rows=rows, error=RewardError(reply["error"], page="guards#while-it-runs"))
    return Portion(rows=rows, values=reply.get("values"), failure=reply.get("failure", ""))


def _request(samples: list[Sample]) -> dict[str, Any]:
    """Samples as a message; those of one prompt share it."""
    places: dict[int, int] = {}
    prompts: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for sample in samples:
        prompt = sample.prompt
        if id(prompt) not in places:
            places[id(prompt)] = len(prompts)
            prompts.append(prompt_fields(prompt))
        rows.append([places[id(prompt)], sample.output, sample.group, sample.info])
    return {"prompts": prompts, "samples": rows}
