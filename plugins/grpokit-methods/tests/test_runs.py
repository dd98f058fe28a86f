"""Runs without a trained reward: what they say, what they write, and what stops before anything is drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from command_line import Call
from grpokit.run_folder.reader import read_run
from grpokit_toy.flow import ToyFlow
from whole_runs import train_config

CONFIG = """
policy: {{use: toy-flow, steps: 3, eval_steps: 3, teachers: {{wide: {teacher}}}}}
data: {{use: "grpokit_toy.flow:ring_prompts", limit: 8}}
rewards: [{rewards}]
trainer: {{objective: opd, steps: 6, prompts_per_step: 2, group_size: 3, device: cpu}}
eval: {{every: 6, samples: 2}}
run: {{save_every: 0, threads: 1, record: true}}
"""
MONITOR = "{use: ring, weight: 0}"


def config(folder: Path, rewards: str) -> str:
    state = ToyFlow().net.state_dict()
    save_file({name: x + 0.05 * torch.ones_like(x) for name, x in state.items()}, folder / "wide.safetensors")
    file = folder / "config.yaml"
    file.write_text(CONFIG.format(teacher=folder / "wide.safetensors", rewards=rewards))
    return str(file)


@pytest.mark.usefixtures("drawn")
def test_a_small_loss_is_not_explained_by_advantages(call: Call, tmp_path: Path) -> None:
    file, run = config(tmp_path, "{use: ring}"), tmp_path / "run"
    state = ToyFlow().net.state_dict()
    save_file({name: x + 1e-4 for name, x in state.items()}, tmp_path / "wide.safetensors")
    done = call("train", file, f"run.dir={run}", "trainer.steps=1", "eval.every=0", "trainer.group_size=16")
    metrics = json.loads((run / "metrics.jsonl").read_text())
    assert metrics["loss"] < 1e-3
    assert metrics["frac_reward_zero_std"] < 1
    assert "importance ratios" not in done.out + done.err


@pytest.mark.usefixtures("drawn")
def test_an_evaluation_of_a_run_without_rewards_asks_for_one(call: Call, tmp_path: Path) -> None:
    file, run = config(tmp_path, ""), tmp_path / "run"
    train_config(file, run, "trainer.steps=1", "run.save_every=1", "eval.every=0", "run.record=false")
    for words in ([run], [run, "--with", file]):
        done = call("evaluate", *words)
        assert done.code == 2
        assert "no reward" in done.err
        assert "Traceback" not in done.err
    assert call("evaluate", run, "--reward", "ring").code == 0


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(
    ("rewards", "means", "line", "words"),
    [
        ("", set(), "step 6/6  loss ", "No reward is trained."),
        (MONITOR, {"ring"}, "step 6/6  loss ", "No reward is trained. The monitor ring "),
        ("{use: ring}", {"ring", "reward"}, "step 6/6  reward ", "The reward ring "),
    ],
    ids=["none", "a monitor", "a reward"],
)
def test_a_run_says_nothing_of_a_reward_that_is_not_trained(
    rewards: str, means: set[str], line: str, words: str, call: Call, tmp_path: Path
) -> None:
    done = call("train", config(tmp_path, rewards), f"run.dir={tmp_path / 'run'}")
    said, trained = done.out + done.err, "reward" in means
    assert line in said
    assert "not scored" not in said
    metrics = [json.loads(row) for row in (tmp_path / "run/metrics.jsonl").read_text().splitlines()][-1]
    assert ("reward" in metrics, "unscored_rows" in metrics) == (trained, trained)
    assert metrics["opd/kl"] == pytest.approx(metrics["loss"])
    run = read_run(tmp_path / "run")
    assert [row["means"].keys() for row in run.evaluations] == [means] * 2
    assert f'"verdict":"{words}' in (tmp_path / "run/report.html").read_text()
    diagnosed = call("diagnose", tmp_path / "run").out
    assert ("No reward is trained here" in diagnosed) == (not trained)
    assert "without a score" not in diagnosed
    assert ("without spread" in diagnosed) == trained


@pytest.mark.parametrize(
    ("rewards", "override", "words"),
    [
        ("", "trainer.objective=grpo", "line 4: rewards: there is no reward, and objective 'grpo' learns from rewards"),
        (MONITOR, "trainer.objective=crd", "line 4: rewards: every reward has weight 0, so all are monitors, and obj"),
        ("", "trainer.dynamic_sampling=2", "dynamic_sampling draws again where a group's rewards are equal, but OPD"),
        ("", "run.best=reward", "there is no held-out score 'reward'. The config has no reward."),
        (MONITOR, "run.best=reward", "there is no held-out score 'reward'. The scores are ring."),
        ("{use: ring}", "trainer.objective=grpo", "the policy has a teacher, and nothing reads it, as kl_coef is 0"),
        ("", "policy.teachers={wide: nowhere.safetensors}", "No weights at nowhere.safetensors"),
    ],
)
def test_what_is_refused(rewards: str, override: str, words: str, call: Call, tmp_path: Path) -> None:
    done = call("train", config(tmp_path, rewards), f"run.dir={tmp_path / 'run'}", override)
    assert done.code != 0
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_checkpoint_with_an_average_is_a_start_and_a_teacher(tmp_path: Path) -> None:
    """Its policy.safetensors holds the average of `old_ema` as well, which is not a part of the network."""
    file = config(tmp_path, "{use: ring}")
    train_config(
        file, tmp_path / "run", "trainer.objective=nft", "policy.teachers=null", "policy.matching={times: 2}",
        "policy.old_ema={decay: 0.5, ramp: 0.001}", "run.save_every=6", "eval.every=0",
    )  # fmt: skip
    saved = next((tmp_path / "run/checkpoints").glob("step_*/policy.safetensors"))
    ToyFlow(weights=saved, teachers={"it": str(saved)})
