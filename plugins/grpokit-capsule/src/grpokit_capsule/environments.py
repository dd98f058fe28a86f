"""Environments of capsules: what one needs, where it lies, and how uv builds it.

An environment lies in the cache, in a folder named after its requirements, Python and platform. The versions that
were resolved lie beside it, so that an environment which is removed and built again is the same.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock
import uv

from grpokit.errors import UsageError, brief, plural
from grpokit.files import parse_json
from grpokit_capsule import runner

_log = logging.getLogger(__name__)
_log_numbers = itertools.count()
_MARK, _LOCK, _LOG = "capsule.json", "requirements.lock", "build.log"
_KEEP = 7 * 86_400  # seconds
_PATIENCE = 30.0  # seconds to build without a word
_WAITING = 2.0  # seconds to wait for another process without a word
_FIRST, _LAST, _WIDTH = 4, 8, 300  # lines of uv's own message, and their characters


def cache() -> Path:
    """The folder with all environments: `GRPOKIT_CAPSULES`, or one in the user's cache."""
    own = os.environ.get("GRPOKIT_CAPSULES")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(caches) / "grpokit" / "capsules"


def ready_made(requires: str | Sequence[str], python: str | None) -> Path | None:
    """The interpreter of an environment that the user has made; None where one is to be built.

    Raises:
        UsageError: it is no interpreter, or an old one.
    """
    if requires or not python or "/" not in python:
        return None
    file = Path(python).expanduser().absolute()
    if file.is_dir() or not os.access(file, os.X_OK) or not _is_new_enough(str(file)):
        raise UsageError(
            f"python is {python!r}; expected an interpreter of Python 3.8 or newer, such as venv/bin/python."
        )
    return file


def _is_new_enough(python: str) -> bool:
    """Whether a file is an interpreter that can run `runner`."""
    question = [python, "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 8))"]
    return subprocess.run(question, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def interpreter(requires: str | Sequence[str], python: str | None, *, what: str, offline: bool) -> str:
    """The Python of an environment for these options, which is built where it is not there.

    Raises:
        UsageError: it cannot be built, or an option is wrong.
    """
    file = ready_made(requires, python)
    if file is None:
        file = environment(Needs.of(requires, python), what=what, offline=offline).python
    return str(file)


def folders(path: str | None) -> list[str]:
    """The folder that an option names, if it does, as a list of what to import from.

    Raises:
        UsageError: it is no folder.
    """
    if path is None:
        return []
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UsageError(f"path is {path!r}; expected a folder (looked in {Path.cwd()}).")
    return [str(folder.absolute())]


def new_log(use: str) -> Path:
    """The file for what a copy of a reward prints; those of more than a week ago are deleted."""
    logs = cache() / "logs"
    for old in logs.glob("*.log*"):
        with suppress(OSError):  # another process has deleted it
            if time.time() - old.stat().st_mtime > _KEEP:
                old.unlink()
    return logs / f"{use.replace(':', '.')}.{os.getpid()}.{next(_log_numbers)}.log"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an environment is built from.

    Attributes:
        requires: requirements, as lines of a requirements.txt; Pillow comes with them.
        python: a version such as "3.10", bounds such as ">=3.9,<3.12", or the path of an interpreter.
        folder: that relative paths in the requirements start from.
    """

    requires: Sequence[str]
    python: str
    folder: Path

    @classmethod
    def of(cls, requires: str | Sequence[str], python: str | None) -> Needs:
        """The needs that a config states: a list of requirements, or the path of a file with them.

        Raises:
            UsageError: the file cannot be read, or the list holds something else than texts.
        """
        version = python or f"{sys.version_info.major}.{sys.version_info.minor}"
        if "/" in version:
            version = str(Path(version).expanduser().absolute())
        if isinstance(requires, str):
            file = Path(requires).expanduser()
            if not file.is_file():
                raise UsageError(
                    f"requires is {brief(requires)}, and there is no such file (looked in {Path.cwd()}); expected a "
                    "requirements.txt or a list such as ['hpsv2==1.2.0']."
                )
            return cls(requires=_lines_of(file), python=version, folder=file.absolute().parent)
        if not all(isinstance(requirement, str) for requirement in requires):
            raise UsageError(f"requires is {brief(requires)}; expected a list of texts such as ['hpsv2==1.2.0'].")
        return cls(requires=[*requires], python=version, folder=Path.cwd())

    @property
    def key(self) -> str:
        """The name of the environment's folder."""
        is_local = self.has_own_packages or any(re.match(r"\s*(-r|-c|--)", line) for line in self.requires)
        local = str(self.folder) if is_local else ""
        machine = [platform.system(), platform.machine(), *platform.libc_ver()]
        others = _other_lines(self.requires, self.folder)
        facts = [*map(str.strip, self.requires), self.python, *machine, local, *others]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @property
    def has_own_packages(self) -> bool:
        """Whether folders of this machine are among the requirements, whose own requirements may change."""
        return any(map(_is_own_package, [*self.requires, *_other_lines(self.requires, self.folder)]))


def _is_own_package(requirement: str) -> bool:
    line = requirement.partition(" #")[0].strip()
    if line.startswith(("-", "#")):
        return line.startswith(("-e", "--editable"))
    return line.startswith(".") or ("/" in line and "://" not in line)


def _other_lines(requirements: Iterable[str], folder: Path) -> Iterator[str]:
    """The lines of files that lines such as "-r base.txt" name, and of those that these name."""
    for line in requirements:
        named = re.match(r"\s*(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)", line)
        if named and (folder / named[1]).is_file():
            file = folder / named[1]
            lines = _lines_of(file)
            yield from lines
            yield from _other_lines(lines, file.parent)


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{file} cannot be read: expected a text in UTF-8. Save it as such.") from None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment in the cache.

    Attributes:
        folder: it lies in.
        python: its interpreter.
        requires: what it was built from.
        version: of its Python, as it was asked for.
    """

    folder: Path
    python: Path
    requires: Sequence[str]
    version: str

    @property
    def name(self) -> str:
        """What commands call it."""
        return self.folder.parent.name

    @property
    def size(self) -> int:
        """Bytes on disk; what uv links from its own cache counts too."""
        return sum(file.lstat().st_size for file in self.folder.rglob("*") if file.is_file())


def environments() -> list[Environment]:
    """All that are built, by the names of their folders."""
    built = (_built(folder) for folder in sorted(cache().glob("*/")))
    return [environment for environment in built if environment is not None]


def environment(needs: Needs, *, what: str, offline: bool) -> Environment:
    """The environment for some needs, which is built where it is not there.

    One process builds it, and others wait. What a killed process has left is built anew.

    Args:
        needs: its requirements.
        what: runs in it, for messages.
        offline: whether to take packages from uv's own cache alone.

    Raises:
        UsageError: it cannot be built; the message has uv's own words.
    """
    folder = cache() / needs.key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, what):
            return _built(folder) or _build(folder, needs, what=what, offline=offline)
    except OSError as error:
        raise UsageError(f"The capsule of {what} cannot be built in {folder}: {error}.") from error


@contextmanager
def _locked(folder: Path, what: str) -> Iterator[None]:
    """Inside, no other process builds or removes what is in a folder."""
    lock = filelock.FileLock(folder / "lock")
    try:
        lock.acquire(timeout=_WAITING)
    except filelock.Timeout:
        _log.warning("Waiting for the capsule of %s, at which another process works", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _built(folder: Path) -> Environment | None:
    """The environment in a folder; None where there is none, or where building it was broken off."""
    try:
        facts = parse_json((folder / _MARK).read_text("utf-8"))
        built = Environment(
            folder=folder / facts["environment"],
            python=folder / facts["environment"] / "bin" / "python",
            requires=facts["requires"],
            version=facts["python"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return built if built.python.exists() else None


def _build(folder: Path, needs: Needs, *, what: str, offline: bool) -> Environment:
    begin = time.monotonic()
    count = plural(len(needs.requires), "requirement")
    _log.warning("Building the capsule of %s: Python %s, %s, in %s", what, needs.python, count, folder)
    _clear(folder)
    place = folder / f"environment-{uuid.uuid4().hex[:8]}"  # a killed process's uv may still write into another
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join([*needs.requires, "pillow", ""]), "utf-8")
    uv_runs = _Uv(log=folder / _LOG, folder=needs.folder, requirements=requirements, offline=offline, what=what)
    uv_runs("venv", "--no-project", "--python", needs.python, str(place))
    python = str(place / "bin" / "python")
    if not _is_new_enough(python):
        raise UsageError(f"The capsule of {what} has Python {needs.python}; expected 3.8 or newer.")
    lock = folder / _LOCK
    if not lock.exists() or needs.has_own_packages:
        resolved = folder / f"{_LOCK}.new"
        uv_runs("pip", "compile", "--python", python, "--output-file", str(resolved), "-")
        resolved.replace(lock)
    both = ("--requirements", str(lock), "--requirements", "-")  # the second may name other indexes
    uv_runs("pip", "install", "--no-deps", "--python", python, *both)
    facts = {"environment": place.name, "requires": [*needs.requires], "python": needs.python}
    (folder / _MARK).write_text(json.dumps(facts), "utf-8")  # the last act: without it there is no environment
    _clear(folder, but=place)  # what the uv of a killed process has written meanwhile
    built = _built(folder)
    assert built is not None
    _log.warning("The capsule of %s is ready after %.0f s", what, time.monotonic() - begin)
    return built


def remove(name: str) -> None:
    """Delete an environment, also one that was never finished; the versions that were resolved stay."""
    folder = cache() / name
    with _locked(folder, f"'{name}'"):
        (folder / _MARK).unlink(missing_ok=True)
        _clear(folder)


def names() -> list[str]:
    """Of all environments, also of those that were never finished."""
    return sorted({place.parent.name for place in cache().glob("*/environment-*")})


def _clear(folder: Path, *, but: Path | None = None) -> None:
    for place in folder.glob("environment-*"):
        if place != but:
            shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class _Uv:
    """Runs uv in a folder, with requirements at its stdin; its output goes to a log."""

    log: Path
    folder: Path
    requirements: Path
    offline: bool
    what: str

    def __call__(self, *words: str) -> None:
        watched = [sys.executable, "-I", runner.__file__, str(os.getpid()), "1"]  # it ends with the run
        command = [*watched, uv.find_uv_bin(), *words, "--no-progress"]
        if self.offline:
            command.append("--offline")
        path = os.pathsep.join([os.environ.get("PATH", ""), *_pyenv()])
        variables = {**without_own_packages(), "PATH": path, "NO_COLOR": "1"}
        with self.log.open("a", encoding="utf-8") as log, self.requirements.open("rb") as requirements:
            log.write(f"$ uv {' '.join(words)}\n")
            log.flush()
            begin = log.tell()
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=variables,
                stdin=requirements,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            code = self._wait(process)
        if code:
            output = self.log.read_bytes()[begin:].decode(errors="replace")
            raise UsageError(
                f"The capsule of {self.what} cannot be built. uv {words[0]} says:\n{_words(output)}\n"
                f"{_remedy(output)} All of its output is in {self.log}.",
                page="capsules#when-something-goes-wrong",
            )

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for uv, which may have to compile a package, and say so now and then."""
        begin = time.monotonic()
        try:
            while True:
                try:
                    return process.wait(timeout=_PATIENCE)
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - begin
                    _log.warning("Still building the capsule of %s after %.0f s: see %s", self.what, seconds, self.log)
        except BaseException:  # such as Ctrl-C
            runner.end(process.pid)
            process.wait()
            raise


def without_own_packages() -> dict[str, str]:
    """The run's environment variables but those that lead Python to the run's packages."""
    names = [name for name in os.environ if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"]
    return {name: os.environ[name] for name in names}


def _pyenv() -> list[str]:
    """The folders of the interpreters that pyenv has installed, since its shims hide all but the chosen ones."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    return sorted(glob.glob(os.path.join(glob.escape(root), "versions", "3.*", "bin")), reverse=True)


def _remedy(output: str) -> str:
    """What to do about what uv says."""
    if "Failed to build" in output:
        return (
            "Where a package has no wheel for this Python, uv compiles it. Set `python` to a version of the package's "
            'time, such as "3.10".'
        )
    return "Correct `requires` or `python`."


def _words(text: str) -> str:
    """What uv says, without its warnings about interpreters that it cannot use."""
    start = max(text.find("error:"), text.find("×"))
    lines = text[max(start, 0) :].strip().splitlines() or ["nothing"]
    if len(lines) > _FIRST + _LAST:  # a compiler's
        lines = [*lines[:_FIRST], "...", *lines[-_LAST:]]
    return "\n".join(line[:_WIDTH] for line in lines)
