"""AdamW with averages of 8 bits: what it learns, what a checkpoint keeps of it, and where it cannot be."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from grpokit import CheckpointError, RunError, Trainer, UsageError
from grpokit.settings import TrainerSettings
from grpokit.training.optimizers import optimizer_of
from grpokit_plan import Job
from tiny_policies import TinyTokens, digit_sum

pytest.importorskip("bitsandbytes")

PROMPTS = [str(i) for i in range(12)]
EIGHT = ["adamw_8bit", "paged_adamw_8bit"]


def make(optimizer: str = "adamw_8bit", device: str = "cpu", **options: Any) -> Trainer:
    """Of a policy with a layer of 102,400 weights: from 100,000 on, paged memory is used."""
    options = {"group_size": 8, "learning_rate": 1e-3, "steps": 6, "progress": False, **options}
    return Trainer(TinyTokens(width=320), [digit_sum], PROMPTS, optimizer=optimizer, device=device, **options)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().cpu().flatten() for p in trainer.updates.parameters])


def states(trainer: Trainer) -> list[dict[str, Any]]:
    return [trainer.updates.optimizer.state[p] for p in trainer.updates.parameters]


def steps(trainer: Trainer, count: int) -> list[dict[str, float]]:
    return [dict(trainer.step().metrics) for _ in range(count)]


def test_it_makes_the_updates_of_adamw_to_a_few_percent() -> None:
    before = weights(make())
    moved = []
    for optimizer in ("adamw", "adamw_8bit"):
        trainer = make(optimizer, weight_decay=0.1, adam_beta1=0.8)
        rows = steps(trainer, 6)
        moved.append(weights(trainer) - before)
        assert ("updates_swallowed" in rows[0]) == (optimizer == "adamw")
    cosine = float(torch.cosine_similarity(*moved, dim=0))
    assert cosine > 0.97
    assert float(moved[1].norm() / moved[0].norm()) == pytest.approx(1, abs=0.05)


def goes_on(optimizer: str, device: str, folder: Path, **options: Any) -> Trainer:
    """A run that is saved and loaded in its middle, after it was held against one that is not."""
    whole, first, second = (make(optimizer, device, **options) for _ in range(3))
    rows = steps(whole, 4)
    steps(first, 2)
    first.save(folder)
    second.load(folder)
    again = steps(second, 2)
    for name in ("reward", "loss", "grad_norm"):
        assert [row[name] for row in again] == [row[name] for row in rows[2:]]
    assert torch.equal(weights(whole), weights(second))
    for one, other in zip(states(whole), states(second), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(x, other[key]) if torch.is_tensor(x) else x == other[key] for key, x in one.items())
    return second


@pytest.mark.parametrize("optimizer", EIGHT)
def test_a_resumed_run_has_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    goes_on(optimizer, "cpu", tmp_path / "saved")
    kept = load_file(tmp_path / "saved/optimizer.safetensors")
    assert kept["moments/net/2.weight/state1"].dtype == kept["moments/net/2.weight/state2"].dtype == torch.uint8
    assert kept["moments/net/2.bias/state1"].dtype == torch.float32  # of few weights


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", EIGHT)
@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_it_goes_on_on_a_gpu_and_paged_memory_stays_paged(optimizer: str, precision: str, tmp_path: Path) -> None:
    second = goes_on(optimizer, "cuda", tmp_path / "saved", mixed_precision=precision)
    paged = [hasattr(state["state1"], "is_paged") for state in states(second)]
    assert any(paged) == (optimizer == "paged_adamw_8bit")
    if precision == "no":
        here = make(optimizer)
        steps(here, 4)
        assert float((weights(second) - weights(here)).abs().max()) < 1e-3


def test_another_optimizer_cannot_take_over(tmp_path: Path) -> None:
    first = make("adamw_8bit")
    first.step()
    first.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"written with trainer.optimizer 'adamw_8bit', whose state 'adamw' cann"):
        make("adamw").load(tmp_path / "saved")
    make("paged_adamw_8bit").load(tmp_path / "saved")


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_its_bytes_are_those_of_a_plan(optimizer: Any) -> None:
    """Measured with an embedding, which keeps float32, beside a matrix."""
    net = nn.ModuleDict({"table": nn.Embedding(1000, 64), "matrix": nn.Linear(1024, 512, bias=False)})
    settings, named = TrainerSettings(optimizer=optimizer), dict(net.named_parameters())
    own = optimizer_of(named, {"net": net}, settings, torch.device("cpu"), scaled=False, sharded=False)
    for p in named.values():
        p.grad = torch.randn_like(p)
    own.step()
    sizes = {
        name: sum(x.nbytes for key, x in own.state[p].items() if key not in ("step", "qmap1", "qmap2"))
        for name, p in named.items()
    }
    job = Job.of(settings, reference=False, prompt_tokens=None)
    assert sizes == {"table.weight": 8 * 64_000, "matrix.weight": job.averages * 1024 * 512}


def test_rows_of_an_embedding_without_gradient_stay() -> None:
    net = nn.Embedding(1000, 64)
    before = net.weight.detach().clone()
    settings = TrainerSettings(optimizer="adamw_8bit")
    named = dict(net.named_parameters())
    own = optimizer_of(named, {"net": net}, settings, torch.device("cpu"), scaled=False, sharded=False)
    for _ in range(20):
        net.weight.grad = torch.zeros_like(net.weight)
        net.weight.grad[::2] = 1e-3
        own.step()
    assert torch.equal(net.weight[1::2], before[1::2])
    assert bool((net.weight[::2] != before[::2]).all())


def test_the_first_update_must_change_some_weight() -> None:
    with pytest.raises(RunError, match="No weight changed in the first update"):
        make(learning_rate=1e-30).step()


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"adam_epsilon=1e-15 is too small for optimizer 'adamw_8bit', .* 1e-8"):
        make(adam_epsilon=1e-15)
    with pytest.raises(UsageError, match=r"sharding does not work with optimizer 'adamw_8bit'; use adamw"):
        make(sharding="fsdp2")
    with pytest.raises(UsageError, match=r"optimizer must be 'adamw' or 'adamw_8bit' or 'paged_.*, got 'adam'"):
        make("adam")
    needs = r"optimizer 'adamw_8bit' needs bitsandbytes 0.50 or later, which is not .* pip install 'bitsandbytes>=0.50'"
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.49.2")
    with pytest.raises(UsageError, match=needs):
        make()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=needs):
        make()
