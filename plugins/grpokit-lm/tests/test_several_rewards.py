"""Several rewards of a language model, from a config file: their weights, and the formulas of TRL 1.16."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import save_tiny_model
from torch import Tensor

from grpokit import StepReport
from grpokit.config import presets
from grpokit.runs import build, build_rewards
from grpokit.runs import train as run

PAGE = Path(__file__).parents[3] / "docs" / "from-trl.md"
CONFIG = """
policy: {use: hf-lm, model: base, max_new_tokens: 12, stop: [e, a]}
data: {prompts: sums.jsonl}
rewards:
  - {use: length, name: short, weight: 0.5, maximum: 2}
  - {use: format, name: vowel, weight: 2, pattern: '(?s).*[aeiou].*'}
  - {use: repetition-penalty, weight: 0}
trainer: {prompts_per_step: 3, group_size: 8, learning_rate: 1e-2, device: cpu}
"""
WEIGHTS = torch.tensor([0.5, 2.0], dtype=torch.float64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with a model and prompts."""
    monkeypatch.chdir(tmp_path)
    save_tiny_model(Path("base"))
    lines = [{"prompt": f"What is {n} + {n}?", "target": str(2 * n)} for n in range(10)]
    Path("sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("config.yaml").write_text(CONFIG)
    return tmp_path


def first_step(*overrides: str) -> StepReport:
    config, _ = presets.read_config("config.yaml", overrides)
    prompts, _ = build.prompts(config)
    return build.trainer(config, build.policies(config), build_rewards.rewards(config), prompts).step()


def trl(rewards: Tensor, *, scale: str = "group", normalize_then_sum: bool = False) -> Tensor:
    """TRL's advantages: rewards [P, G, R] -> [P * G]."""
    if normalize_then_sum:
        z = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        total = (z * WEIGHTS).sum(-1)
        return ((total - total.mean()) / (total.std() + 1e-4)).flatten()
    total = (rewards * WEIGHTS).sum(-1)
    centred = total - total.mean(1, keepdim=True)
    std = {"group": total.std(1, keepdim=True), "batch": total.std(), "none": torch.ones(()) - 1e-4}[scale]
    return (centred / (std + 1e-4)).flatten()


@pytest.mark.parametrize(
    ("advantage", "theirs"),
    [
        ("group", {}),
        ("{use: group, scale: batch}", {"scale": "batch"}),
        ("centred", {"scale": "none"}),
        ("gdpo", {"normalize_then_sum": True}),
    ],
)
def test_weighted_rewards_train_as_in_trl(folder: Path, advantage: str, theirs: dict[str, Any]) -> None:
    report = first_step(f"trainer.advantage={advantage}")
    assert report.reward_names == ["short", "vowel", "repetition-penalty"]
    order = report.rollout.groups.argsort(stable=True)
    rewards = report.rewards.double()[order, :2].view(3, 8, 2)
    assert (rewards.std(1) > 0).all(), "no spread to compare"
    expected = trl(rewards, **theirs)
    torch.testing.assert_close(report.advantages.double()[order], expected, rtol=1e-5, atol=1e-5)
    weighted = (rewards * WEIGHTS).sum(-1).mean()
    assert report.metrics["reward"] == pytest.approx(float(weighted))
    assert report.metrics["rewards/vowel/mean"] == pytest.approx(float(rewards[..., 1].mean()))
    assert report.metrics["grad_norm"] > 0


def test_the_config_of_the_page_runs(folder: Path) -> None:
    """With a tiny model and few steps."""
    text = re.search(r"^```yaml\n(# as-in-trl\.yaml\n.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert text is not None
    Path("as-in-trl.yaml").write_text(text[1])
    small = ["policy.model=base", "policy.max_new_tokens=12", "trainer.steps=2", "trainer.device=cpu"]
    config, _ = presets.read_config("as-in-trl.yaml", [*small, "trackers.use=[]", "run.dir=out"])
    assert run.train(config).steps == 2
    rows = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()]
    assert {"rewards/numeric-answer/mean", "rewards/format/mean"} <= rows[-1].keys()
