"""The checks of presets and evaluations: right ones pass, and each mistake is caught by its check."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from grpokit import EvaluationSpec, PresetSpec, registry
from grpokit_check import evaluation_checks, outcomes, preset_checks

PRESET = """
policy: {use: "tiny_policies:TinyTokens"}
data: {use: "tiny_data:numbers"}
rewards: [{use: "tiny_rewards:letters"}]
trainer: {prompts_per_step: 2, group_size: 2, steps: 2}
"""
EVALUATION = """
data: {use: "tiny_data:numbers"}
rewards: [{use: length, maximum: 5}]
by: [kind]
"""
DATA = """
from grpokit import Prompt

def numbers(split="train"):
    return [Prompt(text=str(i), meta={"kind": "even" if i % 2 == 0 else "odd"}) for i in range(4)]

def nothing(split="train"):
    return []
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tiny_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (tmp_path / "tiny_data.py").write_text(DATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("tiny_package", "tiny_data"):  # of the test before
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def failed(checks: Any) -> dict[str, str]:
    return {o.name: o.message for o in outcomes(checks) if o.failed}


@pytest.mark.parametrize(
    ("text", "other", "caught", "said"),
    [
        ("steps: 2", "steps: 2", set(), ""),
        ("group_size", "group_sise", {"config", "components", "data", "trial"}, "did you mean 'group_size'?"),
        ("tiny_rewards:letters", "leters", {"components", "trial"}, "There is no reward called 'leters'"),
        ("letters", "letters\\", {"config", "components", "data", "trial"}, "not YAML"),
        ("numbers", "nothing", {"data", "trial"}, "gave no prompts"),
        ("letters", "negatted", {"components", "trial"}, "has no such function"),
    ],
)
def test_presets(package: Path, text: str, other: str, caught: set[str], said: str) -> None:
    (package / "small.yaml").write_text(PRESET.replace(text, other))
    found = failed(preset_checks(PresetSpec(api=1, name="small", factory="tiny_package:small.yaml")))
    assert set(found) == caught, found
    assert all(said in message for message in found.values()), found


def test_a_preset_without_its_file_and_one_that_fetches(package: Path) -> None:
    lacking = failed(preset_checks(PresetSpec(api=1, name="small", factory="tiny_package:none.yaml")))
    assert "cannot be read from the file none.yaml" in lacking["config"]
    (package / "large.yaml").write_text(PRESET)
    spec = PresetSpec(api=1, name="large", factory="tiny_package:large.yaml", fetches=True, needs="a GPU")
    states = {o.name: (o.state, o.message) for o in outcomes(preset_checks(spec))}
    assert states["components"][0] == "ok"
    assert states["trial"] == ("not checked", "it needs a GPU")


@pytest.mark.parametrize(
    ("text", "other", "caught"),
    [
        ("kind", "kind", set()),
        ("kind", "kinds", {"data"}),
        ("maximum", "maximun", {"rewards"}),
        ("by:", "bye:", {"config", "rewards", "data"}),
        ("numbers", "nothing", {"data"}),
    ],
)
def test_evaluations(package: Path, text: str, other: str, caught: set[str]) -> None:
    (package / "own.yaml").write_text(EVALUATION.replace(text, other))
    spec = EvaluationSpec(api=1, name="own", factory="tiny_package:own.yaml")
    assert set(failed(evaluation_checks(spec))) == caught


@pytest.mark.slow
@pytest.mark.parametrize("name", [spec.name for _, spec in registry.installed("evaluation")])
def test_evaluations_of_our_plugins(name: str) -> None:
    _, spec = registry.find("evaluation", name)
    assert isinstance(spec, EvaluationSpec)
    assert not failed(evaluation_checks(spec))
