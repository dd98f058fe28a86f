"""Plugins and cores of different ages: what works, and what a user is told to install where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributions import announcing, distribution
from grpokit import PluginError, registry
from grpokit.doctor import environment
from grpokit.registry import compatibility

UPGRADE_PLUGIN = "grpokit-aged is older. Run: pip install --upgrade grpokit-aged 'grpokit>="


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> object:
    """Makes this grpokit another one: its version, and the plugin APIs that it reads."""

    def make(version: str, oldest: int, newest: int) -> None:
        monkeypatch.setattr(compatibility, "_version", lambda: version)
        monkeypatch.setattr(compatibility, "OLDEST_API", oldest)
        monkeypatch.setattr(compatibility, "API", newest)

    return make


@pytest.mark.parametrize(
    ("api", "version", "oldest", "newest", "words"),
    [
        (0, "0.1.1", 1, 1, f"plugin API 0, and grpokit 0.1.1 reads 1. {UPGRADE_PLUGIN}0.1.1'"),
        (1, "0.1.1", 1, 1, ""),
        (2, "0.1.1", 1, 1, "plugin API 2, and grpokit 0.1.1 reads 1. grpokit is older. Run: pip install --upgrade g"),
        (0, "0.2.0", 1, 2, f"plugin API 0, and grpokit 0.2.0 reads 1 to 2. {UPGRADE_PLUGIN}0.2.0'"),
        (1, "0.2.0", 1, 2, ""),
        (1, "0.2.0", 2, 2, f"plugin API 1, and grpokit 0.2.0 reads 2. {UPGRADE_PLUGIN}0.2.0'"),
        (2, "0.2.0", 2, 2, ""),
        (3, "0.2.0", 1, 2, "plugin API 3, and grpokit 0.2.0 reads 1 to 2. grpokit is older. Run: pip install --upgra"),
    ],
)
def test_a_spec_for_another_api_is_refused_and_the_others_stay(
    site: Path, core, api: int, version: str, oldest: int, newest: int, words: str
) -> None:
    core(version, oldest, newest)
    distribution(
        site, "grpokit-aged", "aged", announcing("Reward", f"api={newest}, name='fits'", f"api={api}, name='aged'")
    )
    (plugin,) = [p for p in registry.plugins() if p.name == "aged"]
    assert plugin.error == ""
    assert "fits" in [spec.name for spec in plugin.specs]
    assert ("aged" in [spec.name for spec in plugin.specs]) == (not words)
    findings = [f for f in environment.plugins([]) if "grpokit-aged" in f.what]
    assert [f.state for f in findings] == ["problem" if words else "ok"]
    assert words in findings[0].what
    if words:
        with pytest.raises(PluginError) as caught:
            registry.create("reward", "aged")
        assert str(caught.value) == f"The {findings[0].what.partition(': ')[2]}"


@pytest.mark.parametrize("api", ["'1'", "None", "True", "1.5"])
def test_an_api_that_is_no_number_is_refused_and_the_others_stay(site: Path, api: str) -> None:
    distribution(site, "grpokit-aged", "aged", announcing("Reward", "api=1, name='fits'", f"api={api}, name='aged'"))
    (plugin,) = [p for p in registry.plugins() if p.name == "aged"]
    assert [spec.name for spec in plugin.specs] == ["fits"]
    assert plugin.problems == [f"reward 'aged' has api={api}; expected a whole number, such as api=1."]


@pytest.mark.parametrize(
    ("requires", "version", "words"),
    [
        ("grpokit~=0.1.0", "0.1.1", "'api'"),
        (
            "grpokit~=0.1.0",
            "0.2.0",
            f". grpokit-aged 1.0 is written for grpokit~=0.1.0, and this is grpokit 0.2.0. {UPGRADE_PLUGIN}0.2.",
        ),
        (
            "grpokit~=0.2.0",
            "0.1.1",
            "and this is grpokit 0.1.1. grpokit is older. Run: pip install --upgrade 'grpokit~=0.2.0'",
        ),
        ("grpokit==0.2.*", "0.1.1", "pip install --upgrade 'grpokit==0.2.*'"),
        ("grpokit<0.2,>=0.1", "0.2.0", f"{UPGRADE_PLUGIN}0.2.0'"),
        ("grpokit[check]~=0.2.0; extra == 'test'", "0.1.1", "'api'"),
    ],
)
@pytest.mark.parametrize("code", ["no api", "import", "hook"])
def test_a_plugin_that_fails_says_which_side_is_older(
    site: Path, core, requires: str, version: str, words: str, code: str
) -> None:
    core(version, 1, 1)
    modules = {
        "no api": announcing("Reward", "name='aged'"),
        "import": "from grpokit import NothingOfThatName\n",
        "hook": announcing("Reward", "api=1, name='aged'").replace("grpokit_rewards", "grpokit_riddles"),
    }
    distribution(site, "grpokit-aged", "aged", modules[code], requires=["torch", requires])
    (plugin,) = [p for p in registry.plugins() if p.name == "aged"]
    cause = {"no api": "'api'", "import": "NothingOfThatName", "hook": "unknown hook 'grpokit_riddles'"}[code]
    assert cause in plugin.error
    assert ("is older" in plugin.error) == (words != "'api'")
    assert words in plugin.error or words == "'api'"


@pytest.mark.parametrize(("version", "told"), [("0.1.1", False), ("0.2.0", True)])
def test_a_component_that_cannot_be_imported_says_so_too(site: Path, core, version: str, told: bool) -> None:
    core(version, 1, 1)
    (site / "aged_reward.py").write_text("from grpokit.images import nothing_of_that_name\n")
    module = announcing("Reward", "api=1, name='aged'").replace("builtins:len", "aged_reward:score")
    distribution(site, "grpokit-aged", "aged", module, requires=["grpokit~=0.1.0"])
    with pytest.raises(PluginError, match="nothing_of_that_name") as caught:
        registry.create("reward", "aged")
    assert ("pip install --upgrade grpokit-aged" in str(caught.value)) == told


def test_a_field_that_is_not_known_may_be_that_of_a_newer_grpokit(site: Path) -> None:
    distribution(site, "grpokit-aged", "aged", announcing("Reward", "api=2, name='aged', colour='red'"))
    (plugin,) = [p for p in registry.plugins() if p.name == "aged"]
    assert plugin.error.endswith("argument 'colour'. The plugin may be written for a newer grpokit.")
