"""Builds every distribution, installs all wheels together into a clean environment, and tries them there.

`make dist` runs it. `dist/` then holds a wheel and an sdist of grpokit and of each plugin. It exits with 1 at the
first thing that fails: a build, a wheel with tests or without its data files, the installation, or a command of the
smoke run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "dist"
SMOKE = (("plugins",), ("train", "toy-lm", "trainer.steps=2", "run.dir=smoke"), ("doctor",))


def main() -> int:
    """Build, look inside, install and try; returns the exit code."""
    shutil.rmtree(OUT, ignore_errors=True)
    folders = [ROOT, *sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))]
    with tempfile.TemporaryDirectory() as work:
        for folder in folders:
            run(sys.executable, "-m", "build", "--outdir", str(OUT), str(sources(folder, Path(work))))
        wheels = sorted(OUT.glob("*.whl"))
        for folder in folders:
            check(folder, wheels)
        try_out(wheels, Path(work))
    print(
        f"{len(wheels)} wheels and {len(list(OUT.glob('*.tar.gz')))} sdists in {OUT.relative_to(ROOT)}/, tried together"
    )
    return 0


def sources(folder: Path, work: Path) -> Path:
    """A copy of a distribution's tracked files: a build takes what older builds left, and leaves files itself."""
    copy = work / "sources" / folder.name
    listed = subprocess.run(["git", "ls-files", "-z", "."], cwd=folder, check=True, capture_output=True, text=True)
    for name in filter(lambda each: (folder / each).is_file(), listed.stdout.split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / name, target)
    return copy


def check(folder: Path, wheels: list[Path]) -> None:
    """Refuse a wheel that lacks one of its package's files, or that has tests."""
    name = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"].replace("-", "_")
    (wheel,) = [each for each in wheels if each.name.startswith(f"{name}-")]
    with zipfile.ZipFile(wheel) as archive:
        inside = {entry for entry in archive.namelist() if ".dist-info/" not in entry}
    start = folder if folder == ROOT else folder / "src"
    listed = subprocess.run(["git", "ls-files", "-z", name], cwd=start, check=True, capture_output=True, text=True)
    expected = set(filter(None, listed.stdout.split("\0")))
    lacking, more = sorted(expected - inside), sorted(inside - expected)
    if lacking or more:
        sys.exit(f"{wheel.name} lacks {lacking[:5] or 'nothing'} and has {more[:5] or 'nothing'} that is not its own.")


def try_out(wheels: list[Path], work: Path) -> None:
    """Install all wheels together, with the pinned versions of the rest, and run the commands of `SMOKE`."""
    python = work / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(sys.executable, "-m", "venv", str(work / "env"))
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
    run(str(python), "-m", "pip", "install", *quiet, "-c", str(ROOT / "constraints.txt"), *map(str, wheels))
    if subprocess.run([str(python), "-c", "import torchvision"], capture_output=True).returncode:
        run(str(python), str(ROOT / "tools/torchvision_beside_cpu_torch.py"))  # as in the development environment
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in SMOKE:
        run(str(python), "-m", "grpokit", *words, cwd=work, env=environment)


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command; what it printed is shown if it fails."""
    print("$", *(Path(word).name if "/" in word else word for word in command), flush=True)
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-6000:]}{done.stderr[-6000:]}\nexited with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
