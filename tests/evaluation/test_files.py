"""`grpokit evaluate` of pictures and texts that lie in files, and every kind of bad input."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command_line import Call, Done, embedded
from grpokit import DataError, RewardError, RewardTerm, Sample, UsageError, cli, data
from grpokit.evaluation import sample_files
from grpokit.evaluation.evaluation import Evaluation
from grpokit.evaluation.files import evaluate_files
from grpokit.evaluation.intervals import half_width
from grpokit.rewards.scoring import score_samples


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """`call("a.png", "--reward", "mse")` is `grpokit evaluate a.png --reward mse` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["grpokit", "evaluate", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Done(int(ended.value.code or 0), said.out, said.err)

    return run


def picture(path: Path | str, shade: int = 0, size: int = 8) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (shade,) * 3).save(path)


def samples_of(done: Done) -> list[dict[str, Any]]:
    """What --json says of each sample."""
    listed: list[dict[str, Any]] = json.loads(done.out)["samples"]
    return listed


def lines(folder: Path) -> list[dict[str, Any]]:
    """What was kept of each sample."""
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


def table(text: str) -> dict[str, str]:
    """The means: reward -> its cell."""
    rows = [line.split(maxsplit=1) for line in text.splitlines() if "±" in line or "not scored" in line]
    return {name: cell.strip() for name, cell in rows}


def shade(samples: Sequence[Sample]) -> list[float]:
    """The upper left pixel, NaN where it is black: so rows can be told from each other."""
    return [float(s.output.getpixel((0, 0))[0]) or math.nan for s in samples]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Lines 1, 3 and 4 of a file of prompts, two samples for line 3; targets are 51 (0.2) brighter."""
    (tmp_path / "prompts.txt").write_text('a sign "Tea"\n\ngray\nlight gray\n')
    for name, value in (("1", 0), ("3_1", 51), ("3_10", 102), ("0004", 153)):
        picture(tmp_path / f"pictures/{name}.png", value)
    for name, value in (("1", 51), ("3", 102), ("4", 204)):
        picture(tmp_path / f"targets/{name}.png", value)
    return tmp_path


# --- what is scored ------------------------------------------------------------------------------------------------


def test_one_picture(call: Call, tmp_path: Path) -> None:
    picture(tmp_path / "cat.png", 51)
    picture(tmp_path / "target.png", 102)
    done = call("cat.png", "--reward", "mse", "--prompt", "a cat", "--targets", "target.png", "--json")
    assert (done.code, done.err) == (0, "")
    answer = json.loads(done.out)
    assert answer["cat.png"] == {"mse": {"mean": pytest.approx(-0.04), "ci95": None}}
    assert [row["prompt"] for row in answer["samples"]] == ["a cat"]


def test_a_folder_against_prompts_and_targets(call: Call, three: Path) -> None:
    words = ["pictures", "--prompts", "prompts.txt", "--targets", "targets", "--reward", "mse", "--reward", "ssim"]
    done = call(*words, "--out", "kept")
    assert (done.code, done.err) == (0, "")
    found = lines(three / "kept")
    assert [(row["file"], row["group"], row["prompt"]) for row in found] == [
        ("pictures/1.png", 1, 'a sign "Tea"'),
        ("pictures/3_1.png", 3, "gray"),
        ("pictures/3_10.png", 3, "gray"),
        ("pictures/0004.png", 4, "light gray"),
    ]
    mse = [row["scores"]["mse"] for row in found]
    assert mse == pytest.approx([-0.04, -0.04, 0.0, -0.04])
    assert [row["reward"] for row in found] == pytest.approx([sum(row["scores"].values()) for row in found])
    assert table(done.out)["mse"] == f"-0.030 ± {half_width(mse, [1, 3, 3, 4]):.3f}"
    shown = next(line for line in done.out.splitlines() if line.startswith("pictures/3_10.png"))
    assert shown.split() == ["pictures/3_10.png", "0.0000", "1.0000", "1.0000", "gray"]
    assert done.out.endswith(f"report: {three}/kept/report.html\n")
    run = embedded(three / "kept/report.html")["runs"][0]
    assert run["evaluations"][0]["label"] == "pictures"
    assert [row["prompt"] for row in run["evaluations"][0]["rows"]] == ['a sign "Tea"', "gray", "light gray", "gray"]
    assert {row["scores"]["mse"] for row in run["evaluations"][0]["rows"]} == set(mse)


def test_sources_reach_the_reward(call: Call, three: Path) -> None:
    (three / "sources_of_score.py").write_text(
        "def seen(samples):\n    return [float(s.prompt.image.getpixel((0, 0))[0]) for s in samples]\n"
    )
    use = ["--reward", "sources_of_score:seen", "--json"]
    done = call("pictures", "--prompts", "prompts.txt", "--sources", "targets", *use)
    assert [row["scores"]["seen"] for row in samples_of(done)] == [51, 102, 102, 204]
    done = call("pictures/1.png", "--sources", "targets/4.png", *use)
    assert [row["scores"]["seen"] for row in samples_of(done)] == [204]


def test_json_lines_of_texts(call: Call, tmp_path: Path) -> None:
    records = [
        {"prompt": "p", "output": "yes, b", "target": "B"},
        {"prompt": "q", "output": "no", "target": "b"},
        {"prompt": "p", "output": "x", "target": "B"},
        {"prompt": "p", "output": "\ud800"},
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(r) + "\n\n" for r in records))
    words = ["--reward", "contains", "--reward", "length", "length.maximum=2", "contains.ignore_case=true"]
    done = call("r.jsonl", *words, "--json")
    assert done.code == 0
    assert samples_of(done) == [
        {
            "prompt": "p",
            "output": "yes, b",
            "group": 0,
            "line": 1,
            "scores": {"contains": 1.0, "length": -4.0},
            "reward": -3.0,
        },
        {
            "prompt": "p",
            "output": "x",
            "group": 0,
            "line": 5,
            "scores": {"contains": 0.0, "length": 0.0},
            "reward": 0.0,
        },
        {
            "prompt": "q",
            "output": "no",
            "group": 1,
            "line": 3,
            "scores": {"contains": 0.0, "length": 0.0},
            "reward": 0.0,
        },
        {
            "prompt": "p",
            "output": "\ud800",
            "group": 2,
            "line": 7,
            "scores": {"contains": None, "length": 0.0},
            "reward": pytest.approx(1 / 3),
        },
    ]
    contains = json.loads(done.out)["r.jsonl"]["contains"]
    assert contains == {"mean": pytest.approx(1 / 3), "ci95": pytest.approx(half_width([1, 0, 0], [0, 0, 1]))}
    assert done.err.endswith("contains could not score 1 of 4 samples of r.jsonl:\n  r.jsonl, line 7\n")


SUMS = [("2+2", "4", "4"), ("1,5*2", "5", "3"), ("2+2", "5", 4)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.csv", 'prompt,output,target\n2+2,4,4\n"1,5*2",5,3\n\n2+2,5,4\n'),
        ("r.json", json.dumps([dict(zip(("prompt", "output", "target"), row, strict=True)) for row in SUMS])),
    ],
)
def test_records_of_other_kinds(call: Call, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    done = call(name, "--reward", "exact-match", "--json")
    assert done.code == 0, done.err
    found = {(row["prompt"], row["output"]): row["scores"]["exact-match"] for row in samples_of(done)}
    assert found == {("2+2", "4"): 1.0, ("1,5*2", "5"): 0.0, ("2+2", "5"): 0.0}


def test_records_of_different_conversations_are_different_groups(tmp_path: Path) -> None:
    asked = [
        [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "?"},
            {"role": "user", "content": "Go on."},
        ]
        for text in ("a", "b", "a")
    ]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps({"prompt": p, "output": "x"}) + "\n" for p in asked))
    assert [(entry.line, entry.group) for entry in sample_files.read_records(tmp_path / "r.jsonl")] == [
        (1, 0),
        (3, 0),
        (2, 1),
    ]


def test_json_lines_of_pictures_with_meta(tmp_path: Path) -> None:
    picture(tmp_path / "a/1.png", 51)
    picture(tmp_path / "a/t.png", 102)
    rows = [
        {"prompt": "p", "output": "1.png", "target": "t.png", "image": "1.png", "label": 7},
        {"prompt": "p", "file": "1.png", "target_text": "words", "source": "t.png", "group": 3},
    ]
    (tmp_path / "a/r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = (entry.open() for entry in sample_files.read_records(tmp_path / "a/r.jsonl"))
    assert [s.output.getpixel((0, 0)) for s in (first, second)] == [(51, 51, 51)] * 2
    assert first.prompt.target.getpixel((0, 0)) == second.prompt.image.getpixel((0, 0)) == (102, 102, 102)
    assert (first.prompt.image.getpixel((0, 0)), first.prompt.meta) == ((51, 51, 51), {"label": 7})
    assert (second.prompt.target, second.prompt.meta) == ("words", {})
    assert first.group != second.group


def test_what_sample_wrote(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample has its own copy of the target there, and yet a prompt's samples are a group."""
    monkeypatch.setattr(sys, "argv", ["grpokit", "sample", "toy-glyph", "--out", "drawn", "-n", "2", "--limit", "3"])
    with pytest.raises(SystemExit):
        cli.main()
    done = call("drawn", "--reward", "mse", "--json")
    assert done.code == 0
    found = samples_of(done)
    assert len(found) == 6  # the targets that lie beside them are no samples
    assert [row["group"] for row in found] == [0, 0, 1, 1, 2, 2]
    for i, row in enumerate(found):
        pixels = [
            np.asarray(Image.open(tmp_path / f"drawn/{i:04d}{end}").convert("RGB")) / 255
            for end in (".png", ".target.png")
        ]
        assert row["scores"]["mse"] == pytest.approx(-np.mean((pixels[0] - pixels[1]) ** 2))
    done = call("drawn", "--reward", "mse", "--prompt", "a sign")
    assert done.code == 2
    assert done.err.startswith("error: The records in drawn/samples.jsonl have their own prompts")
    done = call("drawn", "--reward", "mse", "--prompts", "drawn/samples.jsonl")
    assert "0000.target.png is not named by a line number" in done.err


def test_rewards_and_weights_of_a_config(call: Call, three: Path) -> None:
    (three / "c.yaml").write_text(
        "policy: {use: toy-glyph}\ndata: {prompts: prompts.txt}\n"
        "rewards: [{use: mse, weight: 0.5}, {use: ssim, name: like, weight: 2}]\n"
    )
    named = ["pictures", "--prompts", "prompts.txt", "--targets", "targets"]
    done = call(*named, "--with", "c.yaml", "rewards.0.weight=0.25", "--json")
    assert done.code == 0, done.err
    for row in samples_of(done):
        assert set(row["scores"]) == {"mse", "like"}
        assert row["reward"] == pytest.approx(0.25 * row["scores"]["mse"] + 2 * row["scores"]["like"])
    mean = np.mean([row["reward"] for row in samples_of(done)])
    assert json.loads(done.out)["pictures"]["reward"]["mean"] == pytest.approx(mean)
    words = ["--reward", "mse", "--reward", "ssim", "mse.weight=0.25", "ssim.weight=2", "--json"]
    again = call(*named, *words)
    assert [row["reward"] for row in samples_of(again)] == [row["reward"] for row in samples_of(done)]


def test_an_evaluation_names_prompts_rewards_and_perhaps_files(call: Call, three: Path) -> None:
    (three / "e.yaml").write_text("data: {prompts: prompts.txt, targets: targets}\nrewards: [{use: mse}]\n")
    done = call("pictures", "--with", "e.yaml", "--json", "--limit", 2)
    assert [row["group"] for row in samples_of(done)] == [1, 3, 3]
    assert "e.yaml names no files" in call("e.yaml").err
    with (three / "e.yaml").open("a") as file:
        file.write("files: pictures\n")
    assert samples_of(call("e.yaml", "--json"))[:3] == samples_of(done)


def test_two_folders_are_compared_prompt_by_prompt(call: Call, three: Path) -> None:
    """By an independent calculation: the interval of a paired t test over the prompts' differences."""
    rng = np.random.default_rng(0)
    for folder in ("old", "new"):
        for line in (1, 3, 4):
            picture(three / f"{folder}/{line}.png", int(rng.integers(0, 200)))
    words = ["--prompts", "prompts.txt", "--targets", "targets", "--reward", "mse"]
    done = call("new", "--against", "old", *words, "--out", "kept", "--json")
    answer = json.loads(done.out)
    of = {name: [row["scores"]["mse"] for row in answer["samples"] if row["of"] == name] for name in ("old", "new")}
    gains = np.subtract(of["new"], of["old"])
    assert answer["change"]["mse"]["mean"] == pytest.approx(gains.mean())
    spread = gains.std(ddof=1) / np.sqrt(3)
    assert answer["change"]["mse"]["ci95"] == pytest.approx(4.3027 * spread, rel=1e-4)  # Student's t, 2 degrees
    run = embedded(three / "kept/report.html")["runs"][0]
    assert [part["label"] for part in run["evaluations"]] == run["prompts"]["labels"] == ["old", "new"]
    assert run["scores"][0]["change"] == pytest.approx(gains.mean())
    (three / "new/3.png").rename(three / "new/3_2.png")
    picture(three / "new/3_1.png", 0)
    more = json.loads(call("new", "--against", "old", *words, "--json").out)
    new = [row["scores"]["mse"] for row in more["samples"] if row["of"] == "new"]
    gains = np.array([new[0], np.mean(new[1:3]), new[3]]) - of["old"]  # a prompt with two samples counts once
    assert more["change"]["mse"]["mean"] == pytest.approx(gains.mean())
    assert more["change"]["mse"]["ci95"] == pytest.approx(4.3027 * gains.std(ddof=1) / np.sqrt(3), rel=1e-4)


def test_prompts_are_paired_by_text_and_target_in_any_order(call: Call, tmp_path: Path) -> None:
    """One prompt has no score on one side, and one is on one side alone: both say nothing of the change."""
    rows = [{"prompt": "p", "target": target, "output": "x" * n} for target, n in (("a", 1), ("b", 4), ("c", 6))]
    one = {"prompt": "p", "target": "d", "output": ""}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, one]))
    longer = [{**row, "output": row["output"] + "xx"} for row in rows]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(longer)))
    (tmp_path / "own_letters.py").write_text(
        "def letters(samples):\n    return [float(len(s.output)) for s in samples]\n"
    )
    done = call("b.jsonl", "--against", "a.jsonl", "--reward", "own_letters:letters", "--json")
    answer = json.loads(done.out)
    assert answer["change"]["letters"] == {"mean": pytest.approx(2), "ci95": pytest.approx(0)}
    assert answer["shared_prompts"] == 3
    assert (
        "change: over the 3 prompts that both have\n"
        in call("b.jsonl", "--against", "a.jsonl", "--reward", "own_letters:letters").out
    )


def test_edits_with_the_same_text_are_paired_by_their_source(call: Call, tmp_path: Path) -> None:
    """Each picture scores the same on both sides; by the order of the lines each would meet another one."""
    rows = []
    for n in range(4):
        picture(tmp_path / f"{n}.png", 60 * n)
        picture(tmp_path / f"source{n}.png", 50 * n)
        rows.append({"prompt": "make it blue", "image": f"source{n}.png", "output": f"{n}.png"})
    (tmp_path / "old.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reversed(rows[1:])))
    answer = json.loads(call("new.jsonl", "--against", "old.jsonl", "--reward", "brightness", "--json").out)
    assert (answer["shared_prompts"], answer["change"]["brightness"]) == (3, {"mean": 0, "ci95": 0})


def test_long_names_leave_the_numbers_whole(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"a-run-of-2026-11-{day}-with-a-learning-rate-of-{day}e-4.jsonl" for day in (28, 29)]
    for name, output in zip(names, ("abcdefg", "abcd"), strict=True):
        rows = [{"prompt": f"p{n}\x1b[31m", "output": output[: 9 - n]} for n in range(6)]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = call(names[1], "--against", names[0], "--reward", "length", "length.maximum=1")
    assert table(done.out)["length"].split("  ")[-1].strip() == "+2.000 ± 1.327"
    assert "\x1b" not in done.out


def test_a_value_that_one_side_has_is_shown_on_that_side(call: Call, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("rewards: [{use: length, maximum: 1, weight: 2}]\nby: [kind]\n")
    for name, kind, output in (("old", "x", "ab"), ("new", "y", "abcd")):
        row = {"prompt": "p", "output": output, "kind": kind}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    done = call("new.jsonl", "--against", "old.jsonl", "--with", "e.yaml")
    rows = [re.split(r"  +", line) for line in done.out.splitlines() if line.startswith("length, kind")]
    assert rows == [
        ["length, kind x", "-1.000", "not scored", "not scored"],
        ["length, kind y", "not scored", "-3.000", "not scored"],
    ]


def test_what_a_result_would_replace_or_ignore_is_refused(call: Call, three: Path) -> None:
    (three / "e.yaml").write_text("rewards: [{use: length}]\nfiles: r.jsonl\nby: [tags]\n")
    (three / "r.jsonl").write_text('{"prompt": "p", "output": "a", "tags": ["x"]}\n{"prompt": "q", "output": "b"}\n')
    assert "e.yaml has its own rewards" in call("e.yaml", "--reward", "mse").err
    assert set(json.loads(call("e.yaml", "--json").out)["by"]) == {"tags ['x']"}
    assert "lies in pictures, which the result replaces" in call("pictures/1.png", *WITH, "--out", "pictures").err
    (three / "far.jsonl").write_text('{"prompt": "p", "output": "pictures/1.png"}\n')
    assert "lies in pictures, which the result replaces" in call("far.jsonl", *WITH, "--out", "pictures").err
    assert "cannot be written" in call("pictures", *WITH, "--out", "/dev/null").err
    (three / "samples").symlink_to(three / "pictures")
    answer = json.loads(call("samples", *WITH, "--targets", "targets/1.png", "--json").out)
    assert len(answer["samples"]) == 4
    assert "mse" in answer["./samples"]


def test_the_weighted_sum_is_that_of_an_evaluation(tmp_path: Path) -> None:
    """On the same samples, with scores missing; a monitor has no part in it."""
    rows = [{"prompt": f"p{i // 2}", "output": "x" * (i * i % 11)} for i in range(12)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def long(samples: Sequence[Sample]) -> list[float]:
        return [float(len(s.output)) for s in samples]

    def odd(samples: Sequence[Sample]) -> list[float]:
        return [math.nan if s.prompt.text in ("p1", "p4") else float(len(s.output) % 2) for s in samples]

    terms = [RewardTerm(name="long", reward=long, weight=0.1), RewardTerm(name="odd", reward=odd, weight=-2.0)]
    terms.append(RewardTerm(name="watched", reward=lambda samples: [math.nan] * len(samples), weight=0.0))
    entries = sample_files.find_samples(tmp_path / "t.jsonl")
    samples = [entry.open(entry.prompt()) for entry in entries]
    prompts = [sample.prompt for sample in samples]
    expected = Evaluation(samples=samples, prompts=prompts, scores=score_samples(terms, samples)).summary
    found = evaluate_files(terms, entries, batch_size=4).summary
    for name in ("long", "odd", "reward"):
        assert found.means[name] == pytest.approx(expected.means[name])
        assert found.ci95[name] == pytest.approx(expected.ci95[name])
    assert found.means["reward"] == pytest.approx(0.1 * found.means["long"] - 2 * found.means["odd"])
    assert found.ci95["reward"] > 0.1  # of 12 rows with gaps filled: half of that


# --- batches -------------------------------------------------------------------------------------------------------


def place_in_group(samples: Sequence[Sample]) -> list[float]:
    """How many of a sample's group are darker: right only where the whole group came."""
    values = [(s.group, s.output.getpixel((0, 0))[0]) for s in samples]
    return [float(sum(g == group and v < value for g, v in values)) for group, value in values]


def test_a_group_stays_in_one_batch(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a\nb\nc\n")
    for number, count in ((1, 3), (2, 1), (3, 2)):
        for k in range(count):
            picture(tmp_path / f"g/{number}-{k}.png", 10 * (k + 1))
    entries = sample_files.find_samples(tmp_path / "g", prompts=data.read_prompts(tmp_path / "p.txt"))
    sizes: list[int] = []

    def counting(samples: Sequence[Sample]) -> list[float]:
        sizes.append(len(samples))
        return place_in_group(samples)

    expected = [0.0, 1.0, 2.0, 0.0, 0.0, 1.0]
    for size, batches in ((1, [3, 1, 2]), (3, [3, 3]), (4, [4, 2]), (32, [6])):
        sizes.clear()
        assert evaluate_files([counting], entries, batch_size=size).scores.matrix[:, 0].tolist() == expected
        assert sizes == batches
    sizes.clear()
    evaluate_files([counting], entries, batch_size=4, whole_groups=False)
    assert sizes == [4, 2]
    with pytest.raises(UsageError, match="batch_size must be at least 1, got 0"):
        evaluate_files([counting], entries, batch_size=0)


@pytest.mark.parametrize("count", [100, 1000])
def test_only_a_batch_of_pictures_is_open(tmp_path: Path, count: int) -> None:
    for i in range(count):
        picture(tmp_path / f"{i}.png", 1 + i % 255, size=4)
    alive: set[int] = set()
    most = 0

    def watch(samples: Sequence[Sample]) -> list[float]:
        nonlocal most
        for s in samples:
            alive.add(id(s.output))
            weakref.finalize(s.output, alive.discard, id(s.output))
        most = max(most, len(alive))
        return shade(samples)

    found = evaluate_files([watch], sample_files.find_samples(tmp_path), batch_size=16)
    assert most == 16
    assert not found.scores.matrix.isnan().any()
    assert len(found.samples) == count


def test_a_part_of_an_evaluation_opens_no_file(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = data.read_prompts(three / "prompts.txt")
    found = evaluate_files([shade], sample_files.find_samples(three / "pictures", prompts=prompts))
    monkeypatch.setattr(sample_files.Entry, "open", lambda *_: pytest.fail("a file was opened"))
    part = found.part([1, 3])
    assert part.texts == ["gray", "light gray"]
    assert part.summary.means["shade"] == (51 + 153) / 2


PEAK = """
import sys
from grpokit import cli

def peak(folder, *words):
    sys.argv = ["grpokit", "evaluate", folder, "--reward", "mse", "--targets", "t.png", *words]
    try:
        cli.main()
    except SystemExit as ended:
        assert not ended.code
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024

few, many, all_at_once = peak("few"), peak("many"), peak("many", "--batch-size", "1000")
print("PEAK", many - few, all_at_once - few)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from Linux")
def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path: Path) -> None:
    """100 and 1,000 pictures of 48 KiB peak alike; 1,000 of them opened at once would not."""
    for i in range(1000):
        picture(tmp_path / f"many/{i}.png", i % 256, size=128)
        if i < 100:
            picture(tmp_path / f"few/{i}.png", i % 256, size=128)
    picture(tmp_path / "t.png", 0, size=128)
    done = subprocess.run([sys.executable, "-c", PEAK], cwd=tmp_path, capture_output=True, text=True, check=True)
    growth, wasteful = map(float, done.stdout.splitlines()[-1].split()[1:])
    assert growth < 8, done.stdout  # MiB
    assert wasteful > 30, done.stdout


# --- what goes wrong -----------------------------------------------------------------------------------------------


def test_files_that_cannot_be_read_are_named_and_the_others_scored(call: Call, three: Path) -> None:
    (three / "pictures/1.png").write_text("no picture")
    (three / "pictures/0004.png").unlink()
    words = ["pictures", "--prompts", "prompts.txt", "--targets", "targets", "--reward", "mse", "--out", "kept"]
    done = call(*words)
    assert done.code == 2
    heading, *problems = done.err.splitlines()
    assert heading == "error: 2 of 4 samples of pictures cannot be read:"
    assert [line.split()[0] for line in problems] == ["pictures/1.png", "pictures/4.png"]
    assert re.search(r"^mse +-0.020$", done.out, re.MULTILINE)
    assert done.out.splitlines()[1].split() == ["pictures/1.png", "unreadable", "a", "sign", '"Tea"']
    assert done.out.splitlines()[4].split() == ["pictures/4.png", "missing", "light", "gray"]
    found = lines(three / "kept")
    assert [row["scores"]["mse"] for row in found] == [None, pytest.approx(-0.04), 0.0, None]
    assert found[3]["error"] == "pictures/4.png does not exist"
    assert found[0]["error"].startswith("pictures/1.png cannot be read as a picture")


def test_pictures_of_other_kinds_are_named(call: Call, three: Path) -> None:
    """Only some kinds of pictures are scored, and a hidden file of macOS is none."""
    (three / "pictures/._1.png").write_bytes(b"Mac OS X")
    (three / "pictures/notes.txt").write_text("no picture")
    done = call("pictures", "--reward", "mse", "--targets", "targets/1.png")
    assert (done.code, done.err) == (0, "")
    picture(three / "pictures/cat.gif")
    picture(three / "pictures/b.TIFF")
    (three / "pictures/0004.png").rename(three / "4.png")
    picture(three / "pictures/4_1.bmp")
    done = call("pictures", "--prompts", "prompts.txt", "--reward", "mse", "--targets", "targets")
    assert done.code == 2
    assert done.err.startswith(
        "warning: in pictures 4_1.bmp, b.TIFF, cat.gif are pictures of other kinds: convert them; "
    )
    assert "error: 1 of 4 samples of pictures cannot be read:\n  pictures/4.png does not exist" in done.err
    for sample in range(2, 5):
        picture(three / f"pictures/4_{sample}.bmp")
    done = call("pictures", "--prompts", "prompts.txt", "--reward", "mse", "--targets", "targets")
    assert "in pictures 4_1.bmp, 4_2.bmp, 4_3.bmp, 4_4.bmp, b.TIFF and 1 more are pictures of " in done.err


def test_pictures_of_other_kinds_beside_records_are_not_named(call: Call, three: Path) -> None:
    """They would not be looked for, but with --prompts they are."""
    picture(three / "pictures/preview.gif")
    (three / "pictures/samples.jsonl").write_text('{"prompt": "p", "output": "abc"}\n')
    done = call("pictures", "--reward", "length")
    assert (done.code, done.err) == (0, "")
    done = call("pictures", "--prompts", "prompts.txt", "--reward", "mse", "--targets", "targets")
    assert done.code == 0
    assert "in pictures preview.gif is a picture of another kind: convert it; only .png, " in done.err


def test_a_folder_of_other_kinds(call: Call, tmp_path: Path) -> None:
    picture(tmp_path / "scans/1.tif")
    (tmp_path / "prompts.txt").write_text("one\n")
    picture(tmp_path / "drawn/1.png")
    done = call("scans", "--reward", "mse")
    assert done.code == 2
    assert done.err.endswith(" and no samples.jsonl. 1.tif is a picture of another kind: convert it.\n")
    done = call("drawn", "--prompts", "prompts.txt", "--targets", "scans", "--reward", "mse")
    assert done.code == 2
    assert done.err.endswith("The folder has 0 numbered pictures. 1.tif is a picture of another kind: convert it.\n")


def test_when_no_file_can_be_read_the_tables_say_so(call: Call, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_text("no picture")
    done = call(".", "--reward", "mse")
    assert done.code == 2
    assert [line.split() for line in done.out.splitlines()[:3]] == [
        ["file", "mse", "prompt"],
        ["a.png", "unreadable"],
        ["b.png", "unreadable"],
    ]
    assert table(done.out)["mse"] == "not scored"
    assert done.err.startswith("error: 2 of 2 samples of . cannot be read:\n  a.png cannot")
    assert "scored no sample" not in done.err  # the reward has seen none


def test_a_missing_picture_of_a_record_is_named_and_the_others_scored(call: Call, tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 51)
    (tmp_path / "p.jsonl").write_text('{"prompt": "p", "output": "a.png"}\n{"prompt": "p", "output": "b.png"}\n')
    done = call("p.jsonl", "--reward", "mse")
    assert done.code == 2
    assert done.err.startswith(
        "error: 1 of 2 samples of p.jsonl cannot be read:\n  b.png does not exist\nmse scored no sample of p.jsonl. "
    )
    assert "`target`" in done.err
    assert done.out.splitlines()[2].split() == ["b.png", "missing", "p"]


def test_the_samples_of_a_run_are_in_the_folder_of_an_evaluation(call: Call, tmp_path: Path) -> None:
    """The report.png beside them is no sample."""
    picture(tmp_path / "out/report.png")
    for step in ("step_000000", "step_000070"):
        (tmp_path / "out/samples" / step).mkdir(parents=True)
        (tmp_path / f"out/samples/{step}/samples.jsonl").write_text('{"prompt": "p", "output": "abc"}\n')
    done = call("out/samples", "--reward", "length")
    assert done.err == (
        "error: out/samples contains no pictures of samples (.png, .jpg, .jpeg, .webp) and no samples.jsonl. "
        "There is one in out/samples/step_000070.\n"
    )
    assert call("out/samples/step_000070", "--reward", "length").code == 0


def test_rows_without_a_score_are_named(call: Call, tmp_path: Path) -> None:
    (tmp_path / "shades_of_score.py").write_text(
        "def shade(samples):\n    return [s.output.getpixel((0, 0))[0] or float('nan') for s in samples]\n"
    )
    for i in range(25):
        picture(tmp_path / f"p/{i}.png", i if i % 3 else 0)
    done = call("p", "--reward", "shades_of_score:shade")
    assert done.code == 0
    assert (
        done.err == "shade could not score 9 of 25 samples of p:\n"
        "  p/0.png\n  p/3.png\n  p/6.png\n  p/9.png\n  p/12.png\n  and 4 more\n"
    )
    assert "p/1.png" not in done.out  # too many for a table of each


def test_a_reward_that_scores_nothing(call: Call, tmp_path: Path) -> None:
    picture(tmp_path / "cat.png")
    done = call("cat.png", "--reward", "mse")
    assert done.code == 2
    assert done.err.startswith("error: mse scored no sample of cat.png. ")
    assert "--targets" in done.err


def test_names_with_commas_are_told_apart(call: Call, tmp_path: Path) -> None:
    (tmp_path / "some_of_score.py").write_text(
        "def some(samples):\n    return [s.output.getpixel((0, 0))[0] or float('nan') for s in samples]\n"
    )
    for name, value in (("a, b", 0), ("c", 0), ("d", 7)):
        picture(tmp_path / f"p/{name}.png", value)
    done = call("p", "--reward", "some_of_score:some")
    assert (done.code, done.err) == (0, "some could not score 2 of 3 samples of p:\n  p/a, b.png\n  p/c.png\n")


def test_prompts_of_an_evaluation_are_not_ignored(call: Call, three: Path) -> None:
    """A table has its own prompts, and a picture takes one; beside a policy the prompts are that policy's."""
    (three / "e.yaml").write_text("data: {prompts: prompts.txt}\nrewards: [{use: length, maximum: 1}]\n")
    row = '{"prompt": "p", "output": "text"}\n'
    (three / "r.jsonl").write_text(row)
    (three / "drawn").mkdir()
    (three / "drawn/samples.jsonl").write_text(row)
    for name, table in (("r.jsonl", "r.jsonl"), ("drawn", "drawn/samples.jsonl")):
        done = call(name, "--with", "e.yaml")
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"error: The records in {table} have their own prompts")
        assert done.err.endswith("Leave out the other prompts; those of an evaluation with data=null.\n")
        done = call(name, "--with", "e.yaml", "data=null", "--json")
        assert [line["scores"] for line in samples_of(done)] == [{"length": -3.0}]
    done = call("pictures/1.png", "--with", "e.yaml")
    assert done.err == (
        "error: pictures/1.png is one picture; several prompts go with a folder of them. Give --prompt.\n"
    )
    done = call("prompts.txt", "--with", "e.yaml")
    assert done.err.startswith("error: prompts.txt is neither a picture (")
    (three / "sums.jsonl").write_text('{"prompt": "12+25"}\n')
    done = call("r.jsonl", "--against", "toy-lm", "--with", "e.yaml", "data={prompts: sums.jsonl}", "--json")
    assert json.loads(done.out)["r.jsonl"]["length"]["mean"] == -3.0


def test_a_reward_that_fails_leaves_what_was_scored(call: Call, tmp_path: Path) -> None:
    (tmp_path / "fails_of_score.py").write_text(
        "def fails(samples):\n    return [1 / s.output.getpixel((0, 0))[0] for s in samples]\n"
    )
    for i, value in enumerate((255, 51, 0, 17)):
        picture(tmp_path / f"p/{i}.png", value)
    done = call("p", "--reward", "fails_of_score:fails", "--batch-size", 2, "--out", "kept")
    assert done.code == 1
    assert done.err.startswith("error: Reward 'fails' raised ZeroDivisionError: ")
    assert "in the batch from p/2.png to p/3.png" in done.err
    partial = (tmp_path / "kept/scores.partial.jsonl").read_text().splitlines()
    assert [json.loads(line)["scores"]["fails"] for line in partial] == [1 / 255, 1 / 51]
    picture(tmp_path / "p/2.png", 51)
    assert call("p", "--reward", "fails_of_score:fails", "--out", "kept").code == 0
    assert len(lines(tmp_path / "kept")) == 4


def test_rows_that_a_reward_may_lose(tmp_path: Path) -> None:
    for i, value in enumerate((255, 0, 51)):
        picture(tmp_path / f"{i}.png", value)

    def fails(samples: Sequence[Sample]) -> list[float]:
        return [1 / s.output.getpixel((0, 0))[0] for s in samples]

    term = RewardTerm(name="inverse", reward=fails, on_error="skip")
    scores = evaluate_files([term], sample_files.find_samples(tmp_path)).scores
    assert scores.matrix[:, 0].tolist() == [1 / 255, pytest.approx(math.nan, nan_ok=True), 1 / 51]
    assert len(scores.notes) == 1
    assert "left 1 row unscored" in scores.notes[0]
    with pytest.raises(RewardError, match=r"from .*0\.png to .*2\.png"):
        evaluate_files({"inverse": fails}, sample_files.find_samples(tmp_path))


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_the_share_that_may_be_lost_is_of_all_whatever_the_batch(tmp_path: Path, batch_size: int) -> None:
    for i, value in enumerate((0, 0, 51, 255)):
        picture(tmp_path / f"{i}.png", value)

    def fails(samples: Sequence[Sample]) -> list[float]:
        return [1 / s.output.getpixel((0, 0))[0] for s in samples]

    term = RewardTerm(name="inverse", reward=fails, on_error="skip")
    found = evaluate_files([term], sample_files.find_samples(tmp_path), batch_size=batch_size)
    assert found.scores.matrix[:, 0].tolist() == pytest.approx([math.nan, math.nan, 1 / 51, 1 / 255], nan_ok=True)
    with pytest.raises(RewardError, match=r"'inverse' lost 2 of 4 rows; skip_limit .* of 0\.4\."):
        evaluate_files([replace(term, skip_limit=0.4)], sample_files.find_samples(tmp_path), batch_size=batch_size)


def test_a_limit_on_pixels(call: Call, tmp_path: Path) -> None:
    for name, width in (("1", 10), ("2", 20)):
        Image.new("L", (width, 10)).save(tmp_path / f"{name}.png")
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    folders = (".", "--prompts", "p.txt", "--targets", ".", "--reward", "mse")
    assert call(*folders).code == 0
    done = call(*folders, "--max-pixels", 199)
    assert done.code == 2
    assert "p.txt, line 2: 2.png has 20 x 10 = 200 pixels; the limit is 199. Make it smaller, or raise" in done.err
    (tmp_path / "x.jsonl").write_text('{"prompt": "a", "target": "1.png", "output": "2.png"}\n')
    done = call("x.jsonl", "--reward", "mse", "--max-pixels", 199)
    assert done.code == 2
    assert "2.png has 20 x 10 = 200 pixels" in done.err
    done = call("2.png", "--reward", "mse", "--prompt", "a", "--targets", "1.png", "--max-pixels", 99)
    assert "--targets: 1.png has 10 x 10 = 100 pixels; the limit is 99" in done.err


WITH = ["--reward", "mse"]
BAD: dict[str, tuple[list[str], str]] = {
    "missing file": (["nix.png", *WITH], "There is no preset called 'nix.png'"),
    "empty folder": (
        ["empty", *WITH],
        "empty contains no pictures of samples (.png, .jpg, .jpeg, .webp) and no samples.jsonl.",
    ),
    "another kind of file": (
        ["prompts.txt", *WITH],
        "prompts.txt is neither a picture (.png, .jpg, .jpeg, .webp) nor a file of records (.jsonl, ",
    ),
    "too few prompts": (
        ["pictures", "--prompts", "one.txt", *WITH],
        "3 pictures in pictures have no prompt: the first is 3_1.png, and the last of 1 prompt is one.txt, line 1",
    ),
    "an empty line": (
        ["second", "--prompts", "prompts.txt", *WITH],
        "1 picture in second has no prompt: the first is 2.png, and the last of 3 prompts is prompts.txt, line 4",
    ),
    "line 0": (
        ["zero", "--prompts", "prompts.txt", *WITH],
        "1 picture in zero has no prompt: the first is 0.png, and the last of 3 prompts is prompts.txt, line 4",
    ),
    "a name": (
        ["named", "--prompts", "prompts.txt", *WITH],
        "named/cat.png is not named by a line number: expected 7.png, or 7_1.png, 7_2.png, ... for several samples of "
        "the prompt in line 7.",
    ),
    "two for one line": (
        ["twice", "--prompts", "prompts.txt", *WITH],
        "Both twice/0001.png and twice/1.png are for line 1; keep one.",
    ),
    "missing prompts": (
        ["pictures", "--prompts", "nix.txt", *WITH],
        "The text file nix.txt does not exist (looked in {here}). Run the command in the folder that holds it, or give "
        "its path.",
    ),
    "missing target": (
        ["pictures", "--prompts", "prompts.txt", "--targets", "named", *WITH],
        "prompts.txt, line 1, has no picture in named: expected 1.png (or .jpg, .jpeg, .webp). The folder has 0 "
        "numbered pictures.",
    ),
    "unknown reward": (
        ["pictures", "--reward", "msee"],
        "There is no reward called 'msee' (did you mean 'mse'?). Known: ",
    ),
    "unknown parameter": (["pictures", *WITH, "windw=7"], "has no parameter 'windw'"),
    "whose parameter": (
        ["pictures", *WITH, "--reward", "ssim", "size=7"],
        "'size=7' names no parameter of mse or ssim. Expected mse.KEY=VALUE or ssim.KEY=VALUE.",
    ),
    "no parameter": (["pictures", *WITH, "size"], "parameter 'size' is not of the form key=value"),
    "a reward for texts": (
        ["pictures", *WITH, "--reward", "contains"],
        "The reward 'contains' scores texts, but some samples (such as pictures/1.png) are pictures. Installed "
        "rewards for pictures: ",
    ),
    "a reward for pictures": (
        ["r.jsonl", *WITH],
        "The reward 'mse' scores pictures, but some samples (such as r.jsonl, line 1) are texts. Installed rewards "
        "for texts: ",
    ),
    "no reward": (["pictures"], "Name the rewards: --reward NAME"),
    "both": (["pictures", *WITH, "--with", "toy-lm"], "Give either --with or --reward, not both."),
    "out in use": (
        ["pictures", *WITH, "--out", "targets"],
        "targets already holds files that are not an evaluation. Choose",
    ),
    "an evaluation to compare with": (
        ["pictures", *WITH, "--against", "e.yaml"],
        "--against e.yaml: expected a run, a checkpoint, a preset, a config file, pictures or a table. An evaluation "
        "file goes with --with, and a run's record is scored alone.",
    ),
    "no policy": (["pictures", *WITH, "--count", "2"], "Leave out --count: no policy draws samples."),
    "prompts for a policy": (
        ["pictures", *WITH, "--against", "toy-glyph"],
        "A policy needs prompts to draw for. Give --prompts FILE, or --with EVALUATION.",
    ),
    "prompt and prompts": (
        ["pictures", *WITH, "--prompt", "a", "--prompts", "prompts.txt"],
        "Leave out --prompt: --prompts has the prompts.",
    ),
    "targets without prompts": (
        ["pictures", *WITH, "--targets", "targets"],
        "--targets is a folder of pictures named by line number; add --prompts FILE.",
    ),
    "prompts of one picture": (
        ["pictures/1.png", *WITH, "--prompts", "prompts.txt"],
        "pictures/1.png is one picture; several prompts go with a folder of them. Give --prompt.",
    ),
    "prompt of records": (
        ["r.jsonl", "--reward", "length", "--prompt", "a"],
        "The records in r.jsonl have their own prompts",
    ),
    "no such target": (
        ["pictures/1.png", *WITH, "--targets", "nix.png"],
        "--targets: nix.png cannot be read as a picture",
    ),
    "a target that is none": (
        ["pictures/1.png", *WITH, "--targets", "one.txt"],
        "--targets: one.txt cannot be read as a picture: its content is not a kind of picture that Pillow knows. "
        "Replace the file.",
    ),
    "no JSON": (
        ["broken.jsonl", "--reward", "length"],
        "broken.jsonl, line 1: not JSON (Expecting value: ",
    ),
    "no output": (
        ["outputless.jsonl", "--reward", "length"],
        "outputless.jsonl, line 1: output is nothing (null) (did you mean 'outputs'?); expected a text or a "
        "picture's file name.",
    ),
    "an odd output": (
        ["odd.jsonl", "--reward", "length"],
        "odd.jsonl, line 1: output is a list of 2; expected a text or a picture's file name.",
    ),
    "no such source": (
        ["sourceless.jsonl", "--reward", "length"],
        "sourceless.jsonl, line 1: source: the file nix.png does not exist.",
    ),
}


@pytest.mark.parametrize(("words", "expected"), BAD.values(), ids=BAD)
def test_bad_input(call: Call, three: Path, words: list[str], expected: str) -> None:
    (three / "empty").mkdir()
    (three / "one.txt").write_text("one\n")
    (three / "e.yaml").write_text("rewards: [{use: mse}]\n")
    for path in ("second/2.png", "zero/0.png", "named/cat.png", "twice/1.png", "twice/0001.png"):
        picture(three / path)
    for name, row in (
        ("r", '{"prompt": "p", "output": "text"}'),
        ("broken", "no"),
        ("outputless", '{"prompt": "p", "outputs": "text"}'),
        ("odd", '{"prompt": "p", "output": [1, 2]}'),
        ("sourceless", '{"prompt": "p", "output": "a", "source": "nix.png"}'),
    ):
        (three / f"{name}.jsonl").write_text(row + "\n")
    before = sorted(three.rglob("*"))
    done = call(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    wanted = expected.replace("{here}", str(three))
    assert done.err == f"error: {wanted}\n" or (wanted in done.err and not expected.endswith("."))
    assert sorted(three.rglob("*")) == before
    assert (three / "one.txt").read_text() == "one\n"


@pytest.mark.slow
def test_the_bar_goes_to_the_terminal_that_watches(three: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    words = ["evaluate", "pictures", "--reward", "mse", "--targets", "targets/1.png", "--json"]
    child = pexpect.spawn(
        "bash",
        ["-c", f"{sys.executable} -m grpokit {' '.join(words)} > out.jsonl"],
        cwd=three,
        encoding="utf-8",
        timeout=60,
    )
    child.expect("scoring")
    child.expect("100%")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert len(json.loads((three / "out.jsonl").read_text())["samples"]) == 4


def test_a_damaged_target_is_a_problem_of_its_rows(three: Path) -> None:
    """The header is read at once, the rest with its batch."""
    whole = (three / "targets/3.png").read_bytes()
    (three / "targets/3.png").write_bytes(whole[:-30])
    prompts = data.read_prompts(three / "prompts.txt", targets=three / "targets")
    entries = sample_files.find_samples(three / "pictures", prompts=prompts)
    problems = evaluate_files([shade], entries).problems
    assert list(problems) == [1, 2]
    assert "3.png cannot be read as a picture" in problems[1]
    with pytest.raises(DataError, match="cannot be read"):
        entries[1].open()
