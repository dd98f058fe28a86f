"""`grpokit evaluate --taught` of a real run that hacks its reward: what changed, what explains it, what fell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Call, embedded

HACKED = """
policy: {use: toy-glyph}
data: {use: "grpokit_toy.data:glyph_prompts"}
rewards: [{use: brightness}]
trainer: {steps: 12, group_size: 8, micro_batch_size: 64, learning_rate: 2e-3, device: cpu}
run: {threads: 1, dir: out}
trackers: {}
"""


@pytest.mark.slow
def test_a_hacked_run(call: Call, drawn: None, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(HACKED)
    assert call("train", "c.yaml").code == 0
    done = call("evaluate", "out", "--taught", "--limit", "24", "--gold", "ssim", "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    (panel,) = answer["panels"]
    assert panel["title"] == "What the reward taught"
    text, basis = panel["text"]
    assert text.startswith("It taught: ")
    assert "less contrast (-" in text
    assert "But ssim fell by 0." in text
    assert "from 24 held-out samples" in basis.lower()
    assert "256 samples of 32 groups drawn as in training" in basis
    rows = {row[0]: row for row in panel["tables"][0]["rows"]}
    assert rows["brightness"][5] == pytest.approx(1)
    assert rows["contrast"][5] < -0.5
    assert rows["pixel-diversity"][3] < 0  # which only groups have
    (fallen,) = panel["tables"][1]["rows"]
    assert fallen[0] == "ssim"
    assert fallen[3] == pytest.approx(answer["change"]["ssim"]["mean"])

    (place,) = (tmp_path / "out/evaluations").iterdir()
    (page,) = embedded(place / "report.html")["runs"]
    assert [own["title"] for own in page["panels"]] == [panel["title"]]
    assert [score["name"] for score in page["scores"]] == ["brightness", "ssim"]
    (of_run,) = embedded(tmp_path / "out/report.html")["runs"]
    assert of_run["panels"][0]["text"][0].startswith("It taught: ")
