"""The panel of a run, from what its folder holds: pictures, texts and episodes, whole and damaged folders."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from grpokit import Panel
from grpokit.run_folder.reader import read_run
from grpokit_diagnosis.taught import folder as taught_folder
from grpokit_diagnosis.taught.panel import TITLE, taught_panels
from made_runs import make_run, read_rows, write_rows


def panel_of(run: Path) -> Panel:
    (panel,) = taught_panels(read_run(run))
    assert panel.title == TITLE
    return panel


def row_of(panel: Panel, statistic: str) -> Any:
    (row,) = [row for row in panel.tables[0].rows if row[0] == statistic]
    return row


def grey(level: int) -> Image.Image:
    """A picture with some grain, the darker half of whose pixels are left."""
    grain = np.random.default_rng(level).integers(0, 8, (32, 32))
    grain[:, :16] -= 40
    return Image.fromarray((grain + level).astype(np.uint8)).convert("RGB")


@pytest.fixture
def bright(tmp_path: Path) -> Path:
    """A run of two evaluations and two steps with groups: pictures get brighter by 40, and brighter ones score more."""
    run = make_run(tmp_path / "bright", steps=2, every=2)
    for step, gain in ((0, 0), (2, 40)):
        for n in range(16):
            grey(100 + 3 * n + gain).save(run / f"samples/step_{step:06d}/{n:04d}.png")
    for step in (1, 2):
        for n in range(8):
            grey(200 - 10 * n + (0, -4, 4, 0)[n % 4]).save(run / f"groups/step_{step:06d}/{n:04d}.png")
    return run


def test_pictures(bright: Path) -> None:
    panel = panel_of(bright)
    answer, basis = panel.text
    assert answer.startswith("It taught: brighter (+2.")
    assert "'brightness' explains 94 % of the reward (favours brighter)." in answer
    assert basis == (
        "From 16 held-out samples of step 0 and of step 2, paired by prompt and seed. A change of 1 is one "
        "standard deviation over the samples before. The correlations are with the reward within groups: 16 samples of "
        f"4 groups of training. To measure it in full: `grpokit evaluate {bright} --taught`"
    )
    _, before, after, change, width, r = row_of(panel, "brightness")
    levels = [np.asarray(grey(100 + 3 * n).convert("L")).mean() / 255 for n in range(16)]
    assert before == pytest.approx(np.mean(levels), abs=1e-3)
    assert after - before == pytest.approx(40 / 255, abs=1e-3)
    assert change == pytest.approx(40 / 255 / np.std(levels, ddof=1), rel=0.01)
    assert width < 0.05
    assert r == pytest.approx(46 / math.sqrt(452 * 5), abs=0.01)  # of 0, 14, 16, 30 with 0, 1, 2, 3
    assert len(panel.tables) == 1  # monitors have tiles on a run's page


def test_samples_of_one_prompt_count_once(bright: Path) -> None:
    """16 samples of 4 prompts, by the digests that tell prompts of one text apart; without scores by their texts."""
    for step in (0, 2):
        place = bright / f"samples/step_{step:06d}"
        rows = enumerate(read_rows(place / "samples.jsonl"))
        write_rows(place / "samples.jsonl", [{**row, "prompt": f"{n // 8}", "turn": n % 8} for n, row in rows])
        table = json.loads((place / "scores.json").read_text())
        table |= {"prompts": ["a", "b", "c", "d", "e"], "texts": ["0", "0", "1", "1", "2"]}
        (place / "scores.json").write_text(json.dumps({**table, "prompt": [n // 4 for n in range(20)]}))
    found = taught_folder.material(read_run(bright))
    assert found is not None
    assert Counter(found.before.prompts[place] for place in found.before.prompt) == dict.fromkeys("abcd", 4)
    for step in (0, 2):
        (bright / f"samples/step_{step:06d}/scores.json").unlink()
    found = taught_folder.material(read_run(bright))
    assert found is not None
    assert Counter(found.after.prompts[place] for place in found.after.prompt) == {"0": 8, "1": 8}


def test_texts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "texts", steps=2, every=2, text="a b")
    for step, longer in ((0, 0), (2, 6)):
        place = run / f"samples/step_{step:06d}/samples.jsonl"
        rows = [{**row, "output": "word " * (3 + n % 5 + longer)} for n, row in enumerate(read_rows(place))]
        write_rows(place, rows)
    for step in (1, 2):
        place = run / f"groups/step_{step:06d}/samples.jsonl"
        rows = [{**row, "output": "x" * (8 - n) ** 2} for n, row in enumerate(read_rows(place))]
        write_rows(place, [{key: value for key, value in row.items() if key != "file"} for row in rows])
    panel = panel_of(run)
    _, before, after, *_ = row_of(panel, "word-count")
    assert after - before == 6
    assert panel.text[0].startswith("It taught: longer (+4.")
    assert row_of(panel, "text-length")[-1] > 0.9


def test_episodes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "episodes", steps=2, every=2)
    settings = yaml.safe_load((run / "config.yaml").read_text()) | {"policy": {"use": "gym"}}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    for kind, step, longer in (("samples", 0, 0), ("samples", 2, 50), ("groups", 1, 0), ("groups", 2, 0)):
        place = run / kind / f"step_{step:06d}/samples.jsonl"
        infos = [{"length": 20 - 2 * n + longer, "mean_action": 0.5, "action_changes": 0.1} for n in range(16)]
        rows = [{**row, "info": info} for row, info in zip(read_rows(place), infos, strict=False)]
        write_rows(place, rows)
    panel = panel_of(run)
    assert panel.text[0].startswith("It taught: longer episodes (+")
    assert [row[0] for row in panel.tables[0].rows] == ["episode-length", "mean-action", "action-changes"]
    assert row_of(panel, "mean-action")[3:] == [None, None, None]  # all are equal


@pytest.mark.parametrize("makes", ["toy-flow", "no-such-policy"])
def test_other_outputs_have_no_panel(bright: Path, makes: str) -> None:
    settings = yaml.safe_load((bright / "config.yaml").read_text()) | {"policy": {"use": makes}}
    (bright / "config.yaml").write_text(yaml.safe_dump(settings))
    for place in bright.glob("samples/*/samples.jsonl"):  # a file and a repr, as points have
        write_rows(place, [{**row, "output": "Point(1, 2)"} for row in read_rows(place)])
    assert taught_panels(read_run(bright)) == []


def test_nothing_to_compare(bright: Path) -> None:
    evaluations = read_rows(bright / "eval.jsonl")
    write_rows(bright / "eval.jsonl", evaluations[:1])
    assert taught_panels(read_run(bright)) == []
    write_rows(bright / "eval.jsonl", [])
    assert taught_panels(read_run(bright)) == []
    write_rows(bright / "eval.jsonl", evaluations)
    shutil.rmtree(bright / "samples/step_000002")
    assert taught_panels(read_run(bright)) == []


def test_without_groups_nothing_is_explained(bright: Path) -> None:
    shutil.rmtree(bright / "groups")
    panel = panel_of(bright)
    assert "explains" not in panel.text[0]
    assert "correlations" not in panel.text[1]
    assert row_of(panel, "brightness")[-1] is None


def test_missing_pictures_and_links_cost_their_own_numbers(bright: Path) -> None:
    first = bright / "samples/step_000000"
    whole = row_of(panel_of(bright), "brightness")
    (first / "0000.png").unlink()
    (first / "0001.png").write_bytes(b"half a picture")
    secret = bright.parent / "secret.png"
    Image.new("RGB", (32, 32), "white").save(secret)
    (first / "0002.png").unlink()
    (first / "0002.png").symlink_to(secret)
    write_rows(first / "samples.jsonl", [*read_rows(first / "samples.jsonl"), {"prompt": "more", "turn": 0}])
    part = row_of(panel_of(bright), "brightness")
    assert part[1] > whole[1]  # without the three darkest
    assert part[1] < 0.6  # and without the white one
    for place in bright.glob("samples/*/*.png"):
        place.unlink()
    for place in bright.glob("samples/*/samples.jsonl"):
        place.touch()
    assert taught_panels(read_run(bright)) == []


def test_files_are_measured_once(bright: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = panel_of(bright)
    opened: list[Path] = []
    picture_of = taught_folder.picture_of

    def noted(folder: Path, row: Mapping[str, Any], part: str) -> Image.Image | None:
        opened.append(folder)
        return picture_of(folder, row, part)

    monkeypatch.setattr(taught_folder, "picture_of", noted)
    assert panel_of(bright) == first
    assert opened == []
    (bright / "samples/step_000002/samples.jsonl").touch()
    assert panel_of(bright) == first
    assert {folder.name for folder in opened} == {"step_000002"}


@pytest.mark.parametrize(("side", "pairs", "rows"), [(64, 16, 256), (512, 15, 30), (1024, 6, 12), (4096, 6, 12)])
def test_large_pictures_are_fewer(tmp_path: Path, side: int, pairs: int, rows: int) -> None:
    run = make_run(tmp_path / "run", steps=2, every=2)
    place = run / "samples/step_000000"
    Image.new("RGB", (side, side)).save(place / "0000.png")
    assert taught_folder._room(taught_folder._key(place), "image") == (pairs, rows)


def test_an_evaluation_has_all_its_scores(tmp_path: Path) -> None:
    """Statistics and gold rewards that `--taught` measured: no picture is read."""
    run = make_run(tmp_path / "run", steps=2, every=2, gain=0.2)
    settings: dict[str, Any] = {"taught": True, "rewards": [{"use": "x", "name": "nice"}]}
    settings["rewards"] += [{"use": "brightness", "weight": 0}, {"use": "mse", "weight": 0}]
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    (run / "metrics.jsonl").write_text("")
    evaluations = read_rows(run / "eval.jsonl")
    for row, own in zip(evaluations, (0.0, 1.0), strict=True):
        place = run / f"samples/step_{row['step']:06d}/scores.json"
        table = json.loads(place.read_text())
        scores = {name: table["scores"][name] for name in ("reward", "nice")}
        scores["brightness"] = [n / 19 + own for n in range(20)]
        scores["mse"] = [-own - 0.01 * n for n in range(20)]
        place.write_text(json.dumps({**table, "scores": scores}))
        row["means"] = {name: float(np.mean(column)) for name, column in scores.items()}
        row["ci95"] = dict.fromkeys(scores, 0.1)
        groups = run / f"groups/step_{row['step']:06d}"
        groups.mkdir(exist_ok=True)
        group_scores = {
            "reward": [float(n) for n in range(20)],
            "brightness": [float(-((n % 10) ** 2)) for n in range(20)],
        }
        (groups / "scores.json").write_text(
            json.dumps({**table, "prompt": [n // 10 for n in range(20)], "scores": group_scores})
        )
    write_rows(run / "eval.jsonl", evaluations)
    panel = panel_of(run)
    spread = np.std([n / 19 for n in range(20)], ddof=1)
    assert row_of(panel, "brightness")[3] == pytest.approx(1 / spread)
    assert panel.text[0] == (
        f"It taught: brighter (+{1 / spread:.3f} ± 0.000). Within a group, 'brightness' explains 93 % of the reward "
        "(favours darker). But mse fell by 1.000 ± 0.000."
    )
    assert "40 samples of 4 groups drawn as in training" in panel.text[1]
    assert panel.tables[1].rows == [
        ["mse", pytest.approx(-0.095), pytest.approx(-1.095), pytest.approx(-1), pytest.approx(0)]
    ]


def test_a_report_does_not_wait_for_torch(bright: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from grpokit.run_folder.reader import read_run; "
        "from grpokit_diagnosis.taught.panel import taught_panels; "
        f"assert taught_panels(read_run(Path({str(bright)!r}))); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
