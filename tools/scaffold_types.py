"""Runs mypy with its strictest settings on what `grpokit new` writes; part of `make types`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORDS = (
    ["reward", "shine"],
    ["reward", "word-play", "--kind", "text"],
    ["policy", "next-letter"],
    ["policy", "pixels", "--kind", "image"],
    ["policy", "one-colour", "--kind", "flow"],
    ["advantage", "bent"],
    ["objective", "capped"],
    ["modifier", "mild"],
    ["preset", "small-sums"],
    ["evaluation", "carries"],
    ["world", "quiz"],
    ["dataset", "doubles"],
)


def main() -> int:
    """mypy's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        for words in WORDS:
            new = [sys.executable, "-m", "grpokit", "new", *words]
            subprocess.run(new, cwd=folder, check=True, capture_output=True)
        sources = [str(place) for place in sorted(Path(folder).glob("*/src"))]
        # A package's author sees no fault of what is installed: grpokit itself is checked with its own settings.
        strict = ["--strict", "--config-file=", "--follow-imports=silent"]
        cache = ["--cache-dir", str(ROOT / ".mypy_cache/scaffold")]
        command = [sys.executable, "-m", "mypy", *strict, *cache, *sources]
        return subprocess.run(command, cwd=folder, env={**os.environ, "MYPYPATH": str(ROOT)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
