"""Deals the steps of a job out to its contenders, one process each, and keeps what they report.

On a CPU the contenders take turns, so that all of them see the same neighbours and the same heat. A GPU's memory
holds one contender at a time: there they follow each other.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lm_job.floor import seconds
from lm_job.job import Job

BENCHMARKS = Path(__file__).parents[1]
CONTENDERS = ("grpokit", "trl", "trl-checkpointing", "plain")
PEERS = {"trl", "trl-checkpointing"}
"""Contenders that run in the peers' environment."""

ClockName = Literal["wall", "cpu"]


class UnequalError(Exception):
    """A contender did other work than the job's."""


class FailedError(Exception):
    """A contender's process ended early."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a contender.

    Attributes:
        wall: phase -> seconds.
        cpu: phase -> CPU seconds of the process.
        growth: MiB at the peak, beyond what was in use before the first step.
        tokens: new tokens.
        facts: further numbers, such as "entropy".
    """

    wall: Mapping[str, float]
    cpu: Mapping[str, float]
    growth: float
    tokens: float
    facts: Mapping[str, float]

    def by(self, clock: ClockName) -> Mapping[str, float]:
        """Phase -> seconds of a clock."""
        return self.wall if clock == "wall" else self.cpu

    def total(self, clock: ClockName) -> float:
        """Seconds of a clock."""
        return sum(self.by(clock).values())


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """What a contender did in the counted rounds.

    Attributes:
        name: of the contender.
        clock: what its seconds are.
        steps: the counted ones.
        failure: why it did not finish; empty if it did.
    """

    name: str
    clock: ClockName
    steps: Sequence[Step] = ()
    failure: str = ""

    def phases(self) -> dict[str, float]:
        """Phase -> median seconds."""
        each = [step.by(self.clock) for step in self.steps]
        return {name: statistics.median(step.get(name, 0.0) for step in each) for name in {n for s in each for n in s}}

    @property
    def seconds(self) -> float:
        """Median seconds of a step."""
        return statistics.median(step.total(self.clock) for step in self.steps)

    @property
    def per_token(self) -> float:
        """Median seconds per new token."""
        return statistics.median(step.total(self.clock) / step.tokens for step in self.steps)

    @property
    def growth(self) -> float:
        """Median growth of memory, in MiB."""
        return statistics.median(step.growth for step in self.steps)

    @property
    def creep(self) -> float:
        """The last step's growth over the first counted one's; 1: memory is flat."""
        return self.steps[-1].growth / self.steps[0].growth


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a job.

    Attributes:
        job: the job.
        entrants: in the order asked for.
        floor: the least seconds of a step on this machine.
        generate_floor: of those, the ones for generation.
        machine: "cores", "instructions", "gpu".
        versions: package -> version, of all contenders.
        rounds: the number of counted ones.
    """

    job: Job
    entrants: Sequence[Entrant]
    floor: float
    generate_floor: float
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    rounds: int


@dataclass
class Worker:
    """A contender's process."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def ask(self, line: str = "") -> dict[str, Any]:
        """The reply to a line; without one, the first reply."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            if line:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            lines = [text for text in self.log.read_text(errors="replace").splitlines() if text.strip()]
            raise FailedError(lines[-1].strip() if lines else "its process ended without a word")
        return dict(json.loads(reply))


def play(
    job: Job,
    names: Sequence[str],
    *,
    rounds: int,
    warmup: int,
    clock: ClockName,
    peers_python: Path,
    label: str = "",
) -> Result:
    """Let the contenders do the job in turns.

    Args:
        job: the job.
        names: of the contenders.
        rounds: counted steps of each.
        warmup: steps of each before those.
        clock: which seconds count.
        peers_python: the interpreter for contenders of the peers' environment.
        label: of the job, for the lines that say how far it is.

    Raises:
        UnequalError: a contender drew another number of tokens, or its entropy is another.
    """
    peaks: list[dict[str, dict[str, float]]] = []
    steps: dict[str, list[Step]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}
    together = [("peaks", *names)] if job.device == "cpu" else [("peaks",), *((name,) for name in names)]
    for some in together:
        with ExitStack() as stack:
            pythons = {name: peers_python if name in PEERS else Path(sys.executable) for name in some}
            workers = [stack.enter_context(_started(name, job, python)) for name, python in pythons.items()]
            for worker in workers:
                try:
                    ready = worker.ask()
                except FailedError as failed:
                    failures[worker.name] = str(failed)
                    continue
                versions |= ready["versions"] if worker.name != "peaks" else {}
                machine |= ready["machine"]
            for number in range(warmup + rounds):
                for worker in [w for w in workers if w.name not in failures]:
                    try:
                        reply = worker.ask("go")
                    except FailedError as failed:
                        failures[worker.name] = str(failed)
                        continue
                    if worker.name == "peaks":
                        peaks.append(reply["peaks"])
                        continue
                    step = Step(**reply)
                    steps[worker.name].append(step)
                    _check_work(job, worker.name, number, step)
                    at = f"{label} round {number + 1} of {warmup + rounds}".strip()
                    print(f"{at}: {worker.name} {step.total(clock):.2f} s, {step.growth:.0f} MiB", file=sys.stderr)
    if "peaks" in failures:
        raise FailedError(f"the machine's peaks could not be measured: {failures['peaks']}")
    _check_entropy(steps)
    best = {name: max(peak[clock][name] for peak in peaks) for name in ("flops", "bytes")}
    counted = range(warmup, warmup + rounds)
    floors = [seconds(job, job.lengths(number), best) for number in counted]
    return Result(
        job=job,
        entrants=[
            Entrant(name=name, clock=clock, steps=steps[name][warmup:], failure=failures.get(name, ""))
            for name in names
        ],
        floor=statistics.median(sum(f.values()) for f in floors),
        generate_floor=statistics.median(f["prefill"] + f["decode"] for f in floors),
        machine=machine,
        versions=versions,
        rounds=rounds,
    )


@contextmanager
def _started(name: str, job: Job, python: Path) -> Iterator[Worker]:
    """A worker, ended at the end; what it prints goes into a file."""
    own = {"OMP_NUM_THREADS": str(job.threads), "MKL_NUM_THREADS": str(job.threads), "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        environment = {**os.environ, **own, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TMPDIR": folder}
        if name in PEERS:
            environment.pop("PYTHONPATH", None)
        process = subprocess.Popen(
            [str(python), "-m", "lm_job.worker", name, job.dumps()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=BENCHMARKS,
            env=environment,
        )
        try:
            yield Worker(name=name, process=process, log=Path(log.name))
        finally:
            process.terminate()
            process.communicate()


def _check_work(job: Job, name: str, number: int, step: Step) -> None:
    """Refuse a step that drew another number of tokens."""
    wanted = sum(job.lengths(number))
    if abs(step.tokens - wanted) > 0.5:
        raise UnequalError(f"{name} drew {step.tokens:g} new tokens in step {number + 1}; the job has {wanted}.")


def _check_entropy(steps: Mapping[str, Sequence[Step]]) -> None:
    """Refuse contenders whose first entropies differ: they sample from, or score with, something else."""
    first = {name: taken[0].facts["entropy"] for name, taken in steps.items() if taken}
    if first and max(first.values()) > 1.02 * min(first.values()):
        figures = ", ".join(f"{name} {entropy:.4f}" for name, entropy in first.items())
        raise UnequalError(f"The first step's entropies differ by more than 2 %: {figures}.")


def check(job: Job) -> str:
    """Compare grpokit's loss and gradient with the plain loop's, on the same weights and tokens.

    Raises:
        UnequalError: they differ.
        FailedError: one of them could not be computed.
    """
    with _started("check", job, Path(sys.executable)) as worker:
        worker.ask()
        reply = worker.ask("go")
    if reply["problem"]:
        raise UnequalError(reply["problem"])
    return str(reply["words"])
