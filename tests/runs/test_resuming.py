"""Prompts before a run and on resume: what a policy cannot read, and what the run was not started with."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from grpokit import DataError, Trainer, UsageError
from grpokit.config import schema
from grpokit.config.schema import to_dict
from grpokit.data import read_prompts
from grpokit.run_folder import run_metadata
from grpokit.runs import preflight, resuming
from grpokit.runs import train as run
from small_runs import STEPS, rows, train, write_prompts
from switched import Picky, Switch, reward

EVEN = [str(i) for i in range(1, 9)]


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Switch.off()
    monkeypatch.chdir(tmp_path)
    write_prompts(EVEN)
    write_prompts(["3", "4"], "held.jsonl")


def halfway(**changes: Any) -> dict[str, Any]:
    """A run of 3 of 6 steps; returns its settings."""
    settings = {"eval__prompts": "held.jsonl", "run__save_every": 3, "eval__every": 3, **changes}
    train("out", trainer__steps=3, **settings)
    return settings


# --- on resume -------------------------------------------------------------------------------------------------------


def test_changed_training_prompts_are_refused_and_can_be_forced() -> None:
    settings = halfway()
    before = {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()}
    write_prompts(["1", "2", "33", "4", "5", "6", "77", "8"])
    with pytest.raises(
        UsageError, match=r"training prompts: 2 of 8 prompts changed, first the text or meta of prompts\.jsonl, line 3"
    ):
        train("out", resume=True, **settings)
    assert before == {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()}
    assert train("out", resume=True, force=True, **settings).steps == STEPS
    messages = [row["message"] for row in rows("out/warnings.jsonl")]
    assert any(message.startswith("resumed with other training prompts: 2 of 8") for message in messages)
    assert [row["step"] for row in rows("out/eval.jsonl")] == [0, 3, 6]  # the same held-out prompts throughout
    assert train("out", resume=True, **settings).steps == STEPS  # what was forced is what the run has now


def test_evaluations_of_other_held_out_prompts_are_set_aside() -> None:
    settings = halfway()
    earlier = rows("out/eval.jsonl")
    write_prompts(["5", "6", "7"], "held.jsonl")
    with pytest.raises(UsageError, match="held-out prompts: 2 prompts became 3; 2 of 2 prompts changed, first the te"):
        train("out", resume=True, **settings)
    result = train("out", resume=True, force=True, **settings)
    assert rows("out/eval.earlier-1.jsonl") == earlier
    assert Path("out/samples.earlier-1/step_000003/scores.json").is_file()
    assert [row["step"] for row in rows("out/eval.jsonl")] == [3, 6]
    assert result.before is None


@pytest.mark.parametrize("change", ["comment", "code", "weight"])
def test_evaluations_by_other_rewards_are_set_aside(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from switched import reward\n\ndef score(samples):\n    return [{} * x for x in reward(samples)]\n"
    Path("own_score.py").write_text(code.format(1))
    monkeypatch.syspath_prepend(Path())
    rewards = {"use": "own_score:score", "name": "digits"}
    settings = halfway(rewards=[rewards])
    earlier = rows("out/eval.jsonl")
    monkeypatch.delitem(sys.modules, "own_score")
    importlib.invalidate_caches()
    Path("own_score.py").write_text("# My score.\n" + code.format(3 if change == "code" else 1))
    settings["rewards"] = [{**rewards, "weight": 3.0 if change == "weight" else 1.0}]
    result = train("out", resume=True, force=change == "weight", **settings)
    messages = [row["message"] for row in rows("out/warnings.jsonl")]
    monkeypatch.delitem(sys.modules, "own_score")
    if change == "comment":
        assert result.before.means == earlier[0]["means"]
        assert not any(message.startswith("resumed with") for message in messages)
        return
    assert "resumed with other rewards or another policy: they or their code changed" in messages
    assert rows("out/eval.earlier-1.jsonl") == earlier
    assert [row["step"] for row in rows("out/eval.jsonl")] == [3, 6]


def test_code_that_a_policy_names_stands_in_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the key is called; other texts with a colon are no modules."""
    monkeypatch.syspath_prepend(Path())
    Path("own_steps.py").write_text("steps = 3\n")
    texts = {"env": "own_steps:Walk-v0", "system": "Note:x", "stop": ["no.such.module:x", "own.:y"]}
    settings = {"policy": {"use": "p", **texts}, "data": {"prompts": "a.txt"}, "rewards": [{"use": "r"}]}
    config = schema.parse(yaml.safe_dump(settings), "c.yaml")
    before = run_metadata.versions(to_dict(config), {})["code"]
    Path("own_steps.py").write_text("steps = 4\n")
    after = run_metadata.versions(to_dict(config), {})["code"]
    assert list(before) == list(after) == ["own_steps"]
    assert before != after


@pytest.mark.parametrize("use", ["toy-lm", "length"])
def test_evaluations_by_another_version_of_a_component_are_set_aside(use: str) -> None:
    plugin = {"toy-lm": "grpokit-toy", "length": "grpokit"}[use]
    config = schema.parse("policy: {use: toy-lm}\ndata: {use: d}\nrewards: [{use: length}]", "c.yaml")
    assert resuming.scores_otherwise(config, [], {f"plugins.{plugin}": "1.0 -> 1.1"})
    assert not resuming.scores_otherwise(config, [], {"plugins.grpokit-ssim": "1.0 -> 1.1"})


@pytest.mark.parametrize(
    "change", ["plugins.grpokit-grounding", "plugins.grpokit-ssim", "plugins.grpokit-lm", "code.steps"]
)
def test_what_a_component_names_is_a_part_of_it(change: str) -> None:
    """A reward of crops, a world, an environment of one's own."""
    text = "policy: {use: toy-lm, world: calculator, env: 'steps:Walk-v0'}\ndata: {use: d}\n"
    config = schema.parse(text + "rewards: [{use: crop-match, match: structure}]", "c.yaml")
    assert resuming.scores_otherwise(config, [], {change: "1.0 -> 1.1"})
    assert not resuming.scores_otherwise(config, [], {"plugins.grpokit-ocr": "1.0 -> 1.1", "code.other": "a -> b"})


def test_the_config_of_the_checkpoint_counts_and_not_its_edited_copy() -> None:
    settings = halfway()
    file = Path("out/config.yaml")
    file.write_text(file.read_text().replace("learning_rate: 0.02", "learning_rate: 0.5"))
    settings["trainer__learning_rate"] = 0.5
    with pytest.raises(UsageError, match=r"trainer\.learning_rate: 0\.02 -> 0\.5\n"):
        train("out", resume=True, **settings)


def test_a_finished_run_without_checkpoints_is_not_begun_again() -> None:
    settings = halfway()
    shutil.rmtree("out/checkpoints")
    before = {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()}
    with pytest.raises(UsageError, match=r"is finished, .* --overwrite"):
        train("out", resume=True, **settings)
    assert before == {p: p.read_bytes() for p in Path("out").rglob("*") if p.is_file()}


def test_a_reward_that_leaves_the_working_folder_takes_the_run_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("elsewhere/out").mkdir(parents=True)
    Path("elsewhere/out/precious.txt").touch()
    Path("leaving.py").write_text("import os\nfrom switched import reward\nos.chdir('elsewhere')\n")
    monkeypatch.syspath_prepend(tmp_path)
    train("out", trainer__steps=1, rewards=[{"use": "leaving:reward"}], eval__prompts=None)
    assert [path.name for path in (tmp_path / "elsewhere/out").iterdir()] == ["precious.txt"]
    assert (tmp_path / "out/checkpoints/step_000001").is_dir()


def test_a_resume_says_from_where() -> None:
    settings = halfway()
    lines: list[str] = []
    train("out", resume=True, watcher=run.Watcher(say=lines.append), **settings)
    assert lines[0] == f"resuming after step 3 of 6 from {Path('out').absolute()}/checkpoints/step_000003"


# --- before a run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "line"), [("prompts", 7), ("held", 2)])
def test_a_prompt_that_the_policy_cannot_read_is_found_before_anything_is_written(file: str, line: int) -> None:
    texts = EVEN if file == "prompts" else ["3", "4"]
    write_prompts([*texts[: line - 1], "99"], f"{file}.jsonl")
    with pytest.raises(DataError, match=rf"^{file}\.jsonl, line {line}: '99' is no number below 90\.$"):
        train("out", policy__use="switched:Picky", eval__prompts="held.jsonl")
    assert sorted(path.name for path in Path().iterdir()) == ["held.jsonl", "prompts.jsonl"]


def test_a_trainer_without_a_run_checks_its_prompts_too() -> None:
    with pytest.raises(UsageError, match=r"^prompt 1: 'two' is no number"):
        Trainer(Picky(), [reward], ["1", "two"], group_size=4, device="cpu")


def test_a_check_reads_no_more_than_the_headers_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("1\n2\n")
    for number, size in ((1, (40, 90)), (2, (90, 40))):
        exif = Image.Exif()
        exif[0x0112] = 6  # stands on its side in the file
        Image.effect_noise(size[::-1], 90).save(tmp_path / f"{number}.jpg", exif=exif)
    whole = (tmp_path / "1.jpg").read_bytes()
    (tmp_path / "1.jpg").write_bytes(whole[:-50])  # its pixels are damaged
    prompts = read_prompts(tmp_path / "p.txt", images=tmp_path)
    with pytest.raises(UsageError, match=r"p\.txt, line 2: The picture lies on its side\.$"):
        Trainer(Picky(), [reward], prompts, group_size=4, device="cpu")


def test_held_out_prompts_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    train("out", trainer__steps=1, eval__prompts="held.jsonl")
    assert rows("out/warnings.jsonl")[0]["message"] == (
        "2 of 2 held-out prompts are trained on as well (same text, same source picture), first held.jsonl, line 1 "
        "('3'). Their scores say little about new prompts: take them out of the training prompts, or hold out others"
    )
    for name, grey in (("a", 1), ("b", 2), ("c", 1)):  # a and c are the same picture
        Image.new("L", (4, 4), grey).save(tmp_path / f"{name}.png")

    def warned(trained: list[dict[str, Any]], held: list[dict[str, Any]]) -> list[str]:
        sequences = []
        for name, prompts in (("trained", trained), ("held", held)):
            Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(prompt)}\n" for prompt in prompts))
            sequences.append(read_prompts(Path(f"{name}.jsonl")))
        return preflight.trained_held_out_prompts(*sequences, resuming.prompt_digests(*sequences))

    edit = {"prompt": "make it blue", "image": "a.png", "level": 1}
    assert not warned([edit], [{**edit, "image": "b.png"}, {"prompt": "make it red", "image": "a.png"}])
    (line,) = warned([edit], [{**edit, "image": "b.png"}, {**edit, "image": "c.png", "level": 2}])
    assert line.startswith("1 of 2 held-out prompts is trained on as well (same text, same source picture), first held")
    assert "held.jsonl, line 2 ('make it blue')" in line
