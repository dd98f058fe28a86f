"""`grpokit new`: what it writes is installed from wheels into a clean environment, and passes and trains there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from command_line import Call
from grpokit_check.scaffold.write import new

ROOT = Path(__file__).parents[3]
SOURCES = {"grpokit": ROOT, **{name: ROOT / "plugins" / name for name in ("grpokit-check", "grpokit-toy")}}
WRITTEN = {
    "shine": ("reward", "image"),
    "word-play": ("reward", "text"),
    "next-letter": ("policy", "text"),
    "pixels": ("policy", "image"),
    "one-colour": ("policy", "flow"),
    "bent": ("advantage", None),
    "capped": ("objective", None),
    "mild": ("modifier", None),
    "small-sums": ("preset", None),
    "carries": ("evaluation", None),
    "quiz": ("world", None),
    "doubles": ("dataset", None),
}
SMALL = ("trainer.prompts_per_step=4", "trainer.group_size=4")
OURS = ("grpokit", "__editable__", "_editable", "distutils-precedence")
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # those of pytest here, which start slowly and nobody there has

_END = "-- end of a command --\n"
_COMMANDS = f"""
import json, sys
from grpokit import cli
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise
    print({_END!r}, end="")
"""


@dataclass(frozen=True, kw_only=True)
class Clean:
    """A virtual environment with wheels of ours and, from outside, only what they depend on."""

    home: Path
    folder: Path  # where commands run

    def run(self, *words: str, folder: Path | None = None) -> str:
        """What a command of the environment prints; a failure fails the test with all that it said."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GRPOKIT", "PIP"))}
        done = subprocess.run(
            [self.home / "bin" / words[0], *words[1:]],
            cwd=folder or self.folder,
            env={**kept, **NO_PLUGINS, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def grpokit(self, *commands: Sequence[str]) -> list[str]:
        """What each of some commands prints; they share a process, which imports torch once."""
        said = self.run("python", "-c", _COMMANDS, json.dumps(commands))
        return said.split(_END)[:-1]

    def install(self, *projects: Path) -> None:
        """Build wheels with the tools of the outer environment, and install these wheels."""
        wheels = self.home / "wheels" / projects[0].name
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        build = [*pip, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, *projects]
        subprocess.run(build, check=True, capture_output=True)
        into = [*pip, "--python", self.home / "bin/python", "install", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*into, *sorted(wheels.glob("*.whl"))], check=True, capture_output=True)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """grpokit and grpokit-toy from wheels; then packages that this grpokit wrote, from wheels too."""
    top = tmp_path_factory.mktemp("clean")
    made = Clean(home=top / "env", folder=top / "work")
    made.folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made.home], check=True)
    _lend_dependencies(made.home)
    copies = []
    for name, source in SOURCES.items():  # a copy: a build leaves files beside what it builds
        copies.append(Path(shutil.copytree(source, top / "sources" / name, ignore=_not_needed)))
    made.install(*copies)
    made.grpokit(*(words_of(name) for name in WRITTEN))
    made.install(*(made.folder / f"grpokit-{name}" for name in WRITTEN))
    return made


def words_of(name: str) -> list[str]:
    """The words of the command that writes a package."""
    what, kind = WRITTEN[name]
    return ["new", what, name, *(["--kind", kind] if kind else [])]


def _not_needed(folder: str, names: list[str]) -> set[str]:
    left = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*", "plugins", "site")(folder, names)
    return left | ({"runs", "tests"} & set(names) if Path(folder) == ROOT else set())  # the package has such folders


def _lend_dependencies(home: Path) -> None:
    """Links to all of the outer environment's packages but ours, so that torch is not downloaded again."""
    lent = home / "lent"
    lent.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(OURS):
                (lent / entry.name).symlink_to(entry)
    inner = next(home.glob("lib*/python3*/site-packages"))
    (inner / "lent.pth").write_text(f"{lent}\n")


@pytest.mark.slow
def test_everything_of_ours_comes_from_the_wheels(clean: Clean) -> None:
    names = ("grpokit", "grpokit_toy", "grpokit_shine.reward", "grpokit_word_play", "grpokit_next_letter.policy")
    code = f"import importlib, json; print(json.dumps([importlib.import_module(n).__file__ for n in {names}]))"
    places = json.loads(clean.run("python", "-c", code))
    assert len(places) == 5
    assert all(Path(place).is_relative_to(clean.home) and "site-packages" in place for place in places), places


@pytest.mark.slow
def test_plugins_lists_them_and_nothing_is_broken(clean: Clean) -> None:
    rows = json.loads(clean.run("grpokit", "plugins", "--json"))
    listed = {(row["kind"], row["name"], row["package"], row["version"], row["state"]) for row in rows}
    assert {(what, name, f"grpokit-{name}", "0.1.0", "ok") for name, (what, _) in WRITTEN.items()} <= listed
    assert ("preset", "next-letter", "grpokit-next-letter", "0.1.0", "ok") in listed
    assert {package for _, _, package, _, _ in listed} == {*SOURCES, *(f"grpokit-{name}" for name in WRITTEN)}
    assert {state for *_, state in listed} == {"ok"}


@pytest.mark.slow
def test_a_wheel_knows_what_is_not_installed(clean: Clean) -> None:
    code = "from grpokit import registry; print(registry.remedy('reward', 'ssim'))"
    assert "pip install 'grpokit[ssim]'" in clean.run("python", "-c", code)


@pytest.mark.slow
def test_a_check_passes(clean: Clean) -> None:
    said = clean.run("grpokit", "check", "pixels")
    assert "pixels: all " in said
    assert "failed" not in said


@pytest.mark.slow
def test_their_own_tests_are_green(clean: Clean) -> None:
    folders = [f"grpokit-{name}/tests" for name in WRITTEN]
    options = ("-p", "no:cacheprovider", "--import-mode=importlib", "-v")
    said = clean.run("python", "-W", "error", "-m", "pytest", *options, *folders)
    assert "failed" not in said
    checks = {"shine": 12, "word-play": 12, "next-letter": 23, "pixels": 24, "one-colour": 24, "bent": 12, "capped": 10}
    for name in WRITTEN:
        assert len(re.findall(rf"test_{name.replace('-', '_')}\.py::.* PASSED", said)) >= checks.get(name, 1)


RUNS = {
    "shine": ["toy-glyph", "rewards=[{use: shine}]", *SMALL],
    "near_target": ["one-colour"],
    "right": [
        *("small-sums", "trainer.advantage=bent", "trainer.objective=capped", "trainer.modifiers=[{use: mild}]"),
        *SMALL,
    ],
}


@pytest.mark.slow
def test_two_steps_of_training(clean: Clean) -> None:
    small = {score: ["train", *words, "trainer.steps=2", f"run.dir=runs/{score}"] for score, words in RUNS.items()}
    for score, said in zip(small, clean.grpokit(*small.values()), strict=True):
        assert f"/runs/{score}/report.html" in said
        run = clean.folder / "runs" / score
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [step["step"] for step in steps] == [1, 2]
        assert all(0 < step[f"rewards/{score}/mean"] < 1 and step["grad_norm"] > 0 for step in steps)


# --- what is written -----------------------------------------------------------------------------------------------


def lines_of(file: Path) -> int:
    return sum(1 for line in file.read_text().splitlines() if line.strip())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that can be written, with the shortest and the longest name."""
    top = tmp_path_factory.mktemp("written")
    for letter, (what, kind) in zip("abcdefghijkl", WRITTEN.values(), strict=False):
        new(what, letter, folder=top, kind=kind)
        new(what, f"{letter}-{'x' * 28}", folder=top, kind=kind)
    return top


def test_the_authors_own_lines_are_few(written: Path) -> None:
    for name in ("a", "b"):
        assert lines_of(written / f"grpokit-{name}/src/grpokit_{name}/reward.py") <= 25
        body = (written / f"grpokit-{name}/tests/test_{name}.py").read_text()
        contract = body[body.index("@parametrize") :].split("\n\n\n")[0]
        assert lines_of_text(contract) == 3


def test_the_documentation_shows_what_is_written(tmp_path: Path) -> None:
    made = new("reward", "shine", folder=tmp_path)
    page = (ROOT / "docs/plugins.md").read_text()
    assert (made.folder / "src/grpokit_shine/reward.py").read_text() in page
    body = (made.folder / "tests/test_shine.py").read_text()
    assert body[body.index("@parametrize") :].split("\n\n\n")[0].replace("\n", "\n    ") in page


def lines_of_text(text: str) -> int:
    return len(text.strip().splitlines())


def test_ruff_has_nothing_to_say(written: Path) -> None:
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--no-cache", "."],
            cwd=written,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    files = [file for file in written.rglob("*") if file.suffix in (".py", ".md")]
    assert done.stdout == f"{len(files)} files already formatted\n"


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.fixture
def say(call: Call) -> Callable[..., str]:
    """`say("reward", "x")` is what `grpokit new reward x` says in an empty folder when it refuses with exit code 2."""

    def refused(*words: str) -> str:
        done = call("new", *words)
        assert (done.code, done.out) == (2, "")
        return done.err

    return refused


BAD = {
    "capital letters": (["reward", "Sharp"], "'Sharp' cannot name a package"),
    "underscore": (["reward", "my_reward"], "'my_reward' cannot name a package"),
    "a path": (["reward", "../evil"], "'../evil' cannot name a package"),
    "too long": (["reward", "x" * 31], "cannot name a package"),
    "the package's name": (["reward", "grpokit-sharp"], "Leave 'grpokit-' out"),
    "a reward's name": (["reward", "ssim"], "already the name of a reward of grpokit-ssim"),
    "a plugin's name": (["policy", "toy"], "already the name of a plugin of grpokit-toy"),
    "no text in YAML": (["policy", "null"], "'null' means something else"),
    "the sum's name": (["reward", "reward"], "'reward' means something else"),
    "neither": (["rewrd", "sharp"], "did you mean 'reward'?"),
    "another kind": (["reward", "sharp", "--kind", "images"], "did you mean 'image'?"),
    "no kinds": (["advantage", "sharp", "--kind", "text"], "An advantage has no kinds; got 'text'."),
}


@pytest.mark.parametrize(("words", "expected"), BAD.values(), ids=BAD)
def test_bad_input(say: Callable[..., str], tmp_path: Path, words: list[str], expected: str) -> None:
    assert expected in say(*words)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(say: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "grpokit-sharp").mkdir()
    (tmp_path / "grpokit-sharp/mine.txt").write_text("mine")
    assert "grpokit-sharp exists already" in say("reward", "sharp")
    assert [file.name for file in (tmp_path / "grpokit-sharp").iterdir()] == ["mine.txt"]


USES = {
    "reward": "grpokit train toy-glyph 'rewards=[{use: sharp}]' trainer.steps=5 run.dir=runs/sharp --overwrite",
    "policy": "grpokit train sharp --overwrite",
    "advantage": "grpokit train toy-lm trainer.advantage=sharp trainer.steps=5 run.dir=runs/sharp --overwrite",
    "objective": "grpokit train toy-lm trainer.objective=sharp trainer.steps=5 run.dir=runs/sharp --overwrite",
    "modifier": "grpokit train toy-lm 'trainer.modifiers=[{use: sharp}]' trainer.steps=5 run.dir=runs/sharp "
    "--overwrite",
    "preset": "grpokit train sharp trainer.steps=5 run.dir=runs/sharp --overwrite",
    "evaluation": "grpokit evaluate toy-lm --with sharp",
    "world": "grpokit check sharp",
    "dataset": "grpokit train toy-lm 'data={use: sharp}' trainer.steps=5 run.dir=runs/sharp --overwrite",
}


@pytest.mark.parametrize(("what", "use"), USES.items(), ids=USES)
def test_the_last_step_can_be_typed_twice(tmp_path: Path, what: str, use: str) -> None:
    steps = new(what, "sharp", folder=tmp_path).next_steps
    assert steps[-1] == use
    page = (tmp_path / "grpokit-sharp/README.md").read_text()
    assert f"\n    {use}\n" in page


@pytest.mark.parametrize("what", ["reward", "policy"])
def test_a_warning_fails_its_tests(tmp_path: Path, what: str) -> None:
    place = new(what, "sharp", folder=tmp_path).folder
    (place / "tests/test_sharp.py").write_text(
        "import warnings\n\n\ndef test_mean() -> None:\n    warnings.warn('Mean of empty slice', RuntimeWarning)\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, **NO_PLUGINS}
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAILED tests/test_sharp.py::test_mean - RuntimeWarning: Mean of empty slice" in done.stdout


IDEAS = {
    "shine": "contrast|spread|halves",
    "word-play": "variety|no word is repeated|different words",
    "next-letter": "cipher|letters",
    "pixels": "colour",
    "bent": "soft.limit",
    "capped": "capped",
    "mild": "lower.?weight",
    "small-sums": r"\bsums\b",
    "carries": r"\bsums\b",
    "quiz": "quiz",
    "doubles": "double",
}


@pytest.mark.parametrize(("template", "idea"), IDEAS.items(), ids=IDEAS)
def test_its_readme_names_every_place_that_speaks_of_the_template(tmp_path: Path, template: str, idea: str) -> None:
    what, kind = WRITTEN[template]
    made = new(what, "sharp", folder=tmp_path, kind=kind)
    speaks = {file for file in made.files if re.search(idea, (made.folder / file).read_text().lower())}
    listed = set(re.findall(r"^\| `([^`]+)` \|", (made.folder / "README.md").read_text(), re.MULTILINE))
    assert speaks <= listed <= set(made.files)
    assert len(speaks) >= 3


AUTHORS = {'Åsa "Å" Øst': '[user]\nname = "Åsa \\"Å\\" Øst"\n', "YOUR NAME": ""}


@pytest.mark.parametrize(("author", "config"), AUTHORS.items(), ids=["user", "nobody"])
def test_its_authors_are_the_user_or_a_placeholder_that_the_readme_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, author: str, config: str
) -> None:
    (tmp_path / "gitconfig").write_text(config)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.chdir(tmp_path)
    place = new("reward", "sharp", folder=tmp_path).folder
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    assert project["authors"] == [{"name": author}]
    assert re.search(rf"Copyright \d{{4}} {author}\n", (place / "LICENSE").read_text())
    page = (place / "README.md").read_text()
    assert ("YOUR NAME" in page) == (author == "YOUR NAME")
    assert "YOUR-ACCOUNT" in project["urls"]["Source"]
    assert "YOUR-ACCOUNT" in page


def test_its_license_is_ours_but_for_the_holder(tmp_path: Path) -> None:
    lines = (new("reward", "sharp", folder=tmp_path).folder / "LICENSE").read_text().splitlines()
    ours = (ROOT / "LICENSE").read_text().splitlines()
    assert [line.split()[0] for line, own in zip(ours, lines, strict=True) if line != own] == ["Copyright"]


@pytest.mark.parametrize("what", USES)
def test_its_workflows_try_the_oldest_and_the_newest_grpokit_and_publish_without_a_token(
    tmp_path: Path, what: str
) -> None:
    place = new(what, "sharp", folder=tmp_path).folder
    test, publish = (
        yaml.safe_load((place / f".github/workflows/{name}.yml").read_text()) for name in ("test", "publish")
    )
    matrix = test["jobs"]["test"]["strategy"]["matrix"]
    bound = tomllib.loads((place / "pyproject.toml").read_text())["project"]["dependencies"][0]
    oldest = bound.replace("~=", "==")
    assert (matrix["grpokit"], [each["grpokit"] for each in matrix["include"]]) == (["grpokit"], [oldest])
    assert [step["run"] for step in test["jobs"]["test"]["steps"] if "run" in step] == [
        "pip install -e '.[test]' '${{ matrix.grpokit }}'",
        "pytest",
        "grpokit check sharp",
    ]
    assert publish["jobs"]["publish"]["needs"] == "test"
    assert publish["jobs"]["publish"]["permissions"]["id-token"] == "write"


def test_the_next_steps_can_be_pasted(tmp_path: Path, call: Call) -> None:
    done = call("new", "reward", "sharp", "--folder", "my plugins", "--kind", "text")
    assert done.code == 0
    assert done.out == (
        "my plugins/grpokit-sharp holds a working reward in 11 files. Next:\n\n"
        "  cd 'my plugins/grpokit-sharp'\n"
        "  pip install -e '.[test]'\n"
        "  pytest\n"
        "  grpokit check sharp\n"
        "  grpokit train toy-lm 'rewards=[{use: sharp}]' trainer.steps=5 run.dir=runs/sharp --overwrite\n"
    )
    found = sorted(str(f.relative_to(tmp_path / "my plugins")) for f in tmp_path.rglob("*") if f.is_file())
    assert found == [
        "grpokit-sharp/.github/workflows/publish.yml",
        "grpokit-sharp/.github/workflows/test.yml",
        "grpokit-sharp/.gitignore",
        "grpokit-sharp/LICENSE",
        "grpokit-sharp/README.md",
        "grpokit-sharp/pyproject.toml",
        "grpokit-sharp/src/grpokit_sharp/__init__.py",
        "grpokit-sharp/src/grpokit_sharp/plugin.py",
        "grpokit-sharp/src/grpokit_sharp/py.typed",
        "grpokit-sharp/src/grpokit_sharp/reward.py",
        "grpokit-sharp/tests/test_sharp.py",
    ]
    workflow = yaml.safe_load((tmp_path / "my plugins/grpokit-sharp/.github/workflows/test.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert workflow["jobs"]["test"]["steps"][1]["with"]["python-version"] == "${{ matrix.python }}"
