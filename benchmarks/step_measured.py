"""Times of real runs of toy-lm on this machine, in one process and in two, which the model of a step is held against.

    python benchmarks/simulate_step.py --measure

Two processes run under torchrun through this file, which counts what they send to each other in a step.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import platform
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

RUNS = {"1 x 2": (1, 2), "1 x 3": (1, 3), "1 x 8": (1, 8), "2 x 3": (2, 3), "2 x 8": (2, 8)}
"""Name -> processes and groups of a step."""
GROUP, WARM, STEPS = 32, 2, 12
JOB = (
    *("train", "toy-lm", f"trainer.group_size={GROUP}", "trainer.micro_batch_size=64", f"trainer.steps={STEPS}"),
    *("trainer.device=cpu", "data.limit=64", "eval.fraction=null", "run.threads=1"),
    *("eval.every=0", "run.save_every=0"),
)
OTHER = "other"
TRIALS, OTHERS = 8, 0.10  # most runs of a kind; the share of the machine that others may use in a step
LARGE = 32 * 2**20  # bytes of the sum that tells the speed of the connection


def measure(least: int) -> dict[str, Any]:
    """The medians of at least so many steps of every run in which others hardly used this machine.

    Raises:
        RuntimeError: a run failed, or there are not enough such steps.
    """
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in RUNS}
    sent: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for _ in range(TRIALS):
            for name, (processes, groups) in RUNS.items():
                if len(steps[name]) < least:
                    rows, own = _run(Path(place), processes, groups)
                    steps[name] += rows
                    sent |= {name: own} if processes > 1 else {}
                    print(f"{name}: {len(rows)} of {STEPS - WARM} steps were undisturbed", flush=True)
    if any(len(rows) < least for rows in steps.values()):
        raise RuntimeError(
            f"Others used more than {OTHERS:.0%} of this machine in most steps. Measure at another time."
        )
    medians = {
        name: {key: round(statistics.median(row[key] for row in rows), 5) for key in rows[0]}
        for name, rows in steps.items()
    }
    machine = f"{os.cpu_count()} cores of a {platform.machine()} CPU"
    counts = {name: len(rows) for name, rows in steps.items()}
    return {"machine": machine, "date": date.today().isoformat(), "steps": counts, "runs": medians, "sent": sent}


def _run(place: Path, processes: int, groups: int) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """The times of a run's undisturbed steps by phase, and what process 0 has sent."""
    folder = place / "run"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(torchrun if processes > 1 else []), __file__, str(place)]
    words = [*JOB, f"trainer.prompts_per_step={groups}", f"run.dir={folder}", "--overwrite"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"A run of toy-lm failed: {done.stderr.strip()[-2000:]}")
    rows = [json.loads(text) for text in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    notes = [json.loads((place / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(processes)]
    good = []
    for row, *own in list(zip(rows, *(note["steps"] for note in notes), strict=True))[WARM:]:
        others = own[0]["busy"] - sum(each["own"] for each in own)
        if others < OTHERS * (os.cpu_count() or 1) * own[0]["seconds"]:
            good.append(_phases(row))
    return good, {name: value for name, value in notes[0].items() if name != "steps"}


def _busy() -> float:
    """Seconds of processor time that everything on this machine has used."""
    words = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
    return sum(map(int, words[1:4])) / os.sysconf("SC_CLK_TCK")


def _phases(row: Mapping[str, float]) -> dict[str, float]:
    """Phase -> seconds of a step; what belongs to no phase is `OTHER`."""
    phases = {key.removeprefix("time/"): value for key, value in row.items() if key.startswith("time/")}
    return {**phases, OTHER: max(0.0, row["step_time"] - sum(phases.values())), "step": row["step_time"]}


def _worker(place: Path, words: Sequence[str]) -> None:
    """`grpokit` with these words, which notes what it sends in each step."""
    import torch
    from torch import distributed

    from grpokit import Trainer

    totals = {"meetings": 0, "messages": 0, "gradients": 0}
    gather, reduce, step = distributed.all_gather_object, distributed.all_reduce, Trainer.step
    steps: list[dict[str, float]] = []

    def counted_gather(objects: list[Any], own: Any, **group: Any) -> None:
        totals["meetings"] += 1
        totals["messages"] += len(pickle.dumps(own))
        gather(objects, own, **group)

    def counted_reduce(x: Any, *how: Any) -> Any:
        totals["gradients"] += x.nbytes
        return reduce(x, *how)

    def counted_step(self: Trainer, **options: Any) -> Any:
        before, begin = {**totals, "busy": _busy(), "own": time.process_time()}, time.perf_counter()
        report = step(self, **options)
        after = {**totals, "busy": _busy(), "own": time.process_time()}
        steps.append({"seconds": time.perf_counter() - begin, **{name: after[name] - before[name] for name in after}})
        return report

    speeds = {}
    if os.environ.get("WORLD_SIZE", "1") != "1":
        distributed.init_process_group("gloo")
        large = torch.zeros(LARGE // 4)
        speeds["meeting_seconds"] = _median_seconds(200, lambda: gather([None, None], None))
        speeds["large_sum_seconds"] = _median_seconds(20, lambda: reduce(large))
    distributed.all_gather_object, distributed.all_reduce = counted_gather, counted_reduce
    Trainer.step = counted_step  # type: ignore[assignment, method-assign]
    sys.argv = ["grpokit", *words]

    @atexit.register  # `grpokit` ends its process itself
    def note() -> None:
        medians = {name: statistics.median(row[name] for row in steps) for name in totals} if steps else {}
        text = json.dumps({**medians, **speeds, "steps": steps})
        (place / f"{os.environ.get('RANK', '0')}.json").write_text(text, encoding="utf-8")

    runpy.run_module("grpokit", run_name="__main__")


def _median_seconds(times: int, work: Callable[[], object]) -> float:
    """How long something takes in which nobody is late."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return round(statistics.median(seconds), 6)


if __name__ == "__main__":
    _worker(Path(sys.argv[1]), sys.argv[2:])
