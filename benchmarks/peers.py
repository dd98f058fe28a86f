"""Environments of other contenders, which stand beside this one."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpokit"


def prepare(folder: Path, pins: Path, *, same: Iterable[str]) -> None:
    """Make an environment with the packages of a file, and `same` ones in the versions of this environment."""
    script = Path(sys.argv[0]).name
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        sys.exit(f"{script}: {folder} holds something else than an environment; name an empty folder with --peers")
    venv.create(folder, with_pip=True)
    versions = [f"{name}=={metadata.version(name).split('+')[0]}" for name in same]
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if subprocess.run([*install, "-r", str(pins), *versions], env=alone).returncode:
        sys.exit(f"{script}: pip could not fill {folder}; what it said stands above")
    print(f"The environment is in {folder}.")
