"""Environments of capsules, which uv really builds; all need Pillow from the package index."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import filelock
import psutil
import pytest

from grpokit import Prompt, Sample, UsageError
from grpokit_capsule import environments
from grpokit_capsule.environments import Environment, Needs
from grpokit_capsule.reward import place


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "capsules"
    monkeypatch.setenv("GRPOKIT_CAPSULES", str(folder))
    return folder


def built(requires: list[str] | str = "", *, offline: bool = False) -> Environment:
    needs = Needs.of(requires or [], None)
    return environments.environment(needs, what="'r'", offline=offline)


def version_of_pillow(environment: Environment) -> str:
    code = "from importlib.metadata import version; print(version('pillow'))"
    return subprocess.run(
        [environment.python, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def test_an_environment_is_built_once(cache: Path) -> None:
    first = built()
    assert version_of_pillow(first)
    begin = time.monotonic()
    assert built() == first
    assert time.monotonic() - begin < 0.2
    assert environments.environments() == [first]
    assert first.size > 1e6
    assert built(["pillow<12"]).folder.parent != first.folder.parent


def test_what_is_removed_is_built_again_with_the_same_versions(cache: Path) -> None:
    first = built()
    (lock,) = cache.glob("*/requirements.lock")
    lock.write_text("pillow==11.0.0\n")  # as if it had been resolved a year ago
    environments.remove(first.name)
    assert environments.environments() == []
    assert version_of_pillow(built()) == "11.0.0"


BUILD = """
from grpokit_capsule import environments
needs = environments.Needs.of([], None)
print(environments.environment(needs, what="'r'", offline=False).folder)
"""


def test_of_two_processes_one_builds(cache: Path) -> None:
    command = [sys.executable, "-c", BUILD]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = [process.communicate(timeout=120)[0] for process in both]
    assert folders[0] == folders[1]
    assert Path(folders[0].strip()).is_dir()
    assert len([*cache.glob("*/environment-*")]) == 1


def test_who_waits_for_another_process_says_so(cache: Path) -> None:
    folder = cache / Needs.of([], None).key
    folder.mkdir(parents=True)
    with filelock.FileLock(folder / "lock"):
        process = subprocess.Popen([sys.executable, "-c", BUILD], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert "another process" in process.stderr.readline()
    process.communicate(timeout=120)
    assert environments.names() == [folder.name]


@pytest.mark.parametrize("moment", ["environment-*", "environment-*/bin/python", "requirements.lock"])
def test_what_a_killed_build_leaves_is_built_anew(cache: Path, moment: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, start_new_session=True)
    end = time.monotonic() + 60
    while not [*cache.glob(f"*/{moment}")] and time.monotonic() < end:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    environment = built()
    assert version_of_pillow(environment)
    assert [*cache.glob("*/environment-*")] == [environment.folder]


def test_a_killed_build_leaves_nothing_running(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("import time\nopen('begun', 'w').close()\ntime.sleep(60)\n")
    code = BUILD.replace("of([]", f"of([{str(tmp_path)!r}]")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < end:
        time.sleep(0.05)
    running = psutil.Process(process.pid).children(recursive=True)
    assert len(running) >= 3  # one that watches, uv, and the build of the package
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(running, timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]  # the system reaps these


def test_an_environment_that_lost_its_python_is_built_anew(cache: Path) -> None:
    first = built()
    shutil.rmtree(first.folder / "bin")
    assert version_of_pillow(built())


def test_a_file_of_requirements(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# what the paper says\npillow==11.0.0\n")
    assert version_of_pillow(built(str(file))) == "11.0.0"
    file.write_text("pillow==11.1.0\n")
    assert version_of_pillow(built(str(file))) == "11.1.0"


def test_files_beside_the_requirements(cache: Path, tmp_path: Path) -> None:
    """Another file of requirements and a folder of packages, which the index does not have."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        metadata = {"METADATA": f"Metadata-Version: 2.1\nName: made-here\nVersion: {version}\n"}
        metadata |= {"WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "RECORD": ""}
        with zipfile.ZipFile(wheels / f"made_here-{version}-py3-none-any.whl", "w") as wheel:
            for name, text in metadata.items():
                wheel.writestr(f"made_here-{version}.dist-info/{name}", text)
    file, base = tmp_path / "requirements.txt", tmp_path / "base.txt"
    file.write_text("--find-links ./wheels\n-r base.txt\n")
    base.write_text("-r last.txt\n")
    for version in ("1.0", "2.0"):
        (tmp_path / "last.txt").write_text(f"made-here=={version}\n")
        assert [*built(str(file)).folder.rglob(f"made_here-{version}.dist-info")]


def test_packages_are_built_without_those_of_the_run(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    setup = "import os\nfrom setuptools import setup\nassert 'PYTHONPATH' not in os.environ\nsetup(name='made-here')\n"
    (package / "setup.py").write_text(setup)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert [*built([str(package)]).folder.rglob("made_here-0.0.0.dist-info")]


@pytest.mark.parametrize("requirement", ["packages/made", "-e packages/made", "-r base.txt"])
def test_a_package_in_a_folder(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requirement: str) -> None:
    """That of another working folder is another one, and what it requires now is what a new build installs."""
    for name in ("one", "two"):
        package = tmp_path / name / "packages" / "made"
        package.mkdir(parents=True)
        (package / "setup.py").write_text(f"from setuptools import setup\nsetup(name='made-in-{name}', version='1')\n")
        (tmp_path / name / "base.txt").write_text("-e packages/made\n")
        monkeypatch.chdir(tmp_path / name)
        environment = built([requirement])
        assert [*environment.folder.rglob(f"made_in_{name}-1.dist-info")]
    (package / "setup.py").write_text("from setuptools import setup\nsetup(name='made-in-two', version='2')\n")
    environments.remove(environment.name)
    assert [*built([requirement]).folder.rglob("made_in_two-2.dist-info")]


def test_what_is_no_python_is_refused() -> None:
    with pytest.raises(UsageError, match="Python"):
        environments.ready_made((), "/bin/ls")


def test_an_interpreter_by_its_path(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("python").symlink_to(sys.executable)
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = {Needs.of(["pillow"], path).key for path in ("./python", "~/python", str(tmp_path / "python"))}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("requires", "python", "words"),
    [
        (["pillow<10", "pillow>10"], None, "you require pillow<10 and pillow>10"),
        (["pillow =! 3"], None, "pillow =! 3"),
        ([], ">=3.70", "No interpreter found for Python >=3.70"),
    ],
)
def test_what_cannot_be_built_is_said_by_uv(cache: Path, requires: list[str], python: str | None, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        environments.environment(Needs.of(requires, python), what="'r'", offline=False)
    assert words in str(caught.value)
    assert environments.environments() == []


def test_offline_takes_what_uv_has(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments.remove(built().name)
    assert version_of_pillow(built(offline=True))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="cannot be built"):
        built(["pillow<12"], offline=True)


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.8", ">=3.9,<3.11"])
def test_an_older_python(cache: Path, python: str) -> None:
    """Older than the oldest that grpokit is for; uv fetches it where it is not installed."""
    reward = place("capsule_scorers:python", {}, 600.0, python=python, path=str(Path(__file__).parent / "scorers"))
    (version,) = reward([Sample(prompt=Prompt("p"), output="x", group=0)])
    reward.close()
    assert version == 3.08 if python == "3.8" else 3.09 <= version < 3.11
