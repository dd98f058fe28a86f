"""`grpokit evaluate` of a run: other prompts, rewards and runs to compare with, from the same draws."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from command_line import Call, config, embedded
from grpokit import cli
from grpokit.evaluation.intervals import half_width
from grpokit.run_folder.lock import locked
from grpokit.run_folder.reader import read_run

EVALUATION = """\
data: {prompts: sums.jsonl}
rewards:
  - {use: "tiny_policies:digit_sum", name: digits}
  - {use: length, weight: 0, maximum: 3, scale: 0.1}
samples: 2
by: [size]
"""
SUMS = [("7", "small"), ("8", "small"), ("70", "large"), ("80", "large"), ("90", "large")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `out`, and an evaluation beside it."""
    folder = tmp_path_factory.mktemp("evaluated")
    config(folder, eval__every=0)
    (folder / "sums.yaml").write_text(EVALUATION)
    lines = (json.dumps({"prompt": prompt, "size": size}) for prompt, size in SUMS)
    (folder / "sums.jsonl").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "argv", ["grpokit", "train", "c.yaml"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    return folder


def test_before_and_after_with_paired_intervals_and_a_page(
    call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished)
    done = call("evaluate", "out", "--with", "sums.yaml")
    (folder,) = Path("out/evaluations").glob("sums-step_000005-*")
    assert (done.code, done.out.splitlines()[-1]) == (0, f"report: {folder.absolute()}/report.html")
    assert "digits: {use: 'tiny_policies:digit_sum'}\nlength: {use: length, maximum: 3, scale: 0.1}\n" in done.out

    run = read_run(folder)
    before, after = run.scored(0), run.scored(5)
    assert before is not None
    assert after is not None
    assert len(before.prompt) == len(SUMS) * 2
    answer = json.loads(call("evaluate", "out", "--with", "sums.yaml", "--json").out)
    assert (answer["seed"], answer["prompts"], answer["samples_per_prompt"]) == (42, 5, 2)  # not the run's seed
    assert answer["scored_by"]["digits"] == "{use: 'tiny_policies:digit_sum'}"
    gains = [new - old for old, new in zip(before.scores["digits"], after.scores["digits"], strict=True)]  # type: ignore[operator]
    for part, rows in (("", range(10)), ("size small", range(4)), ("size large", range(4, 10))):
        own = answer["by"][part] if part else answer
        assert set(own["change"]) == {"digits", "length"}  # one reward with the weight 1 is its own sum
        width = half_width([gains[i] for i in rows], [before.prompt[i] for i in rows])
        assert own["change"]["digits"] == pytest.approx(
            {"mean": sum(gains[i] for i in rows) / len(rows), "ci95": width}
        )
        shown = re.escape(f"{own['change']['digits']['mean']:+.3f} ± {width:.3f}")
        assert re.search(rf"^digits{part and f', {part}'} .* {shown}$", done.out, re.MULTILINE)

    page = embedded(folder / "report.html")["runs"][0]
    assert page["state"] == "evaluated"
    assert {change["name"]: change["change"] for change in page["scores"]} == {
        name: pytest.approx(change["mean"]) for name, change in answer["change"].items()
    }
    assert [(each["step"], len(each["rows"])) for each in page["evaluations"]] == [(0, 10), (5, 10)]


def test_the_same_draws_for_a_preset_and_a_checkpoint_elsewhere(
    call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is untrained does not depend on the run, and words change the evaluation or the run."""
    monkeypatch.chdir(finished)
    words = ["--with", "sums.yaml", "samples=1", "rewards.1.scale=0.2", "trainer.device=cpu", "--json", "--limit", 3]
    lone = json.loads(call("evaluate", "c.yaml", *words).out)
    assert set(lone) & {"before", "after", "change"} == {"before"}
    assert not Path("evaluations").exists()  # there is no run to keep it in
    (tmp_path / "copy").symlink_to(finished / "out/checkpoints/step_000005")
    there = call("evaluate", tmp_path / "copy", *words, "--out", tmp_path / "kept")
    answer = json.loads(there.out)
    assert answer["before"] == lone["before"]
    assert answer["samples_per_prompt"] == 1
    assert answer["scored_by"]["length"] == "{use: length, maximum: 3, scale: 0.2}"
    assert (tmp_path / "kept/eval.jsonl").read_text().count("\n") == 2
    two = json.loads(call("evaluate", "c.yaml", *words, "rewards=[{use: length}, {use: length, maximum: 1}]").out)
    assert two["scored_by"] == {"length": "{use: length}", "length-2": "{use: length, maximum: 1}"}
    again = call("evaluate", "c.yaml", "--with", "sums.yaml", "--out", tmp_path / "kept", "--limit", 1)
    assert again.code == 0
    assert (tmp_path / "kept/eval.jsonl").read_text().count("\n") == 1  # an earlier one is replaced


def test_rewards_that_score_nothing_or_little_are_named(
    call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(finished)
    done = call("evaluate", "out", "--with", "sums.yaml", "rewards=[{use: exact-match}]", "--out", tmp_path / "kept")
    assert done.code == 2
    assert done.out.endswith(f"report: {tmp_path}/kept/report.html\n")
    first, second = done.err.splitlines()[-2:]
    assert first.startswith("error: exact-match scored no sample of before. It may need a prompt (--prompt, ")
    assert second.startswith("exact-match scored no sample of after. ")
    (tmp_path / "some.jsonl").write_text('{"prompt": "1+1", "target": "2"}\n{"prompt": "1+2"}\n')
    done = call("evaluate", "toy-lm", "--prompts", tmp_path / "some.jsonl", "--reward", "exact-match")
    assert done.code == 0
    assert done.err.endswith("\nexact-match could not score 1 of 2 samples of before\n")


def test_an_evaluation_replaces_itself_and_nothing_else(
    call: Call, finished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(finished / "out", tmp_path / "out")
    monkeypatch.chdir(finished)
    words = ["evaluate", tmp_path / "out", "--with", "sums.yaml"]
    pages = [call(*words, *more).out.splitlines()[-1] for more in ([], ["samples=1"], ["--limit", 2], [])]
    assert pages[0] == pages[3]
    assert len(set(pages)) == len(list((tmp_path / "out/evaluations").iterdir())) == 3

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.yaml").write_text("mine: true")
    (tmp_path / "slim").mkdir()
    for name in ("versions.json", "data.json", "config.yaml"):  # of a run, and its other files are elsewhere
        shutil.copy(finished / "out" / name, tmp_path / "slim")
    assert call(*words, "--out", tmp_path / "annotated").code == 0
    (tmp_path / "annotated/samples/mine.txt").touch()
    for name in ("out", "mine", "slim", "annotated"):
        before = {path: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}
        refused = call(*words, "--out", tmp_path / name)
        assert refused.code == 2
        assert "--out" in refused.err
        assert {path: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()} == before

    (tmp_path / "killed").mkdir()
    for name in (".unfinished", "versions.json"):
        (tmp_path / "killed" / name).touch()
    with locked(tmp_path / "killed"):
        busy = call(*words, "--out", tmp_path / "killed")
    assert busy.code == 2
    assert "is writing an evaluation into" in busy.err
    assert call(*words, "--out", tmp_path / "killed").code == 0
    assert not (tmp_path / "killed/.unfinished").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data: {prompts: sums.jsonl}", "e.yaml, line 1: the key 'rewards' is missing"),
        ("", "e.yaml: expected keys such as rewards, got an empty file"),
        (
            "data: {prompts: sums.jsonl}\nrewards: [{use: length}]\ntrainer: {steps: 3}",
            "e.yaml, line 3: unknown key 'trainer'. Known keys: seed, data, rewards, samples, by, gold, files",
        ),
        (
            "data: {prompts: sums.jsonl}\nrewards: [{use: mse}]",
            "e.yaml, line 2: rewards.0: The reward 'mse' scores pictures, but the policy 'toy-lm' makes texts",
        ),
        (
            "data: {prompts: sums.jsonl}\nrewards: [{use: length}]\nby: [sise]",
            "e.yaml, line 3: by: no prompt has the column 'sise'. Their columns: size",
        ),
        ("data: {prompts: none.jsonl}\nrewards: [{use: length}]", "e.yaml, line 1: data.prompts: "),
    ],
)
def test_a_wrong_evaluation_is_named_with_its_line(call: Call, finished: Path, text: str, said: str) -> None:
    Path("e.yaml").write_text(text)
    Path("sums.jsonl").write_text((finished / "sums.jsonl").read_text())
    done = call("evaluate", "toy-lm", "--with", "e.yaml")
    assert (done.code, done.out) == (2, "")
    assert f"error: {said}" in done.err


def test_an_evaluation_that_is_not_there(call: Call) -> None:
    done = call("evaluate", "toy-lm", "--with", "text-renderin")
    assert done.code == 2
    assert "There is no evaluation called 'text-renderin'" in done.err
    assert "An evaluation file ends in .yaml." in done.err
    assert "e.yaml does not exist" in call("evaluate", "toy-lm", "--with", "e.yaml").err
