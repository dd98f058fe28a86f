"""The preset runs from its file, for each family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpokit import UsageError
from grpokit.config import schema
from grpokit.runs import train as run
from grpokit_diffusers import plugin
from grpokit_diffusers.tiny_prompts import prompts

PRESET = Path(plugin.__file__).parent / "presets" / "diffusers-tiny.yaml"


@pytest.mark.long
@pytest.mark.parametrize("model", ["tiny-sd3", "tiny-qwen-image"])
def test_two_steps(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    changes = (
        f"policy.model={model}",
        "trainer.steps=2",
        "trainer.device=cpu",
        "eval.every=0",
        "trainer.group_size=4",
    )
    result = run.train(schema.parse(PRESET.read_text(encoding="utf-8"), PRESET.name, changes), name="diffusers-tiny")
    assert result.steps == 2
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row["logprob_diff/max"] < 1e-4 and row["grad_norm"] > 0 for row in rows)


def test_prompts() -> None:
    assert [len(prompts(split)) for split in ("train", "eval")] == [8, 4]
    assert len(prompts(limit=3)) == 3
    with pytest.raises(UsageError, match="have the splits train and eval; got 'test'"):
        prompts("test")
