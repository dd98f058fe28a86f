"""Builds every distribution, looks inside, installs all wheels into a clean environment, and tries them there.

`make dist` runs it with this Python. `make pythons` adds `--pythons`: the wheels are tried with each Python that they
are for and that this machine has. `dist/` then holds a wheel and an sdist of grpokit and of each plugin. It exits with
1 at the first thing that fails: a build, what an index would refuse or show wrongly, an archive with other files than
its own, the installation, a command of the smoke run, or one with a core of another version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import index_page
import mixed_versions

ROOT = Path(__file__).parent.parent
OUT = ROOT / "dist"
SMOKE = (
    ("plugins",),
    ("train", "toy-lm", "trainer.steps=1", "run.dir=smoke"),
    ("train", "smoke", "trainer.steps=2", "--resume"),
    ("report", "smoke"),
    ("diagnose", "smoke"),
    ("new", "reward", "shine"),
    ("check", "length"),
    ("doctor",),
)
BESIDE = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}  # an sdist's own files outside its package
BUILT = {"PKG-INFO", "setup.cfg"}


def main() -> int:
    """Build, look inside, install and try; returns the exit code."""
    shutil.rmtree(OUT, ignore_errors=True)
    folders = [ROOT, *sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))]
    with tempfile.TemporaryDirectory() as work:
        for folder in folders:
            build = ("build", "--no-isolation", "--outdir", str(OUT))
            run(sys.executable, "-m", *build, str(sources(folder, Path(work))))
        run(sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(OUT.iterdir())))
        for folder in folders:
            check(folder)
        wheels = sorted(OUT.glob("*.whl"))
        for python in pythons() if "--pythons" in sys.argv else [sys.executable]:
            with tempfile.TemporaryDirectory() as place:  # each holds up to 5 GB
                tried = try_out(wheels, Path(place), python)
                mixed_versions.try_out(tried, Path(work) / "sources" / ROOT.name, OUT)
    print(
        f"{len(wheels)} wheels and {len(list(OUT.glob('*.tar.gz')))} sdists in {OUT.relative_to(ROOT)}/, tried together"
    )
    return 0


def sources(folder: Path, work: Path) -> Path:
    """A copy of a distribution's tracked files: a build takes what older builds left, and leaves files itself."""
    copy = work / "sources" / folder.name
    for name in filter(lambda each: (folder / each).is_file(), tracked(folder)):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / name, target)
    if folder == ROOT:
        readme = copy / "README.md"
        readme.write_text(index_page.with_absolute_links(readme.read_text(encoding="utf-8")), encoding="utf-8")
    return copy


def tracked(folder: Path, place: str = ".") -> set[str]:
    """The files in a place of a folder that git knows, relative to the folder."""
    listed = subprocess.run(["git", "ls-files", "-z", place], cwd=folder, check=True, capture_output=True, text=True)
    return set(filter(None, listed.stdout.split("\0")))


def check(folder: Path) -> None:
    """Refuse a wheel or an sdist that lacks one of its package's files or has others, and links that lead nowhere."""
    name = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"].replace("-", "_")
    (wheel,) = OUT.glob(f"{name}-*.whl")
    (sdist,) = OUT.glob(f"{name}-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        (metadata,) = (entry for entry in inside if entry.endswith(".dist-info/METADATA"))
        readme = archive.read(metadata).decode()
    package = tracked(folder if folder == ROOT else folder / "src", name)
    same(wheel, {entry for entry in inside if ".dist-info/" not in entry}, package)
    if metadata.replace("METADATA", "licenses/LICENSE") not in inside:
        sys.exit(f"{wheel.name} has no LICENSE.")
    if links := index_page.RELATIVE.findall(readme):
        sys.exit(f"{wheel.name}: the README's link to {links[0]} leads nowhere on an index page.")
    with tarfile.open(sdist) as files:
        entries = {member.name.partition("/")[2] for member in files.getmembers() if member.isfile()}
    start = "" if folder == ROOT else "src/"
    own = {entry for entry in entries if ".egg-info/" not in entry}
    same(sdist, own, {start + entry for entry in package} | BESIDE | BUILT)


def same(archive: Path, inside: set[str], expected: set[str]) -> None:
    """Refuse an archive with other files than expected."""
    lacking, more = sorted(expected - inside), sorted(inside - expected)
    if lacking or more:
        sys.exit(
            f"{archive.name} lacks {lacking[:5] or 'nothing'} and has {more[:5] or 'nothing'} that is not its own."
        )


def pythons() -> list[str]:
    """The Pythons of this machine, pyenv's included, that the classifiers name."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    places = [*map(str, sorted(pyenv.glob("versions/*/bin"))), os.environ["PATH"]]  # its shims start no other version
    found = [shutil.which(f"python{version}", path=os.pathsep.join(places)) for version in versions]
    return [path for path in found if path] or [sys.executable]


def try_out(wheels: list[Path], place: Path, outer: str) -> Path:
    """Install all wheels together, with the pinned versions of the rest, and run the commands of `SMOKE`.

    Returns:
        The Python of that environment.
    """
    python = place / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(outer, "-m", "venv", "--without-pip", str(place / "env"))
    install = (sys.executable, "-m", "pip", "--python", str(python), "install")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
    formats = ("--only-binary", ":all:", "--no-binary", "cellpylib,pycosat,zss")  # reasoning-gym's, without wheels
    run(*install, *quiet, *formats, "-c", str(ROOT / "constraints.txt"), *map(str, wheels))
    if subprocess.run([str(python), "-c", "import torchvision"], capture_output=True).returncode:
        run(str(python), str(ROOT / "tools/torchvision_beside_cpu_torch.py"))  # as in the development environment
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in SMOKE:
        run(str(python), "-m", "grpokit", *words, cwd=place, env=environment)
    return python


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a command; what it printed is shown if it fails."""
    print("$", *(Path(word).name if "/" in word else word for word in command), flush=True)
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-6000:]}{done.stderr[-6000:]}\nexited with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
