"""`grpokit diagnose` on real runs: what it prints, what it leaves, and what it refuses."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from command_line import Call
from grpokit.config import presets
from grpokit.report.panels import panels_of
from grpokit.run_folder.reader import read_run
from grpokit.runs import train
from grpokit_diagnosis import diagnose
from grpokit_diagnosis.diagnosis import check_of

SMALL = [
    "trainer.steps=9",
    "trainer.prompts_per_step=4",
    "trainer.group_size=8",
    "trainer.minibatches=1",
    "trainer.warmup_steps=0",
    "eval.samples=2",
]


@pytest.fixture(scope="module")
def swallowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of toy-flow whose updates Adam's epsilon swallows."""
    folder = tmp_path_factory.mktemp("runs") / "swallowed"
    config, name = presets.read_config("toy-flow", [*SMALL, "trainer.adam_epsilon=1", f"run.dir={folder}"])
    train.train(config, name=name)
    return folder


def files(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.rglob("*")) if file.is_file()}


def test_what_was_logged_names_the_cause(swallowed: Path, call: Call) -> None:
    before = files(swallowed)
    done = call("diagnose", str(swallowed))
    assert done.code == 0
    assert "1. Adam's epsilon swallows the updates." in done.out
    assert "trainer.adam_epsilon=1e-15" in done.out
    assert files(swallowed) == before


def test_a_probe_measures_and_changes_only_the_report(swallowed: Path, call: Call) -> None:
    before = files(swallowed)
    done = call("diagnose", str(swallowed), "--probe", "--json")
    assert done.code == 0
    content = json.loads(done.out)
    assert content["probed"]
    assert content["causes"][0]["id"] == "epsilon-swallows"
    assert content["causes"][0]["overrides"] == ["trainer.adam_epsilon=1e-15"]
    topics = [look["topic"] for look in content["fine"]]
    assert {"noise of the reward", "size of the groups", "length of a step"} <= {*topics}
    after = files(swallowed)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed <= {"diagnosis.json", "report.html", "report.png"}
    panels, failures = panels_of(read_run(swallowed))
    assert failures == []
    why = next(panel for panel in panels if panel.title == "Why")
    assert why.text[0] == "Adam's epsilon swallows the updates."
    assert [table.caption for table in why.tables] == [
        "1. Adam's epsilon swallows the updates.",
        "Steps along one update, on held-out prompts",
        "Looked at and fine",
    ]


def test_a_probe_is_the_same_every_time(swallowed: Path) -> None:
    first, second = (diagnose(swallowed, probe=True).as_json() for _ in range(2))
    for result in (first, second):  # what the clock says
        del result["measured"]["cost"], result["measured"]["step_seconds"]
    assert first == second


def test_what_a_result_names_can_be_typed(swallowed: Path, call: Call) -> None:
    found = diagnose(swallowed)
    (cause,) = found.causes
    words = shlex.split(check_of(found.run, cause))
    assert call(*words[1:], "trainer.steps=1").code == 0
    changed = swallowed.with_name(f"{swallowed.name}-epsilon-swallows")
    assert "adam_epsilon: 1.0e-15" in (changed / "config.yaml").read_text()


def test_of_a_run_with_phases_the_latest_is_looked_at(call: Call, tmp_path: Path) -> None:
    phases = [
        {"name": "first", "steps": 6},
        {
            "name": "second",
            "steps": 7,
            "trainer": {"adam_epsilon": 1.0, "minibatches": 1},
            "rewards": [{"use": "ring"}],
        },
    ]
    folder = tmp_path / "run"
    words = ["trainer={prompts_per_step: 4, group_size: 8}", f"phases={json.dumps(phases)}", f"run.dir={folder}"]
    config, name = presets.read_config("toy-flow", words)
    train.train(config, name=name)
    found = diagnose(folder, probe=True)
    assert found.phase == "second"
    assert len(found.run.metrics) == 7
    assert [cause.overrides for cause in found.causes] == [["phases.1.trainer.adam_epsilon=1e-15"]]
    command = shlex.split(check_of(found.run, found.causes[0]))
    assert call(*command[1:], "phases.0.steps=1", "phases.1.steps=1").code == 0


def test_a_probed_run_has_its_panel_wherever_it_lies(swallowed: Path, call: Call, tmp_path: Path) -> None:
    assert call("diagnose", str(swallowed), "--probe").code == 0
    copy = tmp_path / "a copy"
    shutil.copytree(swallowed, copy)
    panels, _ = panels_of(read_run(copy))
    why = next(panel for panel in panels if panel.title == "Why")
    assert "a copy-epsilon-swallows" in str(why.tables[0].rows[2][1])


def test_a_reward_that_never_scores_leaves_nothing_to_measure(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "no_score.py").write_text("def nan(samples): return [float('nan') for _ in samples]\n")
    folder = tmp_path / "run"
    words = [*SMALL, "rewards=[{use: 'no_score:nan'}]", "run.save_every=1", f"run.dir={folder}"]
    assert call("train", "toy-flow", *words).code == 2  # a guard refuses it
    done = call("diagnose", str(folder))
    assert (done.code, "The run stopped: " in done.out) == (0, True)
    probed = call("diagnose", str(folder), "--probe")
    assert (probed.code, probed.out) == (2, "")
    assert "no sample a score" in probed.err


def test_an_evaluation_is_no_run(swallowed: Path, call: Call, tmp_path: Path) -> None:
    assert call("evaluate", str(swallowed), "eval.samples=1", "--out", str(tmp_path / "e")).code == 0
    done = call("diagnose", str(tmp_path / "e"))
    assert (done.code, "is the result of an evaluation" in done.err) == (2, True)


@pytest.mark.parametrize("words", [["nowhere"], ["."], ["toy-flow"]])
def test_what_is_no_run_is_refused(
    words: list[str], call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("diagnose", *words)
    assert (done.code, done.out) == (2, "")
    assert "is not a run folder" in done.err
