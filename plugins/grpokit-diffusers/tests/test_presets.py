"""The preset runs from its file, for each family."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from grpokit import UsageError
from grpokit.config import schema
from grpokit.runs import train as run
from grpokit_diffusers import plugin
from grpokit_diffusers.tiny_prompts import prompts
from whole_runs import assert_same

PRESET = Path(plugin.__file__).parent / "presets" / "diffusers-tiny.yaml"


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["nft", "grpo"])
def test_noised_copies_train_and_resume_to_the_bit(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = (
        "policy.window=null",
        "policy.matching={times: 2, weight: t}",
        "policy.steps=2",
        "trainer.steps=2",
        "trainer.prompts_per_step=2",
        "trainer.group_size=4",
        "trainer.updates_per_rollout=2",
        f"trainer.objective={objective}",
        "trainer.kl=velocity",
        "trainer.kl_coef=0.1",
        "trainer.device=cpu",
        "eval.every=1",
        "eval.samples=2",
        "run.save_every=1",
        "run.keep_last=null",
        "run.record=true",
    )
    text = PRESET.read_text(encoding="utf-8")

    def train(folder: str, *, resume: bool = False) -> Path:
        run.train(schema.parse(text, PRESET.name, [*changes, f"run.dir={folder}"]), resume=resume)
        return tmp_path / folder

    whole = train("whole")
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert all(row["logprob_diff/max"] < 1e-4 and row["grad_norm"] > 0 and row["kl"] > 0 for row in rows)
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    shutil.rmtree(again / "checkpoints/step_000002")
    assert_same(whole, train(again.name, resume=True))


def test_prompts() -> None:
    assert [len(prompts(split)) for split in ("train", "eval")] == [8, 4]
    assert len(prompts(limit=3)) == 3
    with pytest.raises(UsageError, match="have the splits train and eval; got 'test'"):
        prompts("test")
