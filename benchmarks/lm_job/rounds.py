"""Deals the steps of jobs out to their contenders, one process each, and keeps what they report.

On a CPU the contenders take turns, so that all of them see the same neighbours and the same heat. A GPU's memory
holds one contender at a time: there they follow each other. The jobs of a sweep follow each other, too, since the
processes of all of them would not fit into memory together. On a CPU the first contender of the first job stays, and
takes a step in every round of the other jobs: their times are compared with those of its steps in the same rounds.
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
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from lm_job.floor import Peaks, best, seconds
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
        floor_per_token: the least seconds per new token.
        pace: seconds per new token of the first contender on the first job, in the rounds of this job; None on a GPU.
        machine: "cores", "instructions", "gpu".
        versions: package -> version, of all contenders.
        rounds: the number of counted ones.
    """

    job: Job
    entrants: Sequence[Entrant]
    floor: float
    generate_floor: float
    floor_per_token: float
    pace: float | None
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    rounds: int


@dataclass(kw_only=True)
class Worker:
    """A contender's process.

    Attributes:
        name: of the contender; "peaks" measures the machine.
        label: of the job.
        job: the job.
        process: the process.
        log: the file of what it prints.
        ready: what it says of its machine and its packages.
        steps: those that it has taken.
        failure: why it takes no more; empty while it does.
    """

    name: str
    label: str
    job: Job
    process: subprocess.Popen[str]
    log: Path
    ready: Mapping[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    failure: str = ""

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
    jobs: Mapping[str, Job],
    names: Sequence[str],
    *,
    rounds: int,
    warmup: int,
    clock: ClockName,
    peers_python: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Result]:
    """Let the contenders do jobs in turns.

    Args:
        jobs: label -> job.
        names: of the contenders.
        rounds: counted steps of each.
        warmup: steps of each before those.
        clock: which seconds count.
        peers_python: the interpreter for contenders of the peers' environment.
        environment: further variables of all processes.

    Returns:
        Label -> result. All floors are those of the highest peaks that were measured in any job's rounds.

    Raises:
        UnequalError: a contender drew another number of tokens, its entropy is another, it draws other tokens, or its
            packages have other versions.
        FailedError: the machine's peaks could not be measured.
    """
    peaks: list[Peaks] = []
    played: dict[str, list[Worker]] = {}
    paces: dict[str, float] = {}
    with ExitStack() as sweep:
        first: Worker | None = None  # of the first job
        for label, job in jobs.items():
            played[label] = []
            on_cpu = job.device == "cpu"
            for some in [("peaks", *names)] if on_cpu else [("peaks",), *((name,) for name in names)]:
                with ExitStack() as stack:
                    here: list[Worker] = []
                    for name in some:
                        stays = on_cpu and len(jobs) > 1 and len(played) == 1 and name == names[0]
                        python = peers_python if name in PEERS else Path(sys.executable)
                        worker = (sweep if stays else stack).enter_context(
                            started(name, label, job, python, environment)
                        )
                        first = worker if stays else first
                        here.append(worker)
                    for worker in here:
                        _begin(worker)
                    _versions([worker.ready["versions"] for worker in [*played[label], *here] if worker.ready])
                    compared = [] if first is None or first in here else [first]
                    for number in range(warmup + rounds):
                        for worker in [*here, *compared]:
                            peaks += _turn(worker, f"round {number + 1} of {warmup + rounds}", clock)
                played[label] += here
            _check_alike({worker.name: worker.steps for worker in played[label]})
            if first is not None and not first.failure:
                paces[label] = _entrant(first, clock, first.steps[-rounds:], rounds).per_token
    counted, highest = slice(warmup, warmup + rounds), best(peaks)
    return {
        label: _result(workers, clock, counted, pace=paces.get(label), peaks=highest)
        for label, workers in played.items()
    }


def _begin(worker: Worker) -> None:
    """Wait until a contender is ready."""
    try:
        worker.ready = worker.ask()
    except FailedError as failed:
        worker.failure = str(failed)


def _turn(worker: Worker, number: str, clock: ClockName) -> list[Peaks]:
    """Let a contender take a step; returns the machine's peaks, where it measures those."""
    if worker.failure and worker.name != "peaks":
        return []
    try:
        reply = worker.ask("go")
    except FailedError as failed:
        if worker.name == "peaks":
            raise FailedError(f"the machine's peaks could not be measured: {failed}") from failed
        worker.failure = str(failed)
        return []
    if worker.name == "peaks":
        return [reply["peaks"][clock]]
    step = Step(**reply)
    _check_work(worker.job, worker.name, len(worker.steps), step)
    worker.steps.append(step)
    at = f"{worker.label} {number}".strip()
    print(f"{at}: {worker.name} {step.total(clock):.2f} s, {step.growth:.0f} MiB", file=sys.stderr)
    return []


def _entrant(worker: Worker, clock: ClockName, steps: Sequence[Step], rounds: int) -> Entrant:
    """What a contender did; one that failed after its rounds, beside a later job, has done them."""
    return Entrant(name=worker.name, clock=clock, steps=steps, failure=worker.failure if len(steps) < rounds else "")


def _result(workers: Sequence[Worker], clock: ClockName, counted: slice, *, pace: float | None, peaks: Peaks) -> Result:
    """What came of a job; one of the workers measured the machine."""
    job = workers[0].job
    lengths = [job.lengths(number) for number in range(counted.start, counted.stop)]
    floors = [seconds(job, each, peaks) for each in lengths]
    ready = [worker.ready for worker in workers if worker.ready]
    return Result(
        job=job,
        entrants=[
            _entrant(worker, clock, worker.steps[counted], len(lengths)) for worker in workers if worker.name != "peaks"
        ],
        floor=statistics.median(sum(f.values()) for f in floors),
        generate_floor=statistics.median(f["prefill"] + f["decode"] for f in floors),
        floor_per_token=statistics.median(sum(f.values()) / sum(e) for f, e in zip(floors, lengths, strict=True)),
        pace=pace,
        machine={key: value for one in ready for key, value in one["machine"].items()},
        versions=_versions([one["versions"] for one in ready]),
        rounds=len(lengths),
    )


def _versions(each: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Package -> version, where all contenders that have it have the same."""
    found: dict[str, str] = {}
    for name, version in (pair for versions in each for pair in versions.items()):
        if found.setdefault(name, version).split("+")[0] != version.split("+")[0]:
            raise UnequalError(f"Contenders have {name} {found[name]} and {version}: run `lm.py --prepare` again.")
    return found


@contextmanager
def started(
    name: str,
    label: str,
    job: Any,
    python: Path,
    further: Mapping[str, str] = MappingProxyType({}),
    *,
    module: str = "lm_job.worker",
) -> Iterator[Worker]:
    """A worker, ended at the end; what it prints goes into a file.

    Args:
        name: of the contender.
        label: of the job.
        job: with `threads`, `device` and `dumps`.
        python: the interpreter.
        further: variables of its environment.
        module: what it runs, as `python -m MODULE NAME JOB`.
    """
    own = {"OMP_NUM_THREADS": str(job.threads), "MKL_NUM_THREADS": str(job.threads), "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        environment = {**os.environ, **own, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TMPDIR": folder}
        if job.device == "cuda":  # TRL would spread over all that it sees
            environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        environment |= further
        if name in PEERS:
            environment.pop("PYTHONPATH", None)
        process = subprocess.Popen(
            [str(python), "-m", module, name, job.dumps()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=BENCHMARKS,
            env=environment,
        )
        try:
            yield Worker(name=name, label=label, job=job, process=process, log=Path(log.name))
        finally:
            process.terminate()
            process.communicate()


def _check_work(job: Job, name: str, number: int, step: Step) -> None:
    """Refuse a step that drew another number of tokens."""
    wanted = sum(job.lengths(number))
    if abs(step.tokens - wanted) > 0.5:
        raise UnequalError(f"{name} drew {step.tokens:g} new tokens in step {number + 1}; the job has {wanted}.")


def _check_alike(steps: Mapping[str, Sequence[Step]]) -> None:
    """Refuse contenders that score with something else, which their first entropies show, or draw from something else.

    With other truncation or temperature, the numbers of different tokens in the first step are further apart than six
    standard deviations, of which each is less than the root of the number.
    """
    first = {name: taken[0].facts for name, taken in steps.items() if taken}
    for fact, what in (("entropy", "entropies"), ("distinct", "numbers of different tokens")):
        values = {name: facts[fact] for name, facts in first.items()}
        least, most = min(values.values(), default=0), max(values.values(), default=0)
        if most - least > (0.002 * most if fact == "entropy" else 6 * most**0.5):
            figures = ", ".join(f"{name} {value:.6g}" for name, value in values.items())
            raise UnequalError(f"The first step's {what} differ by more than chance: {figures}.")


def check(job: Job) -> str:
    """Compare grpokit's loss and gradient with the plain loop's, on the same weights and tokens.

    Raises:
        UnequalError: they differ.
        FailedError: one of them could not be computed.
    """
    with started("check", "", job, Path(sys.executable)) as worker:
        worker.ask()
        reply = worker.ask("go")
    if reply["problem"]:
        raise UnequalError(reply["problem"])
    return str(reply["words"])
