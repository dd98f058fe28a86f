"""The run's end of a reward in a Ray cluster: starts its replicas, asks them, and replaces those that are lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from grpokit import Portion, Sample
from grpokit.errors import PluginError, UsageError, brief, error_line, one_line, plural
from grpokit.rewards.remote import RewardElsewhere, ScoreRequest
from grpokit.rewards.submission import from_message
from grpokit_ray import cluster
from grpokit_ray.replica import Replica

_log = logging.getLogger(__name__)
_SILENT = 10.0  # seconds to wait for replicas without a word
_TRIES = 3  # replicas that one group may have, if they die of it


def place(
    use: str,
    params: Mapping[str, Any],
    timeout: float,
    *,
    replicas: int = 1,
    gpus: float = 0.0,
    cpus: float = 1.0,
    pip: Sequence[str] = (),
    address: str | None = None,
) -> RayReward:
    """What `placement: {ray: ...}` builds."""
    reward = RayReward(use, params, timeout=timeout, replicas=replicas, gpus=gpus, cpus=cpus, pip=pip, address=address)
    reward.start()
    return reward


class RayReward(RewardElsewhere):
    """A reward that actors of a Ray cluster run.

    One call has the samples of one group, and goes to a replica that is free. A replica that dies is replaced, and its
    group is asked again.

    Args:
        use: a plugin's name for the reward, or "package.module:function".
        params: for its factory.
        replicas: how many actors.
        gpus: for each replica; a share of one, or a whole number.
        cpus: likewise.
        pip: packages that a replica's own environment has besides those of the cluster.
        address: of the cluster; None: `RAY_ADDRESS`, or else a Ray of this process's own, which ends with it.
        timeout: seconds that a call may take, and that the replicas may take to stand.

    Raises:
        UsageError: numbers out of range, or packages that are no list of texts.
    """

    def __init__(
        self,
        use: str,
        params: Mapping[str, Any] | None = None,
        *,
        replicas: int = 1,
        gpus: float = 0.0,
        cpus: float = 1.0,
        pip: Sequence[str] = (),
        address: str | None = None,
        timeout: float = 600.0,
    ) -> None:
        super().__init__(use, params)
        if replicas < 1:
            raise UsageError(f"replicas is {replicas}; expected 1 or more.")
        for name, share in (("gpus", gpus), ("cpus", cpus)):
            if share < 0 or (share > 1 and share != int(share)):
                raise UsageError(f"{name} is {share}; expected a share such as 0.25, or a whole number.")
        if isinstance(pip, str) or not all(isinstance(package, str) for package in pip):
            raise UsageError(f"pip is {brief(pip)}; expected a list of packages, such as ['open-clip-torch==3.2.0'].")
        self.replicas, self.timeout = replicas, timeout
        self.gpus, self.cpus, self.pip, self.address = gpus, cpus, list(pip), address
        self._actors: list[Any] = []

    def connect(self) -> list[ScoreRequest]:
        """Start the replicas and wait until each of them has built the reward.

        Raises:
            UsageError: there is no Ray, or it has no room.
            PluginError: the reward cannot be built there.
        """
        self._actors = []
        cluster.connect(self, {"CPU": self.cpus * self.replicas, "GPU": self.gpus * self.replicas}, self.address)
        self._actors = [self._actor() for _ in range(self.replicas)]
        self._wait()
        return [partial(self._ask, number) for number in range(self.replicas)]

    def disconnect(self) -> None:
        """End the replicas, and Ray if it was started for them."""
        for actor in self._actors:
            _kill(actor)
        cluster.disconnect(self)

    def _actor(self) -> Any:
        environment = {"runtime_env": {"pip": self.pip}} if self.pip else {}
        kind = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, **environment)(Replica)
        return kind.remote(self.use, self.params)

    def _wait(self) -> None:
        """Wait until all replicas have built the reward."""
        pending = [actor.built.remote() for actor in self._actors]
        silent = min(_SILENT, self.timeout)
        ready, late = ray.wait(pending, num_returns=len(pending), timeout=silent)
        if late:
            _log.warning("%s; waiting for up to %g s (reward_timeout).", self._standing(len(ready)), self.timeout)
            ready, late = ray.wait(pending, num_returns=len(pending), timeout=self.timeout - silent)
        for built in ready:
            try:
                wrong = from_message([], json.loads(ray.get(built))).error
            except RayError as error:
                raise PluginError(f"The reward '{self.use}' cannot be built in a Ray actor: {_why(error)}") from error
            if wrong is not None:
                raise wrong
        if late:
            raise UsageError(
                f"{self._standing(len(ready))}, after {self.timeout:g} s (reward_timeout). Set fewer replicas or a "
                "smaller share, or wait longer."
            )

    def _standing(self, ready: int) -> str:
        """How many replicas there are, and what the others may wait for."""
        free, there = ray.available_resources(), ray.cluster_resources()
        shares = [f"{free.get(name, 0):g} of {there.get(name, 0):g} {name}" for name in ("CPU", "GPU")]
        return (
            f"Only {ready} of {plural(self.replicas, 'replica')} for '{self.use}' stand in the Ray cluster. Each "
            f"needs {self.cpus:g} CPU and {self.gpus:g} GPU, and {' and '.join(shares)} are free there"
        )

    def _ask(self, number: int, rows: list[int], samples: list[Sample]) -> Portion:
        """Have samples scored by a replica, or by the one that takes its place."""
        try:
            stored = ray.put(samples)
        except Exception as error:  # a sample may hold anything
            raise UsageError(
                f"samples cannot be sent to its replica ({error_line(error)}). Remove `placement`, so that it runs in "
                "the run's own process."
            ) from error
        loss = ""
        for _ in range(_TRIES):
            try:
                answer = self._actors[number].score.remote(rows, stored)
                return from_message(rows, json.loads(ray.get(answer, timeout=self.timeout)))
            except GetTimeoutError:
                self._replace(number)
                return Portion(rows=rows, failure=f"gave no answer within {self.timeout:g} s (reward_timeout)")
            except RayTaskError as error:  # a sample's class may not be importable there
                raise UsageError(
                    f"samples cannot be read in its replica ({_why(error)}). Remove `placement`, so that it runs in "
                    "the run's own process."
                ) from error
            except RayError as error:
                loss = _why(error)
            if not self._threads:  # it was closed meanwhile
                break
            self._replace(number)
        return Portion(rows=rows, failure=f"lost {plural(_TRIES, 'replica')} in a row: {loss}")

    def _replace(self, number: int) -> None:
        _kill(self._actors[number])
        self._actors[number] = self._actor()


def _kill(actor: Any) -> None:
    with suppress(RayError, ValueError):  # it is dead already
        ray.kill(actor)


def _why(error: RayError) -> str:
    """What Ray says, on one line."""
    return one_line(error)
