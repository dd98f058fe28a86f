"""Whole runs with a reward in a capsule: the bits of a run that scores in its own process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Call, call, without_report  # noqa: F401
from grpokit import create, registry
from grpokit.config import presets
from grpokit.runs import build_rewards
from grpokit.types import Prompt, Sample
from made_plugins import install
from small_runs import STEPS, rows, train, write_prompts
from whole_runs import assert_same

SCORERS = Path(__file__).parent / "scorers"
USE = "capsule_scorers:Lengths"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPOKIT_CAPSULES", str(tmp_path / "capsules"))
    monkeypatch.chdir(tmp_path)
    write_prompts(["12", "3", "45"])
    return tmp_path


def rewards(path: Path = SCORERS, **options: Any) -> list[dict[str, Any]]:
    capsule = {"python": sys.executable, "path": str(path), **options}
    return [{"use": USE, "most": 3, "placement": {"capsule": capsule}}]


def test_a_run_has_the_bits_of_one_in_its_own_process(folder: Path) -> None:
    train("here", rewards=[{"use": USE, "most": 3}])
    train("there", rewards=rewards(replicas=2))
    assert_same(folder / "here", folder / "there")
    versions = json.loads((folder / "there" / "versions.json").read_text())["rewards"]["Lengths"]
    assert versions["python"] == sys.version.split()[0]
    assert versions["numpy"]


def test_a_resume_has_the_same_bits(folder: Path) -> None:
    train("whole", rewards=rewards(), eval__every=STEPS // 2)
    train("half", rewards=rewards(), eval__every=STEPS // 2, trainer__steps=STEPS // 2)
    train("half", rewards=rewards(replicas=2), eval__every=STEPS // 2, resume=True)
    assert_same(folder / "whole", folder / "half")


def test_a_resume_says_what_has_changed_in_the_capsule(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    scorer = own / "capsule_scorers.py"
    scorer.write_text((SCORERS / "capsule_scorers.py").read_text())
    train("run", rewards=rewards(own), trainer__steps=3)
    header = folder / "run" / "versions.json"
    before = json.loads(header.read_text())
    before["rewards"]["Lengths"]["numpy"] = "1.0"
    header.write_text(json.dumps(before))
    scorer.write_text(scorer.read_text().replace("min(", "2 * min("))
    train("run", rewards=rewards(own), resume=True)
    (warning,) = [row["message"] for row in rows("run/warnings.jsonl") if "other versions" in row["message"]]
    now = json.loads(header.read_text())["rewards"]["Lengths"]
    assert f"rewards.Lengths.numpy 1.0 -> {now['numpy']}" in warning
    assert f"rewards.Lengths.code {before['rewards']['Lengths']['code']} -> {now['code']}" in warning


PLUGIN = """
from grpokit import RewardSpec, hookimpl

@hookimpl
def grpokit_rewards():
    placement = {{"capsule": {{"python": {python!r}}}}}
    yield RewardSpec(api=1, name="tail", factory="made_scorer.inside:Tail", accepts={{"text"}}, placement=placement)
    yield RewardSpec(api=1, name="alone", factory="made_alone:score", accepts={{"text"}}, placement=placement)
    short = {{"capsule": ["pillow<12"]}}
    yield RewardSpec(api=1, name="short", factory="made_alone:score", accepts={{"text"}}, placement=short)
"""
INSIDE = """
import os
from made_scorer.constants import FACTOR

class Tail:
    def __init__(self, add=0):
        self.add = add

    def __call__(self, samples):
        assert type(samples[0]).__module__ == "__main__"  # no class of grpokit
        return [FACTOR * len(sample.output) + self.add for sample in samples]
"""


def test_a_plugin_says_that_its_reward_runs_in_a_capsule(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the reward is imported in the capsule alone, and from the run's own files."""
    package = folder / "made_scorer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "constants.py").write_text("FACTOR = 10")
    (package / "inside.py").write_text(INSIDE)
    (folder / "made_alone.py").write_text("def score(samples, by=1):\n    return [by] * len(samples)")
    install(folder, monkeypatch, tail=PLUGIN.format(python=sys.executable))
    samples = [Sample(prompt=Prompt("p"), output="abc", group=0)]
    reward = create("reward", "tail", {"add": 2})
    assert reward(samples) == [32.0]
    assert "made_scorer.inside" not in sys.modules
    reward.close()
    config, _ = presets.read_config("toy-lm", ["rewards=[{use: tail, add: 2, reward_timeout: 7}]"])
    (term,) = build_rewards.rewards(config)
    assert term.reward(samples) == [32.0]
    assert term.reward.timeout == 7
    term.reward.close()
    more = registry.place("alone", {"by": 4}, {"capsule": {"replicas": 2}})
    assert more(samples) == [4.0]
    assert more.replicas == 2
    more.close()
    assert registry.placement_of("short", {}) == ("capsule", {"requires": ["pillow<12"]})
    both = {"requires": ["pillow<12"], "gpu": 1}
    assert registry.placement_of("short", {"capsule": {"gpu": 1}}) == ("capsule", both)


def test_the_command_builds_what_a_config_needs(folder: Path, call: Call) -> None:  # noqa: F811
    placement = {"capsule": {"requires": ["pillow<12"]}}
    config = {
        "policy": {"use": "hf-lm", "world": {"use": "capsule", "world": "w:W", "requires": ["pillow<12.1"]}},
        "data": {"prompts": "prompts.jsonl"},
        "rewards": [{"use": "capsule_scorers:fingerprint", "placement": placement}, {"use": "length", "maximum": 3}],
    }
    (folder / "run.yaml").write_text(json.dumps(config))
    done = call("capsules", "run.yaml")
    assert done.code == 0
    capsules = json.loads(call("capsules", "--json").out)
    assert {name["requires"][0]: name["name"] in done.out for name in capsules} == {
        "pillow<12": True,
        "pillow<12.1": True,
    }
    capsule = capsules[0]
    assert capsule["name"] in call("capsules").out
    assert call("capsules", "--remove", "nothing").code == 2
    assert call("capsules", "--remove", capsule["name"]).code == 0
    assert json.loads(call("capsules", "--json").out) == capsules[1:]
    torn = folder / "capsules" / "0123" / "environment-0"
    torn.mkdir(parents=True)
    assert call("capsules", "--remove", "all").code == 0
    assert not torn.exists()
    config["rewards"] = config["rewards"][1:]
    config["policy"] = {"use": "toy-lm"}
    (folder / "run.yaml").write_text(json.dumps(config))
    assert call("capsules", "run.yaml").code == 2
