"""The report: what its view says, that its page stands alone, and that it survives half-written runs."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command_line import Call, Done, embedded
from grpokit import RunError, UsageError, report
from grpokit.report.pictures import Inlined
from grpokit.report.view import view
from grpokit.run_folder.journal import Journal
from grpokit.run_folder.lock import lock_of, locked
from grpokit.run_folder.reader import read_run
from made_runs import EVIL, make_run, picture, read_rows, write_rows


def content_of(*folders: Path) -> dict[str, Any]:
    """The view of runs, without their pictures."""
    album = Inlined()
    return view([read_run(folder) for folder in folders], [album] * len(folders))


# --- the view ------------------------------------------------------------------------------------------------------


def test_the_page_carries_the_view_and_its_pictures(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", side=96)
    page = report.write(folder)
    assert embedded(page) == json.loads(json.dumps(content_of(folder)))
    pictures = embedded(page, "pictures")
    rows = embedded(page)["runs"][0]["evaluations"][0]["rows"]
    assert pictures[rows[0]["output"]["picture"]].startswith("data:image/")


def test_the_facts_of_a_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", weight=0)
    (folder / "machine.json").write_text('{"started": "2026-01-02T03:04:05+01:00", "device": "NVIDIA H100 80GB HBM3"}')
    os.utime(folder / "metrics.jsonl", (1767323070,) * 2)
    assert dict(content_of(folder)["runs"][0]["facts"]) == {
        "Started": "2026-01-02 02:04 UTC",
        "Training took": "6.0 s",
        "Last step": "2026-01-02 03:04 UTC",
        "Device": "NVIDIA H100 80GB HBM3",
        "Rewards": "length, nice (monitor)",
        "Held-out prompts": "20",
    }
    for broken in ("[", "[]", '{"started": 7}', '{"started": "soon"}'):
        (folder / "machine.json").write_text(broken)
        assert "Started" not in dict(content_of(folder)["runs"][0]["facts"])


def test_only_a_run_that_goes_on_is_said_to_have_no_evaluation_yet(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "eval.jsonl").unlink()
    assert content_of(folder)["runs"][0]["verdict"] == "There is no evaluation on held-out prompts."
    (folder / "end.json").unlink()
    with locked(folder):
        assert content_of(folder)["runs"][0]["verdict"] == "There is no evaluation on held-out prompts yet."


def test_no_key_of_a_metric_is_shown(tmp_path: Path) -> None:
    run = content_of(make_run(tmp_path / "run"))["runs"][0]
    words = [name for name, _ in run["last"]]
    words += [text for chart in run["charts"] for text in (chart["title"], *(line["name"] for line in chart["lines"]))]
    assert {"largest advantage", "nice", "reward", "drawing samples"} - {*words} == {"largest advantage"}
    assert not [word for word in words if "/" in word or "_" in word]


def test_an_axis_does_not_make_a_small_change_a_cliff(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", gain=0.001)
    charts = {chart["id"]: chart for chart in content_of(folder)["runs"][0]["charts"]}
    memory = charts["memory"]
    assert memory["lines"][0]["y"] == [501, 502, 503, 504]
    assert memory["range"][0] < 0 < 504 < memory["range"][1] < 550
    low, high = charts["reward-on-held-out-prompts"]["range"]
    assert high - low > 0.1
    for level in (0.0129, 413.0, -2.0, 0.0):  # rounding is no spread
        rows = [{**row, "entropy": level + 1e-15 * level} for row in read_rows(folder / "metrics.jsonl")]
        write_rows(folder / "metrics.jsonl", rows)
        low, high = next(c["range"] for c in content_of(folder)["runs"][0]["charts"] if c["id"] == "entropy")
        assert low < level < high
        assert high - low >= 0.1 * abs(level)


def test_advantages_and_kl(tmp_path: Path) -> None:
    """Each step keeps 8 samples with the advantages 1.5, 0.5, -0.5, -1.5, twice."""
    run = content_of(make_run(tmp_path / "run"))["runs"][0]
    histogram = run["advantages"]
    assert histogram["steps"] == [1, 2, 4]
    assert histogram["edges"][0] == -1.5
    for step in range(3):
        column = [row[step] for row in histogram["shares"]]
        assert sorted(column)[-4:] == [0.25] * 4
        assert sum(column) == 1
    assert run["reward_against_kl"]["steps"] == [1, 2, 3, 4]
    assert run["reward_against_kl"]["x"] == [0.25, 0.5, 0.75, 1]


def test_each_prompt_has_its_scores(tmp_path: Path) -> None:
    table = content_of(make_run(tmp_path / "run"))["runs"][0]["prompts"]
    assert (table["names"], table["labels"], table["left_out"]) == (
        ["reward", "nice", "length"],
        ["step 0", "step 4"],
        0,
    )
    assert [row["prompt"] for row in table["rows"]] == [f"a prompt {n}" for n in range(20)]
    first = table["rows"][0]
    assert first["after"][1] - first["before"][1] == pytest.approx(0.2, abs=0.01)


def test_prompts_with_the_same_words_keep_apart(tmp_path: Path) -> None:
    """As edits do that ask the same of several pictures."""
    folder = make_run(tmp_path / "run")
    for path in folder.glob("samples/*/scores.json"):
        kept = json.loads(path.read_text())
        path.write_text(json.dumps({**kept, "texts": ["red", "red", *kept["texts"][2:]]}))
    rows = content_of(folder)["runs"][0]["prompts"]["rows"]
    assert [row["prompt"] for row in rows[:3]] == ["red", "red", "a prompt 2"]
    assert len({str(row["key"]) for row in rows}) == 20


def test_long_prompts_are_cut_and_stay_apart(tmp_path: Path) -> None:
    view = content_of(make_run(tmp_path / "run", prompt="words " * 20_000))
    assert len(json.dumps(view)) < 500_000
    assert [row["prompt"][-4:] for row in view["runs"][0]["evaluations"][0]["rows"][:12:11]] == ["s  0", "  11"]
    assert len({row["prompt"] for row in view["runs"][0]["evaluations"][0]["rows"]}) == 16


def test_phases_are_named_once_for_each_stretch(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    rows = read_rows(folder / "metrics.jsonl")
    phases = ("a", "a", "b", "a")
    write_rows(folder / "metrics.jsonl", [{**row, "phase": name} for row, name in zip(rows, phases, strict=True)])
    assert content_of(folder)["runs"][0]["phases"] == [
        {"name": "a", "first": 1, "last": 2},
        {"name": "b", "first": 3, "last": 3},
        {"name": "a", "first": 4, "last": 4},
    ]


def test_warnings_are_shown_once_with_their_steps(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    rows = [{"step": s, "message": "Too quiet."} for s in (2, 3, 4, 9)] + [{"step": 0, "message": EVIL}]
    write_rows(folder / "warnings.jsonl", rows)
    assert content_of(folder)["runs"][0]["warnings"] == [
        {"text": "Too quiet.", "steps": "steps 2-4, 9"},
        {"text": EVIL, "steps": "before the first step"},
    ]


def test_groups_and_evaluations(tmp_path: Path) -> None:
    run = content_of(make_run(tmp_path / "run", steps=96, every=4))["runs"][0]
    steps = [evaluation["step"] for evaluation in run["evaluations"]]
    assert (len(steps), steps[0], steps[-1]) == (20, 0, 96)  # of 25
    best, worst = run["groups"][-1]["sides"]
    assert (best["place"], best["mean"], worst["mean"]) == ("best", 0.8125, 0.3125)  # (1 + 7/8 + 6/8 + 5/8) / 4
    assert [row["reward"] for row in worst["rows"]] == [0.5, 0.375, 0.25, 0.125]
    assert worst["rows"][1]["scores"] == {"nice": 0.375, "length": None}
    assert worst["rows"][1]["advantage"] == 0.5


def test_a_run_is_running_or_stopped_or_failed_or_finished(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert content_of(folder)["runs"][0]["state"] == "finished: 4 of 4 steps"
    (folder / "end.json").unlink()
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(rows[:3]) + '\n{"step": 4, "rew')
    with locked(folder):
        run = content_of(folder)["runs"][0]
        assert run["state"] == "running: 3 of 4 steps, about 1.5 s of training to go"
        assert run["warnings"] == []  # a torn last line is ordinary
    lock_of(folder).touch()  # as a kill leaves it
    assert content_of(folder)["runs"][0]["state"] == "stopped after 3 of 4 steps"
    ends = [("stopped", "stopped after 3 of 4 steps", ""), ("finished", "finished: 3 of 4 steps, converged", "")]
    for state, words, failure in [*ends, ("failed", "failed after 3 of 4 steps", EVIL)]:
        (folder / "end.json").write_text(json.dumps({"state": state, "planned": 4, "message": EVIL}))
        run = content_of(folder)["runs"][0]
        assert (run["state"], run["failure"], run["warnings"]) == (words, failure, [])


@pytest.mark.parametrize("name", ["metrics.jsonl", "eval.jsonl", "warnings.jsonl"])
def test_a_damaged_line_is_named(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "run")
    write_rows(folder / "warnings.jsonl", [{"step": s, "message": "Hm."} for s in (1, 2, 3)])
    lines = (folder / name).read_text().splitlines()
    (folder / name).write_text("\n".join([lines[0], "{", *lines[2:]]) + "\n")
    for look in (read_run, lambda folder: Journal(folder, 3)):
        with pytest.raises(UsageError, match=rf"{name}, line 2, is damaged"):
            look(folder)


# --- the page ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_any_half_written_file(tmp_path: Path) -> None:
    """Files cut anywhere, pictures cut or missing: always a page, and nothing but whole pictures on it."""
    whole = make_run(tmp_path / "whole", side=96, name="näme")
    paths = [p for p in whole.rglob("*") if p.is_file() and p.suffix in (".jsonl", ".json", ".png")]
    draw = np.random.default_rng(1)
    for attempt in range(4):
        folder = tmp_path / f"cut-{attempt}"
        shutil.copytree(whole, folder)
        for path in (folder / p.relative_to(whole) for p in draw.choice(np.array(paths, dtype=object), 30)):
            if draw.random() < 0.3:
                path.unlink(missing_ok=True)
            elif path.is_file():
                path.write_bytes(path.read_bytes()[: int(draw.integers(0, path.stat().st_size))])
        page = report.write(folder)
        assert all(embedded(page, "pictures").values())
        assert '"missing":true' in page.read_text()


def test_a_link_out_of_the_run_is_not_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    picture(3).save(tmp_path / "private.png")
    for name in ("0000.png", "0001.png"):
        (folder / "samples/step_000000" / name).unlink()
    (folder / "samples/step_000000/0000.png").symlink_to(tmp_path / "private.png")
    rows = content_of(folder)["runs"][0]["evaluations"][0]["rows"]
    assert [row["output"] for row in rows[:2]] == [{"missing": True}] * 2
    assert "picture" in rows[2]["output"]


@pytest.mark.parametrize(
    "name",
    [
        *("versions.json", "config.yaml", "metrics.jsonl", "end.json", "samples", "groups/step_000001"),
        *("samples/step_000000/samples.jsonl", "samples/step_000004/scores.json"),
    ],
)
def test_a_link_among_the_files_of_a_run_is_refused(tmp_path: Path, name: str) -> None:
    """A folder from elsewhere may name any file of this machine, and the report is sent around."""
    folder = make_run(tmp_path / "run")
    (folder / name).rename(tmp_path / "private")
    (folder / name).symlink_to(tmp_path / "private")
    with pytest.raises(UsageError, match=f"{name} is a link"):
        report.write(folder)


def test_it_is_written_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run")
    before = report.write(folder).read_bytes()
    assert report.write(folder).read_bytes() == before  # the same run, the same page

    def full(self: Path, *args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(RunError, match=r"report\.html cannot be written: .*No space left"):
            report.write(folder)
    assert (folder / "report.html").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_long_texts_are_cut(tmp_path: Path) -> None:
    page = report.write(make_run(tmp_path / "run", text="\ud83d " + "word " * 2000))
    card = embedded(page)["runs"][0]["evaluations"][0]["rows"][0]["output"]
    assert (len(card["text"]), card["left_out"]) == (1200, 8802)


def test_markup_from_data_never_becomes_markup(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / n, name=f"<b>{EVIL}", prompt=EVIL, text=EVIL, gain=g) for n, g in (("a", 0), ("b", 1))
    ]
    for path in (report.write(folders[0]), report.compare(*folders)):
        page = path.read_text()
        assert page.count("<script") == page.count("</script") == 4  # the page's own
        assert page.count("<style") == page.count("</style") == 1
        assert "<b>" not in page
        assert EVIL in str(embedded(path)["runs"][0]["charts"][0]["lines"][1]["name"])


def test_a_title_is_text_too(tmp_path: Path) -> None:
    page = report.write(make_run(tmp_path / "<script>alert(1)<")).read_text()
    assert "<title>&lt;script&gt;alert(1)&lt; · grpokit</title>" in page


@pytest.mark.slow
def test_a_long_run_gives_a_small_page_quickly(tmp_path: Path) -> None:
    """With more evaluations than a page shows, and no two pictures alike, so that none is kept once for several."""
    folder = make_run(tmp_path / "run", steps=1000, every=50)
    patches = np.random.default_rng(0).integers(0, 200, (64, 64, 3)).repeat(8, 0).repeat(8, 1)
    grainy = (patches + np.random.default_rng(1).integers(0, 48, patches.shape)).astype(np.uint8)
    for i, path in enumerate(sorted(folder.rglob("*.png"))):
        side = 512 if path.parent.name in ("step_000000", "step_001000") else 256
        Image.fromarray(np.roll(grainy, 7 * i, (0, 1))[:side, :side]).save(path, compress_level=0)
    on_disk = sum(p.stat().st_size for p in folder.rglob("*.png"))
    start = time.perf_counter()
    path = report.write(folder)
    seconds = time.perf_counter() - start
    size = path.stat().st_size
    print(f"{size / 2**20:.2f} MiB from {on_disk / 2**20:.0f} MiB of pictures in {seconds:.2f} s")
    assert on_disk > 80 * 2**20
    assert 4 * 2**20 < size < 15 * 2**20
    assert seconds < 20
    line = next(c for c in embedded(path)["runs"][0]["charts"] if c["id"] == "reward-in-training")["lines"][0]
    assert len(line["y"]) == len(line["smooth"]) == 500


# --- several runs --------------------------------------------------------------------------------------------------


def test_a_comparison(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a", gain=0.1), make_run(tmp_path / "b", gain=0.2, steps=6)
    c = make_run(tmp_path / "c", gain=0.1)
    assert report.compare(a, b, c) == c / "compare.html"
    for path in (report.write(a, out=tmp_path / "a new folder/a.html"), report.compare(a, b, out=tmp_path / "ab.html")):
        assert len(embedded(path)["runs"]) == len(path.stem)
    assert not (a / "report.html").exists()
    with pytest.raises(UsageError, match=r"expected the page's file, such as .*c/compare\.html"):
        report.compare(a, b, out=c)
    comparison = content_of(a, b, c)["comparison"]
    last, equal = comparison["modes"]["last"], comparison["modes"]["equal"]
    assert (last["steps"], equal["steps"]) == ([4, 6, 4], [4, 4, 4])
    nice = last["gaps"][0]["scores"][1]
    assert (nice["verdict"], nice["shared"]) == ("better", 20)
    assert last["basis"].startswith("Mean on held-out prompts after step 4 of a, step 6 of b, step 4 of c. ")
    assert last["basis"].endswith(", of differences paired by the 20 prompts that both have.")
    assert nice["change"] == pytest.approx(0.4, abs=0.005)  # 3 x 0.2 against 2 x 0.1
    assert nice["width"] < 0.01
    assert equal["gaps"][0]["scores"][1]["change"] == pytest.approx(0.2, abs=0.005)
    assert [gap["run"] for gap in last["gaps"]] == [1, 2]
    assert {score["verdict"] for score in last["gaps"][1]["scores"]} == {"even"}
    assert comparison["config"] == [["trainer.steps", "4", "6", "4"]]
    assert comparison["versions"] == []


def test_a_comparison_of_runs_that_share_little(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", text="x")
    b = make_run(tmp_path / "b", text="y", name="other", prompt="else")
    (b / "versions.json").write_text('{"grpokit": "0.2.0"}')
    comparison = content_of(a, b)["comparison"]
    last = comparison["modes"]["last"]
    assert "the rewards as a whole are not compared" in last["note"]
    assert [score["name"] for score in last["gaps"][0]["scores"]] == ["length"]
    assert ["grpokit", "0.1.0", "0.2.0"] in comparison["versions"]
    assert ["rewards.0.name", "nice", "other"] in comparison["config"]
    (a / "eval.jsonl").unlink()
    assert content_of(a, b)["comparison"]["modes"]["last"]["note"] == "Without an evaluation on held-out prompts: a."


@pytest.mark.parametrize(
    ("reward", "other", "changed", "shared"),
    [
        ({"use": "mine:x"}, {"use": "mine:x", "pattern": "a+"}, {}, ["length"]),
        ({"use": "mine:x"}, {"use": "mine:y"}, {}, ["length"]),
        ({"use": "mine:x"}, {"use": "mine:x"}, {"code": {"mine": "two"}}, ["length"]),
        ({"use": "format"}, {"use": "format"}, {"plugins": {"grpokit": "2"}}, []),  # which has length, too
    ],
)
def test_scores_on_two_scales_are_not_compared(
    tmp_path: Path, reward: dict[str, Any], other: dict[str, Any], changed: dict[str, Any], shared: list[str]
) -> None:
    versions = {"plugins": {"grpokit": "1"}, "code": {"mine": "one"}}
    a, b = make_run(tmp_path / "a", reward=reward), make_run(tmp_path / "b", reward=other, gain=0.2)
    (a / "versions.json").write_text(json.dumps(versions))
    (b / "versions.json").write_text(json.dumps(versions | changed))
    content = content_of(a, b)
    last = content["comparison"]["modes"]["last"]
    assert [score["name"] for score in last["gaps"][0]["scores"]] == list(content["weights"]) == shared
    assert "'nice'" in last["note"]


def test_where_a_reward_runs_changes_no_scale(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", reward={"workers": 2, "on_error": "skip"})
    (b / "versions.json").write_text('{"grpokit": "0.2.0", "plugins": {"x": "1.5", "other": "1"}}')
    last = content_of(a, b)["comparison"]["modes"]["last"]
    assert [score["name"] for score in last["gaps"][0]["scores"]] == ["reward", "nice", "length"]


def test_the_command(tmp_path: Path, call: Call) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    assert call("report", "a", "b") == Done(0, "comparison: b/compare.html\n", "")
    for words, error in (
        (("a", a), f"a and {a} are the same run folder; give each run once."),
        (("a", "c"), "c is not a run folder: it has no config.yaml."),
    ):
        assert call("report", *words) == Done(2, "", f"error: {error}\n")
    with pytest.raises(UsageError, match="is not a run folder"):
        report.compare(tmp_path, b)
