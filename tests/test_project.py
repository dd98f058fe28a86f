"""What a project needs beside its code: workflows that run what the Makefile has, and one version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import index_page
import planted_faults
import pytest
import versions
import yaml

import grpokit

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
TESTS = sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/tests/**/test_*.py")])
BEHAVIOUR = """
test_conformance.py test_imports.py test_kill*.py test_resum*.py
tests/cli/test_bad_input.py tests/cli/test_fuzz.py tests/gpu/* tests/processes/*
tests/runs/test_learning.py tests/runs/test_objectives_and_advantages.py
tests/test_docs.py tests/test_project.py tests/test_recipes.py tests/test_run_by_hand.py tests/test_site.py
tests/test_traps.py tests/test_ward_*.py
grpokit-glm-image/tests/test_edits.py grpokit-glm-image/tests/test_mistakes.py
grpokit-lm/tests/test_memory.py grpokit-lm/tests/test_mixed_precision.py
grpokit-lm/tests/test_policy_files.py grpokit-lm/tests/test_several_rewards.py
grpokit-methods/tests/test_runs.py grpokit-methods/tests/test_training.py
"""  # files that hold what many modules do together
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_the_makefile_has(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step for job in content["jobs"].values() for step in job.get("steps", [])]
    commands = [step["run"] for step in steps if "run" in step]
    made = " ".join(words for line in commands for words in re.findall(r"\bmake ([\w -]+)", line))
    asked = set(made.split()) - {"PY"}
    assert asked <= targets
    for file in (word for line in commands for word in re.findall(r"\S+\.py\b", line)):
        assert (ROOT / file).is_file()
    assert all({"timeout-minutes", "needs", "uses"} & set(job) for job in content["jobs"].values())


def test_workflows_try_three_versions_of_python_and_publish_without_a_token() -> None:
    ci, release = (yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()) for name in ("ci", "release"))
    assert ci["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert set(release["jobs"]["publish"]["needs"]) == {"ci", "build"}
    assert release["jobs"]["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert "secrets." not in "".join(path.read_text() for path in WORKFLOWS)


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5, such as that of Debian 12, matches some of these wrongly (python/cpython#106052)."""
    possessive = re.compile(r"\)(?:[*+?]|\{\d*,?\d*\}|\{\{\d*,?\d*\}\})\+")
    assert possessive.search(r"(?:ab?c)*+")
    sources = [*ROOT.glob("grpokit/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    assert [str(file) for file in sources if possessive.search(file.read_text())] == []


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_an_issue_form_asks_for_something(name: str) -> None:
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text())
    assert form["name"]
    assert form["description"]
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_all_distributions_have_one_version() -> None:
    stated = versions.versions()
    assert len(stated) == 2 + len(list(ROOT.glob("plugins/*/pyproject.toml")))
    assert set(stated.values()) == {grpokit.__version__}


@pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
def test_a_distribution_says_what_an_index_shows(folder: Path) -> None:
    """Whose it is, what it may be used for, where it runs and where more stands; plugins are found by a keyword."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["authors"] == [{"name": author["name"]} for author in cited["authors"]]
    assert project["license"] == cited["license"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert project["classifiers"] == core["classifiers"]
    assert project["requires-python"] == core["requires-python"]
    is_plugin = folder != ROOT and "grpokit" in project.get("entry-points", {})
    assert ("grpokit-plugin" in project["keywords"]) == is_plugin
    source = core["urls"]["Source"] + ("" if folder == ROOT else f"/tree/main/plugins/{folder.name}")
    assert project["urls"] == {**core["urls"], "Source": source}


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("[a](docs/configs.md#phases)", "[a](https://grpokit.readthedocs.io/en/latest/configs/#phases)"),
        ("[a](docs/index.md)", "[a](https://grpokit.readthedocs.io/en/latest/)"),
        ("![a](docs/images/a.png)", "![a](https://grpokit.readthedocs.io/en/latest/images/a.png)"),
        ("[a](plugins/b)", "[a](https://github.com/grpokit/grpokit/blob/main/plugins/b)"),
        ("[a](https://example.org/docs/b.md)", "[a](https://example.org/docs/b.md)"),
        ("[a](#install)", "[a](#install)"),
    ],
)
def test_a_link_on_an_index_page(link: str, address: str) -> None:
    assert index_page.with_absolute_links(link) == address


def test_links_of_readmes_lead_somewhere() -> None:
    links = index_page.RELATIVE.findall((ROOT / "README.md").read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
    readmes = {folder: (folder / "README.md").read_text() for folder in DISTRIBUTIONS if folder != ROOT}
    assert [folder.name for folder, text in readmes.items() if index_page.RELATIVE.search(text)] == []


def test_classifiers_name_the_versions_of_python_that_ci_tries() -> None:
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert named == ci["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={named[0]}"


def test_our_distributions_bound_each_other() -> None:
    every = versions.projects()
    assert list(versions.wrong_bounds(every)) == []
    for project in every.values():
        project["version"] = "0.2.0"
    places = {line.partition(" ")[0] for line in versions.wrong_bounds(every)}
    assert places == set(every)
    assert "pyproject.toml requires grpokit-ocr~=0.1.0; expected grpokit-ocr~=0.2.0." in versions.wrong_bounds(every)


@pytest.mark.parametrize("bound", ["", ">=0.1.0", "~=0.1.0,!=0.1.1"])
def test_a_bound_without_an_end_is_refused(bound: str) -> None:
    core, plugin = ({"name": name, "version": "0.1.0", "dependencies": []} for name in ("grpokit", "grpokit-mine"))
    plugin["dependencies"] = [f"grpokit{bound}", "torch"]
    assert len(list(versions.wrong_bounds({"a": core, "b": plugin}))) == 1


def modules_for(test: Path) -> set[str]:
    """What a test file may be named after: modules of its folder, or the folder itself; in a plugin any module."""
    if test.parts[0] == "plugins":
        plugin = ROOT / "plugins" / test.parts[1]
        library = ROOT / "plugins/grpokit-hf/src/grpokit_hf"
        folders = [*plugin.glob("src/*"), plugin / "tools", plugin / "tests", library]
        return {plugin.name.removeprefix("grpokit-")} | {path.stem for folder in folders for path in folder.rglob("*")}
    folder = Path(*test.parts[1:-1])
    folders = [ROOT / "grpokit" / folder, ROOT / "tests/helpers", ROOT / (folder if folder.parts else "tools")]
    return {folder.name} | {path.stem for folder in folders for path in folder.glob("*")}


def test_a_test_file_is_named_after_what_it_tests() -> None:
    files = [path.relative_to(ROOT) for path in TESTS]
    others = [file for file in files if file.stem.removeprefix("test_") not in modules_for(file)]
    patterns = BEHAVIOUR.split()
    assert [str(file) for file in others if not any(file.match(pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(file.match(pattern) for file in others)] == []


def test_each_planted_fault_has_its_place_in_the_code() -> None:
    def count(fault: planted_faults.Fault) -> int:
        return (ROOT / fault.file).read_text().count(fault.old)

    assert [fault.name for fault in planted_faults.FAULTS if count(fault) != 1] == []


@pytest.mark.parametrize(
    ("stated", "tag", "changelog", "words"),
    [
        ({"a": "1.0", "b": "1.0"}, "v1.0", "# Changelog\n\n## 1.0 (2026-01-02)\n", ""),
        ({"a": "1.0", "b": "1.1"}, "", "", "The versions differ: a has 1.0, b has 1.1."),
        ({"a": "1.0"}, "v1.1", "", "expected the tag v1.0"),
        ({"a": "1.0"}, "v1.0", "# Changelog\n\n## Unreleased\n", "Rename 'Unreleased'"),
    ],
)
def test_a_release_with_another_version_is_refused(
    stated: dict[str, str], tag: str, changelog: str, words: str
) -> None:
    complaint = versions.complaint(stated, tag, changelog)
    assert words in complaint
    assert bool(words) == bool(complaint)
