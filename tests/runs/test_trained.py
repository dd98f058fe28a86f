"""`grpokit.load`: a policy with the weights of the checkpoint that was asked for, or what there is instead."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import grpokit
from small_runs import train, write_prompts


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(folder):
        write_prompts([str(n) for n in range(20, 26)])
        train("run", run__save_every=2, eval__every=2, run__keep_last=2, run__best="digits", trainer__steps=6)
        train("plain", trainer__steps=1)
    return folder


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained / "run"


@pytest.mark.parametrize(("step", "name"), [("last", "step_000006"), (4, "step_000004"), ("best", "best")])
def test_the_weights_are_those_of_the_checkpoint(run: Path, step: int | str, name: str) -> None:
    place = run / "checkpoints" / name
    for policy in (grpokit.load("run", step=step), grpokit.load(place)):  # type: ignore[arg-type]
        state = {k: v for module in policy.modules().values() for k, v in module.state_dict().items()}
        stored = load_file(place / "policy.safetensors")
        assert state.keys() == stored.keys()
        assert all(torch.equal(state[key], stored[key]) for key in stored)


def test_samples_of_a_loaded_policy(run: Path) -> None:
    samples = grpokit.draw(grpokit.load(run), ["20", "21"], samples_per_prompt=3)
    assert [sample.prompt.text for sample in samples] == ["20"] * 3 + ["21"] * 3
    outputs = [sample.output for sample in samples]
    assert outputs == [s.output for s in grpokit.draw(grpokit.load(run), ["20", "21"], samples_per_prompt=3)]


@pytest.mark.parametrize(
    ("where", "step", "message"),
    [
        ("nowhere", "last", "There is no run folder nowhere"),
        ("x" * 300, "last", "There is no run folder xxx"),
        ("toy-lm", "last", "A preset has no trained weights"),
        ("run/checkpoints", "last", "neither a run folder"),
        ("run", 2, "no checkpoint 2. It has those of the steps 4, 6. run.save_every"),
        ("run", "newest", "no checkpoint 'newest'"),
        ("plain", "best", "no checkpoint 'best'"),
        ("run/checkpoints/best", 4, "is a checkpoint already"),
    ],
)
def test_what_is_not_there(run: Path, where: str, step: int, message: str) -> None:
    with pytest.raises(grpokit.UsageError, match=message):
        grpokit.load(where, step=step)


def test_arguments_of_the_wrong_kind(run: Path) -> None:
    with pytest.raises(grpokit.UsageError, match="overrides must be a list"):
        grpokit.load("run", overrides="seed=1")
    with pytest.raises(grpokit.UsageError, match="policy is 'run', which lacks rollout"):
        grpokit.draw("run", ["20"])  # type: ignore[arg-type]
    policy = grpokit.load("run")
    for words, message in (
        ({"batch_size": 0}, "batch_size 0; expected 1 or more"),
        ({"mixed_precision": "fp8"}, "mixed_precision must be 'no', 'bf16' or 'fp16', got 'fp8'"),
    ):
        with pytest.raises(grpokit.UsageError, match=message):
            grpokit.draw(policy, ["20"], **words)  # type: ignore[arg-type]
