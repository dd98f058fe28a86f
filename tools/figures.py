"""Where each measured figure of README and docs comes from.

`python tools/figures.py` lists the lines with a figure and its interval, with the date and the commit that wrote them
last. `--check` trains README's short runs again, in about two minutes on two cores, and exits with 1 where a figure of
its table is another now; `make docs` runs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from grpokit.evaluation.intervals import Summary

ROOT = Path(__file__).parent.parent
SHORT = {
    "runs/first": ["toy-flow", "trainer.steps=100"],
    "runs/toy-glyph": ["toy-glyph", "trainer.steps=20"],
}
"""Row of README's table -> what trains it; the other rows take longer."""

FIGURE = re.compile(r"([\d.]+) ± ([\d.]+)")


def listed(page: Path) -> list[str]:
    """The lines of a page that hold a figure with its interval, as `page:line date commit text`."""
    blame = ["git", "blame", "--date=short", "--line-porcelain", str(page)]
    porcelain = subprocess.run(blame, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines, number, commit, date = [], 0, "", ""
    for line in porcelain.splitlines():
        if line.startswith("\t"):
            number += 1
            if FIGURE.search(line):
                lines.append(f"{page.relative_to(ROOT)}:{number} {date} {commit} {line.strip()}")
        elif re.match(r"[0-9a-f]{40} ", line):
            commit = line[:8]
        elif line.startswith("committer-time "):
            date = datetime.fromtimestamp(int(line.split()[1]), UTC).strftime("%Y-%m-%d")
    return lines


def problems(table: str) -> list[str]:
    """Rows of README's table that the runs do not give now: the start to the digit, the end within its interval.

    Processors round in different ways, and training carries that on.
    """
    wrong = []
    for name, arguments in SHORT.items():
        (row,) = re.findall(rf"^\| `{name}`.*$", table, re.MULTILINE)
        (start, start_half), (end, end_half) = FIGURE.findall(row)
        first, last = measured(arguments)
        if first.text("reward") != f"{start} ± {start_half}":
            wrong.append(f"{name} begins with {first.text('reward')}; README says {row}")
        if abs(last.means["reward"] - float(end)) > float(end_half):
            wrong.append(f"{name} ends with {last.text('reward')}; README says {row}")
    return wrong


def measured(arguments: list[str]) -> tuple[Summary, Summary]:
    """The first and the last evaluation of a run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpokit", "train", *arguments, f"run.dir={folder}/run"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        rows = [json.loads(line) for line in (Path(folder) / "run/eval.jsonl").read_text().splitlines()]
    first, last = (Summary(means=row["means"], ci95=row["ci95"]) for row in (rows[0], rows[-1]))
    return first, last


def main(arguments: list[str]) -> int:
    """List the figures, or check the short ones; returns the exit code."""
    readme = ROOT / "README.md"
    if arguments == ["--check"]:
        lines = problems(readme.read_text(encoding="utf-8"))
        print("\n".join(lines), end="\n" if lines else "")
        return 1 if lines else 0
    for page in (readme, *sorted((ROOT / "docs").glob("*.md"))):
        for line in listed(page):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
