"""Plants known faults in a copy of the package, one at a time, and says whether the tests notice.

A suite is only as good as the faults that it catches. Each entry of `planted_faults.toml` is a single small change that
would make training wrong, and the tests that must fail on it. `python tools/planted_faults.py` plants them all, in some
minutes on one core; words behind it pick the faults whose names hold one of them. It exits with 1 where a fault
survives, or where its text is no longer in the code: then bring the entry up to date.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parent.parent


@dataclass(frozen=True)
class Fault:
    """One wrong change.

    Attributes:
        name: what is wrong, in words.
        file: from the repository's root on.
        old: the right code; it stands in the file exactly once.
        new: the wrong code.
        tests: ids for pytest, of which each must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: list[str]


ENTRIES = tomllib.loads((REPO / "tools/planted_faults.toml").read_text(encoding="utf-8"))
FAULTS = [Fault(**entry) for entry in ENTRIES["fault"]]


def run(root: Path, tests: list[str]) -> dict[str, bool]:
    """Run tests on the copy of the packages in `root`; returns which of them passed.

    Raises:
        RuntimeError: some of them did not run at all.
    """
    paths = [str(root), *map(str, sorted(root.glob("plugins/*/src")))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
    options = ["--import-mode=importlib", *tests]
    done = subprocess.run(
        [*command, *options], cwd=REPO, env=environment, capture_output=True, text=True, check=False, timeout=1800
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("PASSED ", "FAILED "))]
    outcomes = {
        test: [words[0] for words in lines if words[1] == test or words[1].startswith((f"{test}[", f"{test}::"))]
        for test in tests
    }
    if done.returncode not in (0, 1) or not all(outcomes.values()):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {test: "FAILED" not in results for test, results in outcomes.items()}


def plant(fault: Fault, root: Path) -> str:
    """Plant one fault, run its tests, and take it out again; returns what is wrong, or nothing."""
    path = root / fault.file
    text = path.read_text(encoding="utf-8")
    if (count := text.count(fault.old)) != 1:
        return f"its text stands {count} times in {fault.file}, expected once: {fault.old!r}"
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        survived = [test for test, passed in run(root, fault.tests).items() if passed]
    except RuntimeError as error:
        return str(error)
    finally:
        path.write_text(text, encoding="utf-8")
    return f"survives {', '.join(survived)}" if survived else ""


def main(words: list[str]) -> int:
    """Plant the faults whose names hold one of `words` (all, where there is none); returns the exit code."""
    faults = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    if not faults:
        print(f"No fault has one of these words in its name: {', '.join(words)}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for source in (REPO / "grpokit", *REPO.glob("plugins/*/src")):
            copied = root / source.relative_to(REPO)
            shutil.copytree(source, copied, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            sound = run(root, list({test: None for fault in faults for test in fault.tests}))
        except RuntimeError as error:
            print(error)
            return 1
        broken = [test for test, passed in sound.items() if not passed]
        if broken:
            print("These tests fail without any fault, so they prove nothing:", *broken, sep="\n  ")
            return 1
        wrong = 0
        for fault in faults:
            start = time.perf_counter()
            problem = plant(fault, root)
            wrong += bool(problem)
            print(
                f"{time.perf_counter() - start:5.1f} s  {'SURVIVES' if problem else 'noticed'}  {fault.name}",
                flush=True,
            )
            if problem:
                print(f"         {problem}")
    print(f"{len(faults) - wrong} of {len(faults)} planted faults are noticed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
