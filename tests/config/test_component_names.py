"""What a run folder calls components, and what a resume makes of names when other plugins have come."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributions import announcing, distribution
from grpokit import PluginError, UsageError, registry
from grpokit.config import evaluation, grid, presets
from grpokit.config.component_names import component_names, with_lasting_names
from grpokit.config.schema import parse, to_dict
from grpokit.registry import name_lookup
from grpokit.runs import train as run
from grpokit.runs.sweep import sweep
from small_runs import rows, train, write_prompts

MINE = {
    "Policy": "switched:Switched",
    "Reward": "switched:reward",
    "Advantage": "grpokit.advantages:rloo",
    "Objective": "grpokit.objectives:DAPO",
    "Modifier": "grpokit:Modifier",
}
SHORT: dict[str, Any] = {
    "policy": {"use": "twin"},
    "rewards": [{"use": "twin"}],
    "trainer__advantage": "twin",
    "trainer__objective": {"use": "twin"},
    "trainer__modifiers": ["twin"],
}


def brings_twins(site: Path, package: str, factories: dict[str, str]) -> None:
    """A distribution that brings a `twin` of each kind."""
    specs = [announcing(kind, f"api=1, name='twin', factory='{factory}'") for kind, factory in factories.items()]
    distribution(site, package, "twin", "\n\n".join(specs))
    importlib.invalidate_caches()
    registry.plugins.cache_clear()


@pytest.fixture
def here(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with prompts and the distribution "grpokit-mine"."""
    monkeypatch.chdir(site)
    write_prompts([str(number) for number in range(1, 9)])
    brings_twins(site, "grpokit-mine", MINE)
    return site


def qualified(package: str) -> dict[str, Any]:
    """The settings of `SHORT` with the distribution in front."""
    name = f"{package}:twin"
    return {
        "policy": {"use": name},
        "rewards": [{"use": name}],
        "trainer__advantage": name,
        "trainer__objective": {"use": name},
        "trainer__modifiers": [name],
    }


def test_a_run_folder_says_whose_each_component_is(here: Path) -> None:
    train("run", trainer__steps=1, **SHORT)
    config = yaml.safe_load((here / "run/config.yaml").read_text())
    assert config["policy"]["use"] == config["rewards"][0]["use"] == "grpokit-mine:twin"
    assert (config["trainer"]["advantage"], config["trainer"]["objective"]["use"]) == ("grpokit-mine:twin",) * 2
    assert config["trainer"]["modifiers"] == ["grpokit-mine:twin"]
    assert "rewards/twin/mean" in rows("run/metrics.jsonl")[0]  # a metric's name stays short
    train("core", trainer__steps=1)
    config = yaml.safe_load((here / "core/config.yaml").read_text())
    assert (config["trainer"]["advantage"], config["trainer"]["objective"]) == ("group", "grpo")


@pytest.mark.parametrize("later", [SHORT, qualified("grpokit-mine")], ids=["short", "qualified"])
def test_a_clash_that_appears_later_stops_no_resume(here: Path, later: dict[str, Any]) -> None:
    train("whole", trainer__steps=4, **SHORT)
    train("run", trainer__steps=2, **SHORT)
    brings_twins(here, "late-twin", dict.fromkeys(MINE, "builtins:len"))
    with pytest.raises(PluginError, match="ambiguous: write 'grpokit-mine:twin' or 'late-twin:twin'"):
        train("new", **SHORT)
    lines: list[str] = []
    train("run", trainer__steps=4, resume=True, watcher=run.Watcher(say=lines.append), **later)
    means = [[row["loss"] for row in rows(f"{folder}/metrics.jsonl")] for folder in ("whole", "run")]
    assert means[0] == means[1]
    assert len([line for line in lines if "'twin' means 'grpokit-mine:twin'" in line]) == (5 if later is SHORT else 0)


def test_a_name_that_the_core_gets_later_means_what_it_meant(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train("run", trainer__steps=2, **SHORT)
    brings_twins(here, "late-core", dict.fromkeys(MINE, "builtins:len"))
    monkeypatch.setattr(name_lookup, "CORE", "late-core")
    assert train("run", trainer__steps=3, resume=True, **SHORT).steps == 3


def test_another_packages_component_is_another_config(here: Path) -> None:
    brings_twins(here, "other-twin", MINE)
    train("run", trainer__steps=2, **qualified("grpokit-mine"))
    with pytest.raises(UsageError, match=r"rewards\.0\.use: 'grpokit-mine:twin' -> 'other-twin:twin'"):
        train("run", trainer__steps=3, resume=True, **qualified("other-twin"))


def test_a_finished_run_of_a_sweep_stays_finished(here: Path) -> None:
    (here / "config.yaml").write_text(
        "policy: {use: twin}\ndata: {prompts: prompts.jsonl}\nrewards: [{use: twin}]\n"
        "trainer: {steps: 1, prompts_per_step: 2, group_size: 4, device: cpu}\n"
    )
    points = grid.points(["seed=1..2", "trainer.advantage=twin"])
    sweep("config.yaml", points, folder=here / "sweep")
    brings_twins(here, "late-twin", dict.fromkeys(MINE, "builtins:len"))
    lines: list[str] = []
    sweep("config.yaml", points, folder=here / "sweep", say=lines.append)
    assert [line.endswith(" is finished") for line in lines] == [True, True]


CONFIG = """
policy: {use: twin, world: {use: twin, rewards: none}, size: [1]}
data: {use: twin}
rewards: [{use: length}, {use: twin, placement: {twin: {url: x}}}]
trainer: {advantage: twin, objective: {use: dapo}}
phases:
  - {name: a, policy: twin, steps: 1, rewards: [{use: twin, world: twin}], trainer: {objective: twin}}
"""


def test_every_kind_of_name_is_made_lasting(here: Path) -> None:
    kinds = {**MINE, "World": "builtins:len", "Placement": "builtins:len", "Dataset": "builtins:len"}
    for info in here.glob("*.dist-info"):
        info.rename(here / "away")
    brings_twins(here, "all-twins", kinds)
    config = parse(CONFIG, "c.yaml")
    lasting, lines = with_lasting_names(config)
    assert lines == []
    plain = to_dict(lasting)
    assert plain["policy"] == {
        "use": "all-twins:twin",
        "world": {"use": "all-twins:twin", "rewards": "none"},
        "size": [1],
    }
    assert plain["data"]["use"] == "all-twins:twin"
    assert plain["rewards"][0]["use"] == "length"
    assert plain["rewards"][1]["placement"] == {"all-twins:twin": {"url": "x"}}
    assert plain["trainer"]["advantage"] == "all-twins:twin"
    phase = plain["phases"][0]
    assert phase["policy"] == "twin"  # one of the policies over a model
    assert (phase["rewards"][0]["use"], phase["rewards"][0]["world"]) == ("all-twins:twin",) * 2
    assert phase["trainer"] == {"objective": "all-twins:twin"}
    assert config.policy.use == "twin"
    again, lines = with_lasting_names(config, component_names(lasting))
    assert (to_dict(again), lines) == (plain, [])


FILE = """
policy: {use: twin}
data: {prompts: prompts.jsonl}
rewards: [{use: twin}, {use: length}]
trainer: {advantage: twin, objective: {use: twin}, modifiers: [twin]}
"""


def test_a_preset_and_an_evaluation_mean_the_components_of_their_own_distribution(here: Path) -> None:
    (here / "kit").mkdir()
    (here / "kit/__init__.py").touch()
    (here / "kit/preset.yaml").write_text(FILE)
    (here / "kit/evaluation.yaml").write_text("data: {prompts: prompts.jsonl}\nrewards: [{use: twin}]\n")
    files = {"Preset": "kit:preset.yaml", "Evaluation": "kit:evaluation.yaml"}
    for package in ("other-twin", "a-twin"):
        brings_twins(here, package, {**MINE, **files})
    for package in ("other-twin", "a-twin"):
        config, name = presets.read_config(f"{package}:twin")
        names = {name for _, name in component_names(config).values()}
        assert (name, names) == ("twin", {f"{package}:twin", "length"})
        config = evaluation.put_in(config, evaluation.read_evaluation(f"{package}:twin"))
        assert config.rewards[0].use == f"{package}:twin"
    (here / "config.yaml").write_text(FILE)
    assert presets.read_config("config.yaml")[0].policy.use == "twin"
