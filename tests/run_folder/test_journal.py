"""What real runs keep for the report."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from PIL import Image

from grpokit import Prompt, Sample
from grpokit.config import presets
from grpokit.evaluation.evaluation import Evaluation
from grpokit.evaluation.intervals import half_width
from grpokit.files import read_json
from grpokit.rewards.scoring import Scoring
from grpokit.rewards.terms import as_terms
from grpokit.run_folder.journal import Journal, save_outputs
from grpokit.runs import train as run
from made_runs import picture, read_rows

SMALL = ["trainer.prompts_per_step=3", "trainer.group_size=4", "trainer.minibatches=1", "eval.samples=2"]


def train(folder: Path, *overrides: str, resume: bool = False, preset: str = "toy-flow") -> Path:
    config, _ = presets.read_config(preset, [*SMALL, f"run.dir={folder}", *overrides])
    run.train(config, resume=resume)
    return folder


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flow") / "flow"
    return train(folder, "trainer.steps=5", "eval.every=2", "run.save_every=1")


def test_best_and_worst_groups_are_kept(flow: Path) -> None:
    assert sorted(p.name for p in (flow / "groups").iterdir()) == [f"step_00000{n}" for n in (1, 2, 4, 5)]
    metrics = read_rows(flow / "metrics.jsonl")
    for place in (flow / "groups").iterdir():
        rows = read_rows(place / "samples.jsonl")
        means = {side: sum(row["reward"] for row in rows if row["place"] == side) / 4 for side in ("best", "worst")}
        assert [row["place"] for row in rows] == ["best"] * 4 + ["worst"] * 4
        assert len({row["group"] for row in rows}) == len({row["prompt"] for row in rows}) == 2
        assert means["best"] >= metrics[int(place.name[-1]) - 1]["reward"] >= means["worst"]
        for row in rows:
            assert row["scores"] == {"ring": row["reward"]}
            with Image.open(place / row["file"]) as shown_point:
                assert shown_point.size == (96, 96)
        for side in ("best", "worst"):
            assert sum(row["advantage"] for row in rows if row["place"] == side) == pytest.approx(0, abs=1e-4)


def test_one_group_has_no_worst(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "trainer.steps=1", "trainer.prompts_per_step=1", "eval.every=0")
    rows = read_rows(folder / "groups/step_000001/samples.jsonl")
    assert [row["place"] for row in rows] == ["best"] * 4


def test_every_prompt_is_shown_before_any_twice(flow: Path) -> None:
    """16 held-out prompts with two samples each: the first of each is kept, and the scores of all 32."""
    rows = read_rows(flow / "samples/step_000000/samples.jsonl")
    firsts = [row for row in rows if row["turn"] == 0]
    assert len({row["prompt"] for row in firsts}) == len(firsts) == 16
    scored = json.loads((flow / "samples/step_000004/scores.json").read_text())
    assert scored["prompt"] == [i for i in range(16) for _ in range(2)]
    assert scored["texts"] == [row["prompt"] for row in firsts]
    evaluation = read_rows(flow / "eval.jsonl")[2]
    assert sum(scored["scores"]["ring"]) / 32 == pytest.approx(evaluation["means"]["ring"])
    assert half_width(scored["scores"]["ring"], scored["prompt"]) == pytest.approx(evaluation["ci95"]["ring"])


def test_the_best_and_the_worst_of_many_are_kept(tmp_path: Path) -> None:
    """Of 40 prompts with one sample each, of which the first 16 are kept anyway; row 30 has no score."""
    values = [math.nan if n == 30 else (n * 17) % 40 / 40 for n in range(40)]  # 0, .425, .85, .275, ...
    samples = [Sample(prompt=Prompt(text=f"p {n % 33}"), output=str(n), group=n) for n in range(40)]
    scores = Scoring(as_terms([lambda _: values]), samples).result()
    evaluation = Evaluation(samples=samples, prompts=[sample.prompt for sample in samples], scores=scores)
    Journal(tmp_path, 0).evaluation(0, evaluation)
    place = tmp_path / "samples/step_000000"
    rows = read_rows(place / "samples.jsonl")
    ends = {str(n) for n in range(40) if values[n] < 0.1 or values[n] >= 0.9}
    assert [row["output"] for row in rows] == sorted({*map(str, range(16)), *ends}, key=int)
    assert {row["output"]: row["turn"] for row in rows if row["turn"]} == {"33": 1}
    assert read_json(place / "scores.json")["texts"] == [f"p {n % 33}" for n in range(40)]


def test_a_resume_cuts_samples_and_groups_beyond_the_checkpoint(flow: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(flow, folder)
    for step in (4, 5):
        shutil.rmtree(folder / f"checkpoints/step_00000{step}")
    Journal(folder, 3)
    assert sorted(p.name for p in folder.glob("groups/*")) == ["step_000001", "step_000002"]
    assert sorted(p.name for p in folder.glob("samples/*")) == ["step_000000", "step_000002"]
    train(folder, "trainer.steps=5", "eval.every=2", "run.save_every=1", resume=True)
    for path in sorted((flow / "groups").rglob("*.*")):
        assert path.read_bytes() == (folder / path.relative_to(flow)).read_bytes(), path.name


def test_what_can_draw_itself_is_shown_as_a_picture(tmp_path: Path) -> None:
    class Patch:
        def _repr_png_(self) -> bytes:
            picture(40).save(tmp_path / "patch.png")
            return (tmp_path / "patch.png").read_bytes()

        def __repr__(self) -> str:
            return "a patch"

    prompt, outputs = Prompt(text="p", image=picture(1), target=picture(2)), (Patch(), (1, 2), "half \ud83d")
    save_outputs(tmp_path / "out", [Sample(prompt=prompt, output=x, group=0) for x in outputs])
    patch, pair, text = read_rows(tmp_path / "out/samples.jsonl")
    assert (patch["output"], pair["output"], text["output"]) == ("a patch", "(1, 2)", "half \ud83d")
    assert (tmp_path / "out" / patch["file"]).read_bytes() == (tmp_path / "patch.png").read_bytes()
    assert "file" not in pair
    with Image.open(tmp_path / "out" / pair["source"]) as source:
        assert source.tobytes() == picture(1).tobytes()


def test_numbers_that_a_policy_tells_are_kept(tmp_path: Path) -> None:
    told = {"return": 3.5, "length": 7, "truncated": True, "odd": math.nan, "frames": [1, 2], "finish": "stop"}
    samples = [Sample(prompt=Prompt("p"), output="x", group=0, info=info) for info in (told, {})]
    save_outputs(tmp_path / "out", samples)
    first, second = read_rows(tmp_path / "out/samples.jsonl")
    assert first["info"] == {"return": 3.5, "length": 7, "truncated": True, "odd": None}
    assert "info" not in second
