"""Plugins as users meet them: real distributions, installed with pip, most of them broken in one way each."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import shipped_components
import torch
import yaml

import grpokit
from command_line import Call
from distributions import distribution
from grpokit import CheckpointError, PluginError, PolicySpec, Prompt, RewardSpec, Sample, Trainer, registry
from grpokit.cli import components
from grpokit.config import presets
from grpokit.config.schema import parse
from grpokit.registry import entry_points, hookspecs
from grpokit.runs import build, build_rewards
from grpokit.runs import train as run
from grpokit.settings import meanings
from tiny_policies import TinyTokens

TESTS = Path(__file__).parents[1]
HELPERS = TESTS / "helpers"
ERRORS = {
    "import-error": ["ModuleNotFoundError", "a_module_that_nobody_has"],
    "misspelt": ["unknown hook 'grpokit_reward'", "did you mean 'grpokit_rewards'?"],
    "unmarked": ["'grpokit_rewards' lacks the decorator @hookimpl", "from grpokit import hookimpl"],
    "raises": ["ValueError: the licence file is missing"],
    "wrong-type": ["grpokit_rewards yielded PolicySpec(api=1, name='a-policy'", "expected RewardSpec records"],
    "wrong-return": ["'RewardSpec' object is not iterable"],
    "wrong-argument": ["grpokit_step_end(reports)", "'reports'"],
    "spaced-name": ["reward 'two words': the name must be a text without spaces, colons and slashes", "'my-reward'"],
    "wrong-factory": ["reward 'a-function': the factory must be a text of the form package.module:Name, got <built-in"],
    "pathless-factory": ["reward 'pathless': the factory must be a text of the form package.module:Name, got 'score'"],
    "exits": ["SystemExit: no licence"],
    "cancelled": ["CancelledError: no server"],
}


def pip_install(target: Path, *folders: Path) -> Path:
    """Build and install distributions as a user's pip would, into a folder of their own."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of fixture_plugins, in a folder that PYTHONPATH can name."""
    copies = tmp_path_factory.mktemp("sources") / "fixture_plugins"  # a build leaves files beside the sources
    shutil.copytree(TESTS / "fixture_plugins", copies)
    return pip_install(tmp_path_factory.mktemp("site"), *sorted(copies.iterdir()))


@pytest.fixture
def fixtures(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fixture plugins, found by this process."""
    monkeypatch.syspath_prepend(installed)
    registry.plugins.cache_clear()
    yield
    monkeypatch.undo()
    registry.plugins.cache_clear()


def command(*words: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # pytest's workers may set it
    env = {**given, "PYTHONPATH": f"{path}{os.pathsep}{HELPERS}", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-m", "grpokit", *words], capture_output=True, text=True, env=env)


def samples(*texts: str) -> list[Sample]:
    return [Sample(prompt=Prompt(text="p"), output=text, group=0) for text in texts]


# --- broken plugins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.usefixtures("fixtures")
def test_a_broken_plugin_is_recorded_with_its_error(name: str) -> None:
    (found,) = [p for p in registry.plugins() if p.name == name]
    assert (found.package, found.version, found.specs) == ("grpokit-fixture-broken", "0.7", [])
    assert "\n" not in found.error
    for word in ERRORS[name]:
        assert word in found.error


@pytest.mark.parametrize("value", ["grpokit-x.plugin", "grpokit_x.plugin # a comment", ""])
def test_an_entry_point_that_names_no_module(value: str) -> None:
    plugin = entry_points.load_plugin(importlib.metadata.EntryPoint(name="x", value=value, group="grpokit"))
    assert plugin.error.startswith(f"its entry point 'x = {value}' names no module")


@pytest.mark.usefixtures("fixtures")
def test_the_others_work_beside_the_broken_ones() -> None:
    assert {p.name for p in registry.plugins() if p.error} >= set(ERRORS)
    assert {"builtin", "good", "rival", "needy", "watcher"} <= {p.name for p in registry.plugins() if not p.error}
    assert registry.create("reward", "letters", {"letter": "a"})(samples("banana", "b")) == [3, 0]
    assert registry.create("reward", "exact-match")
    names = [spec.name for _, spec in registry.installed("reward")]
    assert not {"raises-first", "misspelt-reward", "unmarked-reward", "from-the-future"} & set(names)


def test_plugins_command(installed: Path) -> None:
    done = command("plugins", path=installed)
    assert (done.returncode, done.stderr) == (0, "")
    groups = {part.split(", as in")[0].split("\n")[0]: part.splitlines() for part in done.stdout.split("\n\n")}
    for title, name, about in (
        ("Rewards", "vowels", "grpokit-fixture-good 1.2.3: ambiguous: counts a, e, i, o, u"),
        ("Rewards", "letters", "grpokit-fixture-good 1.2.3: wants [image] or [/text]"),  # no markup
        ("Rewards", "vowels", "grpokit-fixture-rival 1.2.3: ambiguous:"),
        ("Policies", "half-a-policy", "grpokit-fixture-good 1.2.3:"),
        ("Presets", "quick", "grpokit-fixture-good 1.2.3: a preset without its file"),
        ("Evaluations", "vowel-words", "grpokit-fixture-good 1.2.3: an evaluation (ears)"),
        ("Advantages", "group", "z-score inside the group (GRPO)"),
        ("Other plugins", "watcher", "grpokit-fixture-watcher 1.2.3: watches runs"),
        *(("Other plugins", name, "grpokit-fixture-broken 0.7: broken: see below") for name in ERRORS),
    ):
        rows = [re.split(r"\s{2,}", line.strip()) for line in groups[title]]
        assert [name, about] in rows, name
    for name, words in ERRORS.items():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{name}: ")]
        for word in words:
            assert word in line


@pytest.mark.parametrize("columns", [80, 120])
def test_a_component_has_one_line_that_is_cut_to_the_width(tmp_path: Path, columns: int) -> None:
    """A pipe gets all of it, which a search in it needs."""
    whole = command("plugins", path=tmp_path).stdout.splitlines()
    cut = command("plugins", path=tmp_path, COLUMNS=str(columns)).stdout.splitlines()
    assert len(cut) == len(whole)
    for short, long in zip(cut[:-1], whole, strict=False):  # the last one is advice
        assert short == long if len(long) <= columns else short == f"{long[: columns - 1]}…"
    assert max(map(len, whole)) > 120
    assert any(line.startswith("  repetition-penalty  minus the share") for line in cut)


@pytest.mark.parametrize("name", ["plugins", "doctor", "schema"])
def test_a_command_is_told_in_one_short_line(name: str) -> None:
    lines = getattr(components, name).__doc__.splitlines()
    assert len(lines[0]) < 60
    assert f"{lines[0][:40]}" in command("--help", path=HELPERS, COLUMNS="80").stdout


def test_a_component_is_shown_with_its_parameters(call: Call) -> None:
    (flow,) = json.loads(call("plugins", "toy-flow", "--json").out)[:1]
    assert (flow["kind"], flow["package"], flow["problem"]) == ("policy", "grpokit-toy", "")
    parameters = {parameter["name"]: (parameter["type"], parameter["default"]) for parameter in flow["parameters"]}
    assert parameters["steps"] == ("int", 10)
    assert parameters["weights"] == ("str | Path | None", None)
    (place,) = json.loads(call("plugins", "http", "--json").out)
    assert [(p["name"], p["needed"]) for p in place["parameters"]] == [("urls", True)]  # what the config gives it
    assert "  steps: int = 10\n      of the sampler. " in call("plugins", "toy-flow").out
    assert {row["name"] for row in json.loads(call("plugins", "--json").out)} >= {"toy-flow", "http", "grpo"}
    assert call("plugins", "toy-flwo").code == 2


@pytest.mark.slow  # it imports every component
@pytest.mark.parametrize("kind", ["policy", "reward", "advantage", "objective", "modifier", "placement", "world"])
def test_every_parameter_has_a_meaning(kind: str) -> None:
    for _, spec in registry.installed(kind):
        parameters, _ = registry.declared_parameters(kind, spec.name)
        assert parameters.keys() <= meanings(registry.resolve(spec.factory)).keys(), spec.name


def test_strict_makes_broken_plugins_an_error(installed: Path) -> None:
    done = command("plugins", path=installed, GRPOKIT_STRICT="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "GRPOKIT_STRICT is set and plugins are broken" in done.stderr
    for name, words in ERRORS.items():
        assert f"  {name}: " in done.stderr
        for word in words:
            assert word in done.stderr


@pytest.mark.parametrize("value", ["", "0"])
@pytest.mark.usefixtures("fixtures")
def test_strict_can_be_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPOKIT_STRICT", value)
    assert registry.plugins()


def test_our_own_plugins_are_sound() -> None:
    ours = {p.name: p.error for p in registry.plugins() if p.package.startswith("grpokit")}
    assert "builtin" in ours
    assert not any(ours.values()), ours


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fixtures")
def test_unknown_name_gives_the_nearest_and_the_broken_plugins() -> None:
    with pytest.raises(PluginError) as caught:
        registry.create("reward", "leters")
    message = str(caught.value)
    assert message.startswith("There is no reward called 'leters' (did you mean 'letters'?). Known: ")
    assert " broken-inside, " in message
    assert ", vowels-and-more, " in message
    assert ". These plugins are broken and may have brought it:" in message
    for name in ERRORS:
        assert f"\n  {name} (grpokit-fixture-broken): " in message


def test_the_table_of_what_grpokit_ships_is_up_to_date() -> None:
    assert shipped_components.FILE.read_text() == shipped_components.text(), "run python tools/shipped_components.py"


def test_the_core_names_no_plugin() -> None:
    """Neither a distribution of ours nor a component of one is a value in the code: those names are data."""
    table = shipped_components.components()
    entries = [entry for of_kind in table.values() for entry in of_kind.items()]
    names = {name for name, entry in entries if entry["package"] != "grpokit"} - table["command"].keys()  # plain words
    packages = {entry["package"] for _, entry in entries} - {"grpokit"}
    for file in sorted((TESTS.parent / "grpokit").rglob("*.py")):
        tree = ast.parse(file.read_text())
        alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        texts = [
            n.value
            for n in ast.walk(tree)
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and n not in alone
        ]
        assert not [text for text in texts if text in names or any(package in text for package in packages)], file


def test_what_is_shipped_and_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = tuple(plugin for plugin in registry.plugins() if plugin.package == "grpokit")
    monkeypatch.setattr(entry_points, "plugins", lambda: here)
    with pytest.raises(PluginError) as caught:
        registry.create("reward", "lpips")
    assert str(caught.value) == (
        "There is no reward called 'lpips'. Known: brightness, contains, episode-return, exact-match, format, "
        "jpeg-size, length, numeric-answer, pixel-diversity, repetition-penalty, soft-overlong. "
        "'lpips' comes with: pip install 'grpokit[lpips]'"
    )
    with pytest.raises(PluginError, match=r"no policy called 'toy-lm'.*comes with: pip install 'grpokit\[toy\]'$"):
        registry.create("policy", "toy-lm")
    assert re.search(
        r"no component called 'ocr'\. .* pip install 'grpokit\[ocr\]'$",
        str(registry.unknown("ocr", "policy", "reward")),
    )
    with pytest.raises(PluginError, match=r"no reward called 'toy-lm'\. Known: .*soft-overlong\.$"):
        registry.create("reward", "toy-lm")  # a policy


def test_a_command_of_a_plugin_is_imported_when_it_is_called(installed: Path) -> None:
    done = command("--help", path=installed)
    assert re.search(r"^  serve-reward +Serve a reward", done.stdout, re.MULTILINE)
    assert re.search(r"^  greet +Greet someone\.$", done.stdout, re.MULTILINE)
    assert "imported" not in done.stdout
    assert command("greet", "Ada", "--times", "2", path=installed).stdout == "imported\nHello Ada. Hello Ada.\n"
    assert "several times if asked" in command("greet", "-h", path=installed).stdout
    assert "No such command 'gret'" in command("gret", path=installed).stderr


@pytest.mark.parametrize(("name", "extra"), [("serve-reward", "http"), ("check", "check"), ("new", "check")])
def test_a_command_that_is_shipped_and_not_installed(
    monkeypatch: pytest.MonkeyPatch, call: Call, name: str, extra: str
) -> None:
    monkeypatch.setattr(entry_points, "plugins", lambda: ())
    done = call(name, "reward", "length")
    assert done.code == 2
    assert done.err.endswith(f"'{name}' comes with: pip install 'grpokit[{extra}]'\n")


@pytest.mark.usefixtures("fixtures")
def test_a_name_is_of_one_kind() -> None:
    with pytest.raises(PluginError, match=r"There is no policy called 'vowels'.*Known: .*half-a-policy"):
        registry.create("policy", "vowels")


@pytest.mark.usefixtures("fixtures")
def test_an_ambiguous_name_is_settled_by_the_distribution() -> None:
    choices = r"'grpokit-fixture-good:vowels' or 'grpokit-fixture-rival:vowels'"
    with pytest.raises(PluginError, match=rf"'vowels' is ambiguous: write {choices}\."):
        registry.create("reward", "vowels", {"scale": 1})
    assert registry.create("reward", "grpokit-fixture-rival:vowels")(samples("aei")) == [-1.0]
    assert registry.create("reward", "grpokit-fixture-good:vowels", {"scale": 2})(samples("aei", "x")) == [6, 0]
    assert registry.create("reward", "vowels-and-more")(samples("aei")) == [-1.0]
    assert registry.create("reward", "grpokit-fixture-good:letters", {"letter": "e"})(samples("aei")) == [1]


RIVALS = """from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    for name in ("format", "length"):
        yield RewardSpec(api=1, name=name, factory="builtins:len")
"""


@pytest.fixture
def rival(site: Path) -> Path:
    """A third party's plugin whose rewards are called like grpokit's own."""
    distribution(site, "rival_rewards", "rival", RIVALS)
    return site


@pytest.mark.usefixtures("rival")
def test_a_name_of_the_core_means_the_cores() -> None:
    config, _ = presets.read_config("toy-lm")
    assert build_rewards.rewards(config)[1].reward(samples("a 1")) == [0]
    config, _ = presets.read_config("toy-lm", ["rewards.1={use: 'rival-rewards:format'}"])
    assert build_rewards.rewards(config)[1].reward is len


def test_plugins_marks_a_name_that_is_the_cores(rival: Path) -> None:
    done = command("plugins", path=rival)
    rows = [line.split()[:4] for line in done.stdout.splitlines()]
    assert ["length", "rival-rewards", "1.0:", "hidden:"] in rows
    assert ["length", "minus", "the", "distance"] in rows
    assert "'length' means grpokit's own. For the other one write 'rival-rewards:length'." in done.stdout


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"accepts": {"picture"}},
            "reward 'x' names the kind of output 'picture'; expected 'image', 'text' or 'episode'",
        ),
        ({"accepts": {"txet"}}, "the kind of output 'txet' (did you mean 'text'?)"),
        ({"accepts": "text"}, "accepts must be a set of kinds, such as {'image'}, got 'text'"),
        ({"accepts": set()}, "accepts must be a set of kinds"),
        ({"accepts": {"image", 3}}, "the kind of output 3; expected"),
        ({"accepts": {"x:"}}, "the kind of output 'x:'; expected"),
        ({"accepts": {"text", "toy:points"}}, ""),
        ({"statistic": ("darker", "brighter")}, ""),
        (
            {"statistic": True},
            "statistic must be the words for a lower and a higher score, such as ('darker', 'brighter')",
        ),
        ({"statistic": "brighter"}, "got 'brighter'"),
        ({"statistic": ("brighter",)}, "statistic must be the words"),
        ({"makes": "picture"}, "policy 'x' names the kind of output 'picture'; expected 'image', 'text' or 'episode'"),
        ({"makes": "my-env:actions"}, ""),
    ],
)
def test_a_spec_names_a_kind_of_output_that_others_can_mean(fields: dict[str, Any], said: str) -> None:
    spec = (PolicySpec if "makes" in fields else RewardSpec)(api=1, name="x", factory="x:x", **fields)
    if not said:
        entry_points._check_spec(spec)
        return
    with pytest.raises(PluginError, match=re.escape(said)):
        entry_points._check_spec(spec)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("no_such_package:a.yaml", "the file a.yaml in package no_such_package: ModuleNotFoundError: No module named"),
        ("odd_preset:a.yaml", "the file a.yaml in package odd_preset: "),
        ("raising_preset:a.yaml", "the file a.yaml in package raising_preset: RuntimeError: no server"),
        (
            "odd_preset:bytes.yaml",
            "the file bytes.yaml in package odd_preset: UnicodeDecodeError: 'utf-8' codec can't decode",
        ),
    ],
)
def test_presets_without_a_readable_file(site: Path, factory: str, words: str) -> None:
    package = site / "odd_preset"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (site / "raising_preset.py").write_text("raise RuntimeError('no server')\n")
    distribution(
        site,
        "odd_presets",
        "odd",
        "from grpokit import PresetSpec, hookimpl\n\n\n@hookimpl\ndef grpokit_presets():\n"
        f"    yield PresetSpec(api=1, name='odd', factory='{factory}')\n",
    )
    with pytest.raises(PluginError, match=words):
        presets.read_config("odd")
    for name in ("odd_presets", "odd_preset"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("fixtures")
def test_a_distribution_is_not_a_module() -> None:
    with pytest.raises(PluginError, match="There is no reward called 'grpokit-fixture-good:consonants'"):
        registry.create("reward", "grpokit-fixture-good:consonants")


def test_dotted_names_need_no_plugin() -> None:
    reward = registry.create("reward", "tiny_policies:digit_sum")
    assert reward(samples("333", "12")) == pytest.approx([3.03, 0.02])
    assert isinstance(registry.create("policy", "tiny_policies:TinyTokens", {"vocab": 4}), TinyTokens)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "tiny_polices:digit_sum",
            ["cannot be found: there is no module 'tiny_polices'", "Check the spelling, or install"],
        ),
        (
            "tiny_policies:digit_sun",
            ["'digit_sun' in 'tiny_policies'", "no such function", "did you mean 'digit_sum'?"],
        ),
        ("math:pi", ["'pi' in 'math', which is a float, not a function or class."]),
        ("tiny_policies:", ["reward 'tiny_policies:'", "no such function"]),
    ],
)
def test_wrong_dotted_name(name: str, words: list[str]) -> None:
    with pytest.raises(PluginError) as caught:
        registry.create("reward", name)
    for word in words:
        assert word in str(caught.value)


def test_what_is_called_by_its_path_needs_a_colon() -> None:
    with pytest.raises(PluginError, match=r"reader 'my_reader' must be of the form package\.module:function"):
        registry.call("my_reader", {}, what="reader")


# --- dependencies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["needs-at-import", "needs-when-built"])
@pytest.mark.usefixtures("fixtures")
def test_missing_dependency_gives_the_exact_pip_line(name: str) -> None:
    with pytest.raises(PluginError) as caught:
        registry.create("reward", name)
    assert f"reward '{name}'" in str(caught.value)
    assert "needs the Python module 'a_missing_engine' (" in str(caught.value)
    assert str(caught.value).endswith("Run: pip install 'grpokit-fixture-needy[engine]'")


@pytest.mark.parametrize(
    ("factory", "body", "words"),
    [
        (
            "typo_package.reword:score",
            "",
            ["cannot be found: there is no module 'typo_package.reword'"],
        ),
        (
            "typo_package.reward:score",
            "\nimport jsonn\n",
            ["'jsonn' (reward.py, line 2, in <module>), which is not installed"],
        ),
        (
            "typo_package.reward:score",
            "from json.decodr import JSONDecoder\n",
            ["'json.decodr' (reward.py, line 1, in <module>)"],
        ),
        (
            "typo_packagee.reward:score",
            "",
            ["cannot be found: there is no module 'typo_packagee'", "Run: pip install typo[all]"],
        ),
    ],
)
def test_a_typo_is_named_with_its_place(
    site: Path, factory: str, body: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("typo_")]:
        monkeypatch.delitem(sys.modules, name)
    (site / "typo_package").mkdir()
    (site / "typo_package/__init__.py").touch()
    (site / "typo_package/reward.py").write_text(body)
    distribution(
        site,
        "typo_plugin",
        "typo",
        "from grpokit import RewardSpec, hookimpl\n\n\n@hookimpl\ndef grpokit_rewards():\n"
        f"    yield RewardSpec(api=1, name='typo', factory={factory!r}, install='pip install typo[all]')\n",
    )
    importlib.invalidate_caches()
    with pytest.raises(PluginError) as caught:
        registry.create("reward", "typo")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.usefixtures("fixtures")
def test_missing_dependency_without_a_hint() -> None:
    with pytest.raises(
        PluginError,
        match=r"'a_missing_engine' \(.*, line \d+, in .*\), which is not installed\. Check the spelling, or install",
    ):
        registry.create("reward", "needs-without-hint")


@pytest.mark.usefixtures("fixtures")
def test_a_factory_that_fails_otherwise() -> None:
    with pytest.raises(PluginError) as caught:
        registry.create("reward", "broken-inside")
    assert "cannot be imported from 'fixture_needy.broken'" in str(caught.value)
    assert "RuntimeError: the engine's library is too old" in str(caught.value)
    assert "pip install" not in str(caught.value)


def test_an_interrupt_of_the_user_passes(site: Path) -> None:
    (site / "interrupted.py").write_text("def policy():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        registry.create("policy", "interrupted:policy")


@pytest.mark.usefixtures("fixtures")
def test_a_spec_whose_function_is_not_there() -> None:
    with pytest.raises(
        PluginError, match=r"reward 'no-such-function' of plugin 'good' should be 'vowel'.*mean 'vowels'"
    ):
        registry.create("reward", "no-such-function")


def test_a_torchvision_for_another_torch_is_explained() -> None:
    line = entry_points.describe(RuntimeError("operator torchvision::nms does not exist"))
    assert "install the build of torchvision that matches your torch" in line


@pytest.mark.usefixtures("fixtures")
def test_a_preset_whose_file_is_not_there() -> None:
    with pytest.raises(
        PluginError, match=r"preset 'quick' cannot be read from the file quick\.yaml in package fixture_good"
    ):
        presets.read_config("quick")


@pytest.mark.usefixtures("fixtures")
def test_a_policy_that_lacks_methods() -> None:
    config = parse("policy: {use: half-a-policy}\ndata: {prompts: a}\nrewards: [{use: r}]", "c.yaml")
    with pytest.raises(
        PluginError,
        match="lacks logprobs, slices, reference, state_dict, load_state_dict",
    ):
        build.policy(config)


# --- parameters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "params", "words"),
    [
        (
            "reward",
            "letters",
            {"leter": "a"},
            ["no parameter 'leter'", "did you mean 'letter'?", "It accepts: letter, minimum=0."],
        ),
        ("reward", "letters", {}, ["needs the parameter 'letter'", "It accepts: letter, minimum=0."]),
        ("reward", "letters", {"letter": 5}, ["fails with letter=5", "TypeError: letter is 5"]),
        (
            "reward",
            "grpokit-fixture-good:vowels",
            {"scal": 1},
            ["no parameter 'scal'", "did you mean 'scale'?", "It accepts: scale, upper=False."],
        ),
        ("reward", "grpokit-fixture-good:vowels", {}, ["needs the parameter 'scale'"]),
        (
            "reward",
            "grpokit-fixture-good:vowels",
            {"scale": 1, "samples": 2},
            ["no parameter 'samples'", "It accepts: scale, upper=False."],
        ),
        ("reward", "vowels-and-more", {"x": 1}, ["no parameter 'x'", "It accepts: none."]),
        (
            "reward",
            "numeric-answer",
            {"tolerence": 1},
            ["did you mean 'tolerance'?", "It accepts: pattern=None, tolerance=0.0."],
        ),
        ("advantage", "plain", {"weights": 1}, ["no parameter 'weights'", "It accepts: shift=0.0."]),
        ("advantage", "group", {"epz": 1}, ["no parameter 'epz'", "did you mean 'eps'?", "It accepts: "]),
        ("objective", "mine", {"clip": 1}, ["no parameter 'clip'", "It accepts: clip_range=0.2."]),
        ("objective", "grpo", {"clip_rang": 1}, ["did you mean 'clip_range'?", "It accepts: "]),
        (
            "policy",
            "half-a-policy",
            {"size": 1},
            ["policy 'half-a-policy' has no parameter 'size'", "It accepts: none."],
        ),
    ],
)
@pytest.mark.usefixtures("fixtures")
def test_wrong_parameters(kind: str, name: str, params: dict[str, object], words: list[str]) -> None:
    with pytest.raises(PluginError) as caught:
        registry.create(kind, name, params)
    for word in words:
        assert word in str(caught.value)
    assert "?." not in str(caught.value)


@pytest.mark.usefixtures("fixtures")
def test_parameters_reach_the_factory() -> None:
    assert registry.create("reward", "letters", {"letter": "a", "minimum": 1})(samples("banana", "b")) == [3, 1]
    assert registry.create("reward", "grpokit-fixture-good:vowels", {"scale": 3, "upper": True})(samples("AbEa")) == [6]
    assert registry.create("objective", "mine", {"clip_range": 0.3}) == "an objective with 0.3"
    plain = registry.create("advantage", "plain", {"shift": 1.0})
    assert isinstance(plain, functools.partial)
    assert plain(torch.tensor([[1.0, 2.0]]), torch.tensor([1.0, 0.5]), torch.zeros(1)).tolist() == [3.0]


class Typed:
    def __init__(
        self,
        rate: float = 0.5,
        *,
        count: int | None = None,
        mode: Literal["a", "b"] = "a",
        name: str = "",
        on: bool = False,
        sizes: tuple[int, ...] = (),
        other=None,
    ) -> None:
        self.rate = rate


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"rate": "abc"}, "rate must be a finite number, got 'abc'."),
        ({"rate": True}, "rate must be a finite number, got true."),
        ({"rate": None}, "rate must be a finite number, got nothing (null)."),
        ({"rate": math.nan}, "rate must be a finite number, got nan."),
        ({"other": math.nan}, "other must be a number, got nan."),
        ({"count": 2.5}, "count must be a whole number, or None, got 2.5."),
        ({"count": [1]}, "count must be a whole number, or None, got a list of 1."),
        ({"mode": "c"}, "mode must be 'a' or 'b', got 'c'."),
        ({"name": 5}, "name must be a text, got 5 (put it in quotes)."),
        ({"on": "no"}, "on must be true or false, got 'no'."),
    ],
)
def test_values_are_held_against_a_factorys_annotations(params: dict[str, object], words: str) -> None:
    with pytest.raises(PluginError) as caught:
        registry.create("policy", f"{__name__}:Typed", params)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "params", [{"rate": 1}, {"count": None}, {"count": 3}, {"mode": "b"}, {"sizes": [1, 2]}, {"other": object()}]
)
def test_values_that_fit_or_cannot_be_judged_go_to_the_factory(params: dict[str, object]) -> None:
    assert registry.create("policy", f"{__name__}:Typed", params)


def test_compiled_functions_do_not_tell_their_parameters() -> None:
    assert registry.create("policy", "builtins:dict", {"a": 1}) == {"a": 1}
    with pytest.raises(PluginError, match=r"policy 'builtins:int' fails with a=1: TypeError: "):
        registry.create("policy", "builtins:int", {"a": 1})


# --- run events ----------------------------------------------------------------------------------------------------


def tiny_run(folder: Path) -> dict[str, object]:
    """A config as plain data: two steps of TinyTokens."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": str(i)}) + "\n" for i in range(1, 5)))
    return {
        "policy": {"use": "tiny_policies:TinyTokens"},
        "data": {"prompts": str(prompts)},
        "rewards": [{"use": "tiny_policies:digit_sum"}],
        "trainer": {"steps": 2, "prompts_per_step": 2, "group_size": 4, "learning_rate": 0.05, "device": "cpu"},
        "run": {"dir": str(folder / "run"), "threads": 1},
    }


@pytest.mark.usefixtures("fixtures")
def test_an_observer_of_a_plugin_counts_on_after_a_resume(tmp_path: Path) -> None:
    from fixture_good.plugin import SEEN  # type: ignore[import-not-found]

    SEEN.clear()
    config, warnings = tiny_run(tmp_path), tmp_path / "run/warnings.jsonl"
    run.train(parse(yaml.safe_dump(config), "c.yaml", ["trainer.steps=1"]))
    run.train(parse(yaml.safe_dump(config), "c.yaml"), resume=True)
    assert SEEN == [(1, 1), (2, 2)]
    assert [row for row in map(json.loads, warnings.read_text().splitlines()) if "counted" in row["message"]] == [
        {"step": 2, "message": "counted 2"}
    ]


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixture plugins are not there from here on."""
    monkeypatch.undo()
    registry.plugins.cache_clear()


@pytest.mark.usefixtures("fixtures")
def test_an_observer_that_is_gone_follows_no_step_and_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, lines = yaml.safe_dump(tiny_run(tmp_path)), list[str]()
    run.train(parse(config, "c.yaml", ["trainer.steps=1"]))
    uninstall(monkeypatch)
    assert run.train(parse(config, "c.yaml"), resume=True, watcher=run.Watcher(say=lines.append)).steps == 2
    assert len([line for line in lines if "the observer 'grpokit-fixture-good-counter' of " in line]) == 1


@pytest.mark.usefixtures("fixtures")
def test_an_observer_with_another_state_names_the_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fixture_good.plugin import Counter  # type: ignore[import-not-found]

    config = yaml.safe_dump(tiny_run(tmp_path))
    run.train(parse(config, "c.yaml", ["trainer.steps=1"]))
    monkeypatch.setattr(Counter, "load_state_dict", lambda self, state: state["counts_of_a_later_version"])
    with pytest.raises(
        CheckpointError, match=r"of observers/grpokit-fixture-good-counter raised KeyError: .* versions\.json"
    ):
        run.train(parse(config, "c.yaml"), resume=True)


@pytest.mark.usefixtures("fixtures")
@pytest.mark.parametrize("name", ["vowels", "grpokit-fixture-good:vowels"])
def test_a_resume_without_a_rewards_package_says_what_to_install(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_dump(tiny_run(tmp_path) | {"rewards": [{"use": "grpokit-fixture-good:vowels", "scale": 1}]})
    run.train(parse(config, "c.yaml", ["trainer.steps=1"]))
    uninstall(monkeypatch)
    config = config.replace("grpokit-fixture-good:vowels", name)
    with pytest.raises(PluginError, match=r"is not installed\. Run: pip install grpokit-fixture-good"):
        run.train(parse(config, "c.yaml"), resume=True)


@pytest.mark.usefixtures("fixtures")
def test_run_events(tmp_path: Path) -> None:
    """A watcher that raises is warned about at every step; the run, and the other watchers, go on."""
    from fixture_good.plugin import EVENTS  # type: ignore[import-not-found]

    EVENTS.clear()
    lines: list[str] = []
    done = run.train(parse(yaml.safe_dump(tiny_run(tmp_path)), "c.yaml"), watcher=run.Watcher(say=lines.append))
    assert done.steps == 2
    assert len((done.folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert lines == [
        f"warning: plugin 'watcher' failed in grpokit_step_end: CancelledError: no connection in step {step}"
        for step in (1, 2)
    ]
    assert EVENTS == [("start", "run", 42), ("step", 1), ("step", 2), ("end", True)]
    versions = json.loads((done.folder / "versions.json").read_text())
    assert versions["plugins"]["grpokit-fixture-good"] == "1.2.3"
    assert "grpokit-fixture-broken" not in versions["plugins"]


@pytest.mark.parametrize("hook", [name for name in vars(hookspecs) if name.startswith("grpokit_")])
def test_every_hook_shows_an_example(hook: str) -> None:
    text = getattr(hookspecs, hook).__doc__
    assert "@hookimpl" in text
    assert f"def {hook}(" in text


# --- a third party -------------------------------------------------------------------------------------------------

PYPROJECT = """\
[project]
name = "count-threes"
version = "0.1"
[project.entry-points.grpokit]
threes = "count_threes"
[tool.setuptools]
py-modules = ["count_threes"]
"""
MODULE = """\
from grpokit import RewardSpec, hookimpl

@hookimpl
def grpokit_rewards():
    yield RewardSpec(api=1, name="threes", factory="count_threes:threes", accepts={"text"})

def threes(samples, *, each=1.0):
    return [each * s.output.count("3") for s in samples]
"""


@pytest.mark.slow
def test_fifteen_lines_make_a_reward_that_a_config_can_name(tmp_path: Path) -> None:
    assert len((PYPROJECT + MODULE).splitlines()) <= 15
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "count_threes.py").write_text(MODULE)
    site = pip_install(tmp_path / "site", source)

    settings = tiny_run(tmp_path) | {"rewards": [{"use": "threes", "weight": 2, "each": 0.5}]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    done = command("train", str(tmp_path / "config.yaml"), path=site)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]

    prompts = [Prompt(text=str(i)) for i in range(1, 5)]
    reward = lambda samples: [s.output.count("3") for s in samples]  # noqa: E731 - half of it, twice as heavy
    trainer = Trainer(
        TinyTokens(), [reward], prompts, steps=2, prompts_per_step=2, group_size=4, learning_rate=0.05, device="cpu"
    )
    for row, report in zip(rows, trainer, strict=True):
        count = sum(s.output.count("3") for s in report.rollout.samples)
        assert row["rewards/threes/mean"] == 0.5 * count / 8
        assert row["reward"] == count / 8
    assert rows[0]["rewards/threes/mean"] > 0
    assert "'count-threes': '0.1'" in str(json.loads((tmp_path / "run/versions.json").read_text())["plugins"])


# --- light imports -------------------------------------------------------------------------------------------------

HEAVY = ("torch", "accelerate", "numpy", "matplotlib", "transformers", "datasets", "onnxruntime", "skimage")


@pytest.mark.parametrize("words", ["-c 'import grpokit; grpokit.Observer'", "-m grpokit --help", "-m grpokit plugins"])
def test_light_commands_import_nothing_heavy(words: str) -> None:
    done = subprocess.run([sys.executable, "-X", "importtime", *shlex.split(words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "grpokit" in imported
    assert not imported & set(HEAVY)


@pytest.mark.parametrize("words", ["-c 'import grpokit'", "-m grpokit --help"])
def test_light_commands_start_at_once(words: str) -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, *shlex.split(words)], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.8


def test_public_names_are_all_there() -> None:
    for name in grpokit.__all__:
        assert getattr(grpokit, name) is not None
        assert name in dir(grpokit)
    with pytest.raises(AttributeError, match="No grpokit attribute Polcy"):
        grpokit.Polcy  # noqa: B018
