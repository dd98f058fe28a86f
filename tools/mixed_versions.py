"""Tries the plugins' wheels with cores of other versions: they work together, or a message says what to install.

`tools/dist.py` calls it with an environment in which all wheels are installed; it is spoilt afterwards. The other cores
are built from the same sources with other numbers in them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

TRAIN = ("grpokit", "train", "toy-lm", "trainer.steps=1", "--overwrite")
DOCTOR, PLUGINS = ("grpokit", "doctor"), ("grpokit", "plugins")


def try_out(python: Path, sources: Path, wheels: Path) -> None:
    """Put one core after the other beside the plugins; exits with the first that says something else than it should.

    Args:
        python: of an environment with all wheels.
        sources: the core's.
        wheels: the folder of the plugins' wheels.
    """
    now = Version(number(sources, "grpokit/__init__.py", "__version__").strip('"'))
    api = int(number(sources, "grpokit/registry/specs.py", "API"))
    patch, minor = f"{now.major}.{now.minor}.{now.micro + 1}", f"{now.major}.{now.minor + 1}.0"
    upgrade = f"pip install --upgrade grpokit-toy 'grpokit>={minor}'"
    refusal = f"is written for plugin API {api}, and grpokit {minor} reads {api + 1}. grpokit-toy is older. Run: "

    install(python, core(sources, patch, api=api, oldest=api))
    expect(python, TRAIN)
    expect(python, DOCTOR, says="healthy")
    other = core(sources, minor, api=api, oldest=api)
    (toy,) = wheels.glob("grpokit_toy-*.whl")
    together = ("pip", "install", "--dry-run", "--no-index", f"--find-links={wheels}", str(other), str(toy))
    expect(python, together, code=1, says=f"grpokit-toy {now} depends on grpokit~=")
    install(python, other)
    expect(python, DOCTOR, code=1, says=upgrade)
    install(python, core(sources, minor, api=api + 1, oldest=api))
    expect(python, TRAIN)
    install(python, core(sources, minor, api=api + 1, oldest=api + 1))
    expect(python, TRAIN, code=2, says=refusal + upgrade)
    expect(python, PLUGINS, says=refusal + upgrade)


def number(sources: Path, file: str, name: str) -> str:
    """What a module says of itself."""
    return re.search(rf"^{name} = (\S+)$", (sources / file).read_text(encoding="utf-8"), re.MULTILINE)[1]


def core(sources: Path, version: str, *, api: int, oldest: int) -> Path:
    """The wheel of a core with another version, a plugin API and the oldest that it reads."""
    place = sources.parent / f"core-{version}-{oldest}-{api}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sources, place)
    for file, old, new in (
        ("pyproject.toml", r'^version = "\S+"$', f'version = "{version}"'),
        ("grpokit/__init__.py", r'^__version__ = "\S+"$', f'__version__ = "{version}"'),
        ("grpokit/registry/specs.py", r"^API = \d+$", f"API = {api}"),
        ("grpokit/registry/specs.py", r"^OLDEST_API = \d+$", f"OLDEST_API = {oldest}"),
        ("grpokit/builtin/plugin.py", r"\bapi=\d+", f"api={api}"),
    ):
        text, count = re.subn(old, new, (place / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert count, f"{file} has no {old}"
        (place / file).write_text(text, encoding="utf-8")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", str(place))
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = (place / "dist").glob("*.whl")
    return wheel


def install(python: Path, wheel: Path) -> None:
    """Put a core in the place of the one that is there, whatever the others need."""
    expect(python, ("pip", "install", "--no-deps", "--force-reinstall", str(wheel)))


def expect(python: Path, words: tuple[str, ...], *, code: int = 0, says: str = "") -> None:
    """Run a module in the environment; exits where it ends or speaks otherwise."""
    print("$", *(Path(word).name if "/" in word else word for word in words), flush=True)
    start = [sys.executable, "-m", "pip", "--python", str(python), *words[1:]] if words[0] == "pip" else []
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"COLUMNS": "1000"}
    command = start or [str(python), "-m", *words]
    done = subprocess.run(command, cwd=python.parent, env=environment, capture_output=True, text=True)
    output = f"{done.stdout}{done.stderr}"
    if done.returncode != code or says not in output:
        sys.exit(f"{output[-6000:]}\nexited with {done.returncode}; expected {code} and: {says}")
