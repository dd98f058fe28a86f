"""`grpokit evaluate --taught`: which statistics and gold rewards it measures, on what, and what is said of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Call, config, embedded
from grpokit import cli
from grpokit.run_folder.reader import read_run
from made_plugins import install_only

PLUGIN = """
from grpokit import Asset, Panel, PanelTable, PolicySpec, RewardSpec, hookimpl

def length(samples): return [float(len(s.output)) for s in samples]
def of_group(samples): return [len({s.output for s in samples}) + 0.0 for _ in samples]
def nothing(samples, *, word): return [0.0 for _ in samples]
def half(samples): return [0.5 for _ in samples]
def target(prompt): return "" if int(prompt.text) < 9 else "it is large"
def never(prompt): return "no target"

def reward(name, factory, **fields):
    return RewardSpec(api=1, name=name, factory=f"made_plugin_maker:{factory}", accepts={"text"}, **fields)

@hookimpl
def grpokit_policies():
    yield PolicySpec(api=1, name="maker", factory="made_policy:Maker", makes="text")

@hookimpl
def grpokit_rewards():
    words = ("less", "more")
    weights = Asset(name="weights", repository="me/weights")
    yield RewardSpec(api=1, name="digits", factory="tiny_policies:digit_sum", accepts={"text"})
    yield reward("size", "length", statistic=words)
    yield reward("bytes", "length", statistic=words)
    yield reward("heavy", "length", statistic=words, assets=[weights])
    yield reward("needy", "nothing", statistic=words)
    yield reward("broken", "no_such_function", statistic=words)
    yield RewardSpec(api=1, name="pixels", factory="made_plugin_maker:length", accepts={"image"}, statistic=words)
    yield reward("judge", "half", unscorable="made_plugin_maker:target")
    yield reward("optional", "half", unscorable="made_plugin_maker:target", assets=[Asset(name="a", module="json")])
    yield reward("targetless", "half", unscorable="made_plugin_maker:never")
    yield reward("costly", "half", unscorable="made_plugin_maker:target", gpu_memory=1e9)
    yield reward("unsaid", "half")

@hookimpl
def grpokit_panels(run):
    if not run.taught:
        return []
    rows = [[name, words[1]] for name, words in run.statistics.items()]
    table = PanelTable(caption="Words", head=["statistic", "words"], rows=rows)
    return [Panel(title="Taught", text=["It taught something."], tables=[table])]
"""

POLICY = """
from dataclasses import replace
from tiny_policies import TinyTokens

class Maker(TinyTokens):
    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        if evaluate:  # as if it were greedy
            seeds = replace(seeds, row=seeds.group.repeat_interleave(group_size))
        return super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `out` of a policy whose plugin says what it makes."""
    folder = tmp_path_factory.mktemp("taught")
    rewards = [{"use": "digits"}, {"use": "bytes", "weight": 0.01}]
    config(folder, eval__every=0, policy={"use": "maker"}, rewards=rewards)
    (folder / "made_policy.py").write_text(POLICY)
    with pytest.MonkeyPatch.context() as patch:
        install_only(folder, patch, maker=PLUGIN)
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["grpokit", "train", "c.yaml"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    return folder


@pytest.fixture
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder is that of the run."""
    install_only(trained, monkeypatch, maker=PLUGIN)
    monkeypatch.chdir(trained)
    return trained


def result(folder: Path, answer: dict[str, Any]) -> Path:
    """Where an evaluation is kept: that with as many rewards as an answer to --json."""
    for place in (folder / "out/evaluations").iterdir():
        if [*read_run(place).rewards] == [*answer["scored_by"]]:
            return place
    raise AssertionError("it is not kept")


def test_statistics_and_cheap_gold_rewards_are_measured(call: Call, here: Path) -> None:
    """Those that need weights, a GPU, a parameter or a target, that are broken or for pictures, are left out."""
    answer = json.loads(call("evaluate", "out", "--taught", "--json").out)
    assert [*answer["scored_by"]] == ["digits", "bytes", "size", "judge", "optional"]
    assert answer["samples_per_prompt"] == 3  # as the run's own evaluations
    assert answer["panels"][0]["text"] == ["It taught something."]
    run = read_run(result(here, answer))
    assert run.taught
    assert [*run.statistics] == ["bytes", "size"]
    assert [*run.weights] == [
        "reward",
        "digits",
        "bytes",
        "judge",
        "optional",
    ]  # a trained statistic is a reward as well
    before, after = run.scored(0, "groups"), run.scored(5, "groups")
    for table in (before, after):
        assert table is not None
        assert [table.prompt.count(n) for n in range(4)] == [4] * 4  # 4 prompts, groups of 4
        assert set(table.scores) == {"digits", "bytes", "size", "judge", "optional", "reward"}


def test_groups_are_drawn_as_in_training(call: Call, here: Path) -> None:
    """In evaluations the policy draws greedily, so all samples of a prompt are equal there."""
    answer = json.loads(call("evaluate", "out", "--taught", "--json").out)
    run = read_run(result(here, answer))
    held_out, groups = run.scored(0), run.scored(0, "groups")
    assert held_out is not None
    assert groups is not None
    assert len({*zip(held_out.prompt, held_out.scores["digits"], strict=True)}) == 4
    assert len({*zip(groups.prompt, groups.scores["digits"], strict=True)}) > 8


def test_it_is_printed_below_the_scores(call: Call, here: Path) -> None:
    done = call("evaluate", "out", "--taught")
    scores, _, panel = done.out.partition("\nTaught\n")
    assert [line.split()[0] for line in scores.splitlines()[1:6]] == ["digits", "bytes", "judge", "optional", "reward"]
    assert "size" not in scores
    assert panel.startswith("It taught something.\n\nstatistic  words\n")
    assert "drawing and scoring 4 groups of 4 samples as in training ..." in done.err


@pytest.mark.parametrize(
    ("words", "rewards"),
    [
        (["--gold", "unsaid", "--gold", "targetless"], ["digits", "bytes", "size", "unsaid", "targetless"]),
        (["--gold", "digits", "--gold", "unsaid"], ["digits", "bytes", "size", "unsaid"]),  # one that is trained on
        (["--with", "gold.yaml"], ["digits", "size", "bytes", "needy"]),
        (["--reward", "unsaid"], ["unsaid", "size", "bytes", "judge", "optional"]),
    ],
)
def test_gold_rewards_by_name(call: Call, here: Path, words: list[str], rewards: list[str]) -> None:
    Path("gold.yaml").write_text("rewards: [{use: digits}]\ngold: [{use: needy, word: x}]\n")
    answer = json.loads(call("evaluate", "out", "--taught", "--json", *words).out)
    assert [*answer["scored_by"]] == rewards


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["out", "--taught", "--gold", "judgee"], "error: There is no reward called 'judgee' (did you mean 'judge'?)"),
        (
            ["out", "--taught", "--gold", "needy"],
            "error: The reward 'needy' needs the parameter 'word'.",
        ),
        (
            ["out", "--taught", "--gold", "pixels"],
            "error: The reward 'pixels' scores pictures, but the policy 'maker' makes",
        ),
        (["out", "--gold", "judge"], "--gold goes with --taught."),
        (
            ["c.yaml", "--taught"],
            "--taught compares a run before and after its training. Give a run, and no --against.",
        ),
        (["out", "--taught", "--against", "c.yaml"], "Give a run, and no --against."),
        (["table.jsonl", "--taught", "--reward", "unsaid"], "Give a run, and no --against."),
        (["out/rollouts", "--taught", "--reward", "unsaid"], "--taught"),
    ],
)
def test_what_it_cannot_do_is_said(call: Call, here: Path, words: list[str], said: str) -> None:
    Path("table.jsonl").write_text('{"prompt": "1", "output": "2"}\n')
    Path("out/rollouts").mkdir(exist_ok=True)
    done = call("evaluate", *words)
    assert done.code == 2
    assert said in done.err


def test_a_policy_that_nobody_describes(call: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one of a kind without statistics, nor one of no plugin."""
    other = PLUGIN.replace('makes="text"', 'makes="made:points"').replace(
        'accepts={"text"}', 'accepts={"made:points", "text"}'
    )
    install_only(here, monkeypatch, maker=other.replace(", statistic=words", ""))
    done = call("evaluate", "out", "--taught")
    assert (done.code, "No installed plugin brings statistics of what 'maker' makes" in done.err) == (2, True)
    done = call("evaluate", "out", "--taught", "policy={use: 'tiny_policies:TinyTokens'}")
    assert (done.code, "--taught needs to know what 'tiny_policies:TinyTokens' makes" in done.err) == (2, True)


def test_the_page_shows_statistics_in_panels_alone(call: Call, here: Path) -> None:
    """They neither rise nor fall for the better, so they have no tiles, no alarm and no place among the samples."""
    answer = json.loads(call("evaluate", "out", "--taught", "--json").out)
    (page,) = embedded(result(here, answer) / "report.html")["runs"]
    assert [score["name"] for score in page["scores"]] == ["reward", "digits", "bytes", "judge", "optional"]
    assert [*page["evaluations"][0]["rows"][0]["scores"]] == ["digits", "bytes", "judge", "optional"]
    assert [panel["title"] for panel in page["panels"]] == ["Taught"]
    assert page["groups"] == []
