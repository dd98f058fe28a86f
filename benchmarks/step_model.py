"""The time of a step on several processes: each works on its groups, and all wait for the slowest where they meet.

A step is a row of stretches. In a stretch a process works alone, for a time that depends on its number of groups; then
all meet. Besides the meetings there is one sum of gradients per update, around a ring.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Seconds = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Ring:
    """What connects the processes.

    Attributes:
        bandwidth: bytes per second over its slowest link, in one direction.
        latency: seconds that a message takes from one process to the next.
    """

    bandwidth: float
    latency: float

    def total(self, size: int, content: float) -> float:
        """Seconds of a sum over all processes, of so many bytes in each."""
        return sent_by_sum(size, content) / self.bandwidth + 2 * (size - 1) * self.latency

    def gathering(self, size: int, content: float = 0.0) -> float:
        """Seconds until each process has the bytes of all, which are so many in all; their lengths go around first."""
        return sent_by_gathering(size, content) / self.bandwidth + 2 * (size - 1) * self.latency


def sent_by_sum(size: int, content: float) -> float:
    """Bytes that each process sends for a sum of so many bytes."""
    return 2 * (size - 1) / size * content


def sent_by_gathering(size: int, content: float) -> float:
    """Bytes that each process sends until each has all of so many bytes."""
    return (size - 1) / size * content


@dataclass(frozen=True, kw_only=True)
class Step:
    """The work of a step.

    Attributes:
        groups: of all processes.
        work: number of groups -> phase -> seconds of a process that has them.
        stretches: the phases between one meeting and the next.
        meetings: how often processes meet; each passes small messages around the ring.
        gradients: bytes of the gradients that are summed.
        updates: how often they are summed.
        slow: rank -> how many times longer this process takes; 1 if it is not named.
    """

    groups: int
    work: Callable[[int], Seconds]
    stretches: Sequence[Sequence[str]]
    meetings: int = 0
    gradients: float = 0.0
    updates: int = 1
    slow: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """How long a step takes.

    Attributes:
        phases: phase -> seconds of the process that takes longest.
        network: seconds of meetings and sums.
        seconds: of the whole step.
        waiting: the mean share of the step in which a process waits for others.
    """

    phases: Seconds
    network: float
    seconds: float
    waiting: float


def share(groups: int, rank: int, size: int) -> int:
    """How many groups a process has, as `World.share` gives them out."""
    return groups * (rank + 1) // size - groups * rank // size


def simulate(step: Step, size: int, ring: Ring) -> Prediction:
    """A step on `size` processes."""
    own = []
    for rank in range(size):
        groups, factor = share(step.groups, rank, size), step.slow.get(rank, 1.0)
        own.append({name: factor * seconds for name, seconds in step.work(groups).items()} if groups else {})
    alone = [[sum(phases.get(name, 0.0) for name in stretch) for phases in own] for stretch in step.stretches]
    network = 0.0
    if size > 1:
        network = step.meetings * ring.gathering(size) + step.updates * ring.total(size, step.gradients)
    work = sum(map(max, alone))
    waiting = sum(max(times) - statistics.fmean(times) for times in alone)
    names = dict.fromkeys(name for phases in own for name in phases)
    return Prediction(
        phases={name: max(phases.get(name, 0.0) for phases in own) for name in names},
        network=network,
        seconds=work + network,
        waiting=waiting / (work + network),
    )


def line(points: Mapping[int, Seconds]) -> Callable[[int], Seconds]:
    """Seconds by number of groups: a fixed part and one per group, through two measured numbers of groups.

    Raises:
        ValueError: there are not two.
    """
    (few, at_few), (many, at_many) = sorted(points.items())

    def work(groups: int) -> Seconds:
        part = (groups - few) / (many - few)
        return {name: max(0.0, at_few[name] + part * (at_many[name] - at_few[name])) for name in at_few}

    return work
