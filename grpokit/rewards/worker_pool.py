"""Runs a reward in processes of its own, so that a crash or a hang costs one answer and not the run.

Each process is new ("spawn"), builds the reward by its name, and has a pipe of its own: a killed process holds no lock
and takes no other's answer with it. The portions of samples do not depend on the number of processes, so neither order
nor scores do.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from typing import Any

from grpokit import registry
from grpokit.errors import UsageError
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.asking import Asking
from grpokit.rewards.scoring import score
from grpokit.rewards.submission import Pending, by_group
from grpokit.rewards.terms import RewardTerm
from grpokit.rewards.worker_supervisor import Worker
from grpokit.types import Sample


class PooledReward:
    """A reward that runs in worker processes.

    A script that makes one keeps its own code under `if __name__ == "__main__":`, as always with "spawn".

    Args:
        use: a plugin's name for the reward, or "package.module:function".
        params: for its factory.
        workers: how many processes.
        timeout: seconds that one call may take before its process is ended; None: any time.
        per_sample: whether a call gets one row; else it gets a whole group. By default what the plugin's spec says,
            and whole groups for a reward without a spec.

    Raises:
        UsageError: numbers out of range.
    """

    def __init__(
        self,
        use: str,
        params: Mapping[str, Any] | None = None,
        *,
        workers: int = 1,
        timeout: float | None = None,
        per_sample: bool | None = None,
    ) -> None:
        if workers < 1:
            raise UsageError(f"workers must be at least 1, got {workers}.")
        if timeout is not None and not timeout > 0:
            raise UsageError(f"reward_timeout must be above 0 seconds, got {timeout}.")
        self.use, self.params, self.workers, self.timeout = use, dict(params or {}), workers, timeout
        spec = registry.spec_of("reward", use)
        announced = isinstance(spec, RewardSpec) and spec.per_sample
        self.per_sample = announced if per_sample is None else per_sample
        self._processes: list[Worker] = []
        self._asking: Asking | None = None

    def start(self) -> None:
        """Start the processes and wait until the reward stands in one of them.

        Raises:
            PluginError, UsageError: it cannot be built, or the machine has no room for so many processes.
        """
        if self._asking is not None:
            return
        try:
            for _ in range(self.workers):
                self._processes.append(Worker(self.use, self.params, self.timeout))
            self._processes[0].ready()
        except BaseException:
            self._end()
            raise
        self._asking = Asking([process.ask for process in self._processes])
        atexit.register(self.close)  # before multiprocessing's own end, which would wait for a reward that hangs

    def submit(self, samples: Sequence[Sample]) -> Pending:
        """Hand out samples and return at once."""
        self.start()
        assert self._asking is not None
        return self._asking.submit(self._portions(samples), samples)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Raises:
            RewardError: the reward failed on a row, which is named, or gave it something else than a number.
        """
        column = score([RewardTerm(name=self.use, reward=self)], samples).matrix[:, 0].tolist()
        return [float(x) for x in column]

    def close(self) -> None:
        """End the processes; a later call starts new ones."""
        atexit.unregister(self.close)
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()
        self._end(asking)

    def _end(self, asking: Asking | None = None) -> None:
        """End the processes, and the threads that wait for them."""
        for process in self._processes:
            process.end()
        if asking is not None:
            asking.join(timeout=5)
        for process in self._processes:
            process.join()
        self._processes = []

    def _portions(self, samples: Sequence[Sample]) -> list[list[int]]:
        if self.per_sample:
            return [[row] for row in range(len(samples))]
        return by_group(samples)
