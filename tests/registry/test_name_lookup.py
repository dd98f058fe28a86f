"""Names: what the core brings is the core's, what two packages bring has to say whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Call
from distributions import announcing, distribution
from grpokit import PluginError, registry
from grpokit.doctor import environment
from grpokit.registry import name_lookup, specs

KINDS = {kind.kind: kind.__name__.removesuffix("Spec") for kind in specs.Spec.__subclasses__()}


def twins(site: Path, kind: str, *names: str) -> None:
    """Two distributions whose entry points have the same name, each with components of the same names."""
    lines = [f"api=1, name='{name}'" for name in names]
    for package in ("Grpokit_Twin", "other.twin"):
        distribution(site, package, "twin", announcing(KINDS[kind], *lines))


@pytest.mark.parametrize("kind", KINDS)
def test_two_distributions_with_one_name_are_told_apart(site: Path, kind: str) -> None:
    twins(site, kind, "twin", "twin-two")
    with pytest.raises(PluginError, match="ambiguous: write 'grpokit-twin:twin' or 'other-twin:twin'"):
        registry.find(kind, "twin")
    for package in ("grpokit-twin", "other-twin"):
        plugin, spec = registry.find(kind, f"{package}:twin")
        assert (plugin.package, spec.name) == (package, "twin")
    findings = [f for f in environment.plugins([]) if "'twin'" in f.what and "ambiguous" in f.what]
    assert [(f.state, f.what) for f in findings] == [("problem", f"the {kind} name 'twin' is ambiguous")]
    assert "'grpokit-twin:twin' or 'other-twin:twin'" in findings[0].advice


@pytest.mark.parametrize(("kind", "name"), [("objective", "grpo"), ("advantage", "group"), ("reward", "length")])
def test_a_name_of_the_core_is_the_cores(site: Path, kind: str, name: str) -> None:
    twins(site, kind, name)
    assert registry.find(kind, name)[0].package == "grpokit"
    assert registry.find(kind, f"grpokit:{name}") == registry.find(kind, name)
    assert registry.find(kind, f"other-twin:{name}")[0].package == "other-twin"
    (finding,) = [f for f in environment.plugins([]) if "means grpokit's own" in f.what]
    assert (finding.state, f"'other-twin:{name}'" in finding.advice) == ("problem", True)


@pytest.mark.parametrize(
    ("name", "kind", "lasting"),
    [
        ("length", "reward", "length"),
        ("grpokit:length", "reward", "length"),
        ("alone", "reward", "grpokit-twin:alone"),
        ("grpokit-twin:alone", "reward", "grpokit-twin:alone"),
        ("alone", "policy", "alone"),
        ("nothing", "reward", "nothing"),
        ("grpokit_twin:alone", "reward", "grpokit_twin:alone"),
        ("package.module:alone", "reward", "package.module:alone"),
    ],
)
def test_a_lasting_name_says_whose_it_is(site: Path, name: str, kind: str, lasting: str) -> None:
    distribution(site, "grpokit_twin", "twin", announcing("Reward", "api=1, name='alone'"))
    assert registry.lasting(kind, name) == lasting


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("package.module:alone", True),
        ("lonely:alone", False),  # a distribution and a module may have one name
        ("lonely:other", True),
        ("grpokit-twin:alone", False),
        ("alone", False),
        ("length", False),
    ],
)
def test_a_module_and_a_distribution_are_told_apart(site: Path, name: str, path: bool) -> None:
    distribution(site, "lonely", "lonely", announcing("Reward", "api=1, name='alone'"))
    assert name_lookup.is_path(name) == path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grpokit-twin:alon", "(did you mean 'grpokit-twin:alone'?)"),
        ("grpokit-twn:alone", "(did you mean 'grpokit-twin:alone'?)"),
        ("grpokit-elsewhere:part", "grpokit-elsewhere is not installed. Run: pip install grpokit-elsewhere"),
        ("grpokit-lpips:lpips", "'lpips' comes with: pip install 'grpokit[lpips]'"),
    ],
)
def test_an_unknown_qualified_name(site: Path, name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(site, "grpokit_twin", "twin", announcing("Reward", "api=1, name='alone'"))
    here = tuple(plugin for plugin in registry.plugins() if plugin.package in ("grpokit", "grpokit-twin"))
    monkeypatch.setattr("grpokit.registry.entry_points.plugins", lambda: here)
    with pytest.raises(PluginError) as caught:
        registry.create("reward", name)
    assert words in str(caught.value)


def test_a_command_of_the_core_stays_the_cores(site: Path, call: Call) -> None:
    module = announcing("Command", "api=1, name='schema', summary='Paint it.'").replace(
        "builtins:len", "painting:paint"
    )
    (site / "painting.py").write_text("def paint() -> None:\n    print('painted')\n")
    distribution(site, "painter", "painter", module)
    assert "painted" not in call("schema").out
    assert call("painter:schema").out == "painted\n"
    done = call("plugins")
    assert "hidden: Paint it." in done.out
    assert "The command name 'schema' means grpokit's own. For the other one write 'painter:schema'." in done.out
    assert "  painter:schema " in call("--help").out


@pytest.mark.parametrize("kind", ["reward", "preset"])
def test_a_distribution_that_brings_a_name_twice_is_the_authors_mistake(site: Path, kind: str) -> None:
    factories = ("one.module:part", "another.module:part")
    specs = [f"api=1, name='twin', factory='{factory}'" for factory in factories]
    distribution(site, "grokit.double", "double", announcing(KINDS[kind], *specs))
    way_out = "grokit-double brings several, 'one.module:part' and 'another.module:part'. Its author"
    for name in ("twin", "grokit-double:twin"):
        with pytest.raises(PluginError, match=way_out):
            registry.find(kind, name)
    (finding,) = [f for f in environment.plugins([]) if "'twin'" in f.what and "ambiguous" in f.what]
    assert way_out in finding.advice


@pytest.mark.parametrize("name", ["Grpokit_Twin.X:alone", "grpokit_twin_x:alone", "grpokit_twin_x:len"])
def test_a_distribution_in_another_spelling(site: Path, name: str) -> None:
    distribution(site, "Grpokit_Twin.X", "twin", announcing("Reward", "api=1, name='alone'"))
    with pytest.raises(PluginError) as caught:
        registry.create("reward", name)
    assert ("did you mean 'grpokit-twin-x:alone'?" in str(caught.value)) == name.endswith("alone")


def test_what_was_written_for_another_api_says_so_alone(site: Path, call: Call) -> None:
    distribution(site, "later", "later", announcing("Command", "api=2, name='hello'", "api=2, name='other'"))
    for words in (["hello"], ["check", "later:hello"], ["plugins", "hello"]):
        done = call(*words)
        assert done.code == 2
        assert "The command 'hello' is written for plugin API 2" in done.err
        assert "pip install --upgrade grpokit" in done.err
        assert "other" not in done.err


def test_observers_of_two_distributions_have_names_of_their_own(site: Path) -> None:
    module = "from grpokit import Observer, hookimpl\n\n\n@hookimpl\ndef grpokit_observers():\n"
    for package in ("grpokit-twin", "other-twin"):
        distribution(site, package, "twin", f"{module}    return {{'patience': Observer()}}\n")
    assert {"grpokit-twin-patience", "other-twin-patience"} <= registry.observers().keys()
