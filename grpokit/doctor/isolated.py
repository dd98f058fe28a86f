"""Runs each probe in a process of its own; whatever ends it becomes a finding."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from grpokit.doctor.findings import Finding
from grpokit.errors import one_line

AREAS = ("python", "torch", "torchvision", "plugins", "weights", "machine", "self-test")

PATIENCE = 120.0
"""Seconds that a probe may take; the first import of torch from a slow disk is most of it."""

_LAST_WORDS = 300  # characters of an error message


def examine(areas: Sequence[str] = AREAS) -> Iterator[Finding]:
    """Yield what the probes of these areas find, in their order; it never raises for a broken installation.

    Two probes run at a time.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        for findings in pool.map(_probe, areas):
            yield from findings


def _probe(area: str) -> list[Finding]:
    # -P and this path give the process the modules that this one sees, in the same order.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("GRPOKIT_STRICT", None)  # under which one broken plugin would hide the others
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "grpokit.doctor.probes", area],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return [_failed(area, f"the probe did not end within {PATIENCE:.0f} s")]
    except OSError as error:
        return [_failed(area, f"the probe cannot be started: {one_line(error)}")]
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        return [Finding(**finding) for finding in json.loads(last)]
    except (ValueError, TypeError):
        words = " ".join((done.stderr.strip().splitlines() or ["it printed nothing"])[-1].split())[:_LAST_WORDS]
        ending = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"exited with {done.returncode}"
        return [_failed(area, f"the probe {ending}: {words}")]


def _failed(area: str, what: str) -> Finding:
    return Finding(
        area=area,
        state="problem",
        what=what,
        advice="A library crashes or hangs when it is imported or used. Reinstall what the message names.",
        page="doctor",
    )


def as_json(findings: Sequence[Finding]) -> str:
    """All findings as one JSON object, with `healthy`."""
    rows = [dataclasses.asdict(finding) for finding in findings]
    return json.dumps({"healthy": healthy(findings), "findings": rows}, indent=2)


def healthy(findings: Sequence[Finding]) -> bool:
    """Whether nothing must be mended."""
    return not any(finding.state == "problem" for finding in findings)
