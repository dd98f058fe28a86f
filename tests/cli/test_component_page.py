"""The page of one component: what it needs, how hard it is to fool, and an example that works as it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from command_line import Call, complete
from distributions import announcing, distribution
from grpokit import GrpokitError, registry
from grpokit.cli import component_page
from grpokit.config import presets, schema
from grpokit.registry.entry_points import COMPONENT_KINDS
from grpokit.rewards.scoring import score_samples
from grpokit.runs import build, build_rewards
from grpokit_check.reward.examples import samples_for

COMMANDS = {"command": "grpokit {}", "preset": "grpokit train {}", "evaluation": "grpokit evaluate RUN --with {}"}
CONFIGURED = [kind for kind in COMPONENT_KINDS if kind not in COMMANDS]
OFFLINE_REWARDS = 30  # at least; the others need weights or ask a service


@pytest.mark.slow  # it imports every component
@pytest.mark.parametrize("kind", CONFIGURED)
def test_the_example_of_every_component_is_part_of_a_config(kind: str) -> None:
    for _, spec in registry.installed(kind):
        about = component_page.facts(kind, spec.name)
        assert not about["problem"]
        config = schema.parse(complete(about["example"]), spec.name)
        assert spec.name in str(yaml.safe_load(about["example"]))
        build.check_components(config)


@pytest.mark.parametrize("kind", COMMANDS)
def test_the_example_of_a_command_is_one(kind: str) -> None:
    for _, spec in registry.installed(kind):
        assert component_page.facts(kind, spec.name)["example"].startswith(COMMANDS[kind].format(spec.name))


@pytest.mark.slow
def test_the_example_of_every_reward_that_runs_here_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    scored = []
    for _, spec in registry.installed("reward"):
        about = component_page.facts("reward", spec.name)
        if not {"image", "text"} & set(spec.accepts) or spec.gpu_memory or "url:" in about["example"]:
            continue
        config = schema.parse(complete(about["example"]), spec.name)
        config.policy.use = "any.module:Policy"  # of any output
        try:
            terms = build_rewards.rewards(config)[-1:]
            values = score_samples(terms, samples_for(spec.accepts, spec)).matrix
        except GrpokitError:  # it lacks weights
            continue
        if values.isfinite().any():
            scored.append(spec.name)
    assert len(scored) >= OFFLINE_REWARDS
    assert {"format", "soft-overlong", "ocr", "ssim", "countdown"} <= set(scored)


STRANGE = (
    "api=1, name='strange', factory='strange_rewards:score', gpu_memory=2.5e9, range=(None, 3), per_sample=False, "
    "summary='[bold] and \\x1b[31m red'"
)
FACTORY = """

def score(samples, *, filename: str, mode: Literal["slow", "fast"], share: float, much: int = 3):
    return [share for _ in samples]
"""


def test_a_reward_of_another_package(site: Path, call: Call) -> None:
    """Its needed parameters are filled by their types, so that the example can be tried; its grade is not known."""
    module = announcing("Reward", STRANGE)
    distribution(site, "strange-rewards", "strange", f"from typing import Literal\n{module}{FACTORY}")
    (about,) = json.loads(call("plugins", "strange", "--json").out)
    assert about["scores"] == "image, text: at most 3; it compares the samples of a group"
    assert about["needs"] == "on a GPU 2.5 GB of its memory"
    assert about["grade"].endswith("grpokit check strange filename=... mode=... share=...")
    (reward,) = yaml.safe_load(about["example"])["rewards"]
    assert reward == {"use": "strange", "filename": "FILENAME", "mode": "slow", "share": 1.0, "weight": 1.0}
    term = build_rewards.rewards(schema.parse(complete(about["example"]), "c.yaml"))[-1]
    assert term.reward(["one", "two"]) == [1.0, 1.0]
    said = call("plugins").out
    assert "  strange " in said
    assert "strange-rewards 1.0: [bold] and [31m red\n" in said


def test_a_reward_that_runs_elsewhere_says_where(site: Path, call: Call) -> None:
    spec = "api=1, name='far', factory='no_such_module:score', placement={'capsule': {'requires': ['far==1.5']}}"
    distribution(site, "far-rewards", "far", announcing("Reward", spec))
    (about,) = json.loads(call("plugins", "far", "--json").out)
    assert json.loads(about["place"]) == {"capsule": {"requires": ["far==1.5"]}}
    assert about["problem"] == ""  # what it needs is there


def test_a_grade_is_that_of_our_own_reward(call: Call) -> None:
    grades = {name: json.loads(call("plugins", name, "--json").out)[0]["grade"] for name in ("ssim", "length")}
    assert "(B)" in grades["ssim"]
    assert grades["length"].startswith("not graded")
    (statistic,) = json.loads(call("plugins", "brightness", "--json").out)
    assert "darker" in statistic["grade"]
    assert yaml.safe_load(statistic["example"])["rewards"] == [{"use": "brightness", "weight": 0}]


def test_a_namesake_of_the_cores_reward_has_no_grade_and_its_long_name(site: Path, call: Call) -> None:
    distribution(site, "rival-rewards", "rival", announcing("Reward", "api=1, name='contains'"))
    (about,) = json.loads(call("plugins", "rival-rewards:contains", "--json").out)
    assert about["grade"].startswith("not measured")
    assert yaml.safe_load(about["example"])["rewards"][0]["use"] == "rival-rewards:contains"


@pytest.mark.usefixtures("core_alone")
def test_what_is_not_installed_is_shown_with_the_command_that_brings_it(call: Call) -> None:
    done = call("plugins", "pickscore")
    assert done.code == 0
    assert "  install  pip install 'grpokit[preference]'\n" in done.out
    (about,) = json.loads(call("plugins", "pickscore", "--json").out)
    assert (about["state"], about["version"], about["package"]) == ("not installed", "", "grpokit-preference")
    assert "GB" in about["needs"]
    both = json.loads(call("plugins", "toy-lm", "ssim", "--json").out)
    assert [(each["kind"], each["name"]) for each in both] == [
        ("policy", "toy-lm"),
        ("preset", "toy-lm"),
        ("reward", "ssim"),
    ]
    (preset,) = json.loads(call("plugins", "toy-lm", "--kind", "preset", "--json").out)
    assert "minutes" in preset["takes"]
    assert call("plugins", "pickscoer").code == 2


def test_a_preset_is_run_by_its_example() -> None:
    for _, spec in registry.installed("preset"):
        *_, name = component_page.facts("preset", spec.name)["example"].split()
        assert presets.read_config(name)[1] == spec.name
