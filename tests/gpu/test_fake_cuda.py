"""The fake CUDA device refuses what a real one refuses, and computes what the CPU computes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as attention

from grpokit.sampling import derive_seeds

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu(fake_cuda: ModuleType) -> ModuleType:
    """Every test here asks it."""
    return fake_cuda


def test_tensors_of_two_devices_do_not_meet() -> None:
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    for call in (
        lambda: there + here,
        lambda: here.mul_(there),
        lambda: torch.cat([there, here]),
        lambda: here[there.long()],
    ):
        with pytest.raises(RuntimeError, match="device"):
            call()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())
    assert (there * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a number on the CPU costs nothing


def test_memory_is_nan_until_it_is_written_and_has_an_end(gpu: Any) -> None:
    assert torch.empty(8, device="cuda").isnan().all()
    before = torch.cuda.memory_allocated()
    block = torch.zeros(2**20, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 * 2**20
    gpu.device().limit(torch.cuda.memory_allocated() + 2**20)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            block + 1
    finally:
        gpu.device().limit(gpu.CAPACITY)
    del block
    assert torch.cuda.memory_allocated() == before


def test_a_copy_to_the_host_that_nobody_waits_for_has_not_arrived() -> None:
    x = torch.arange(4.0, device="cuda")
    here = x.to("cpu", non_blocking=True)
    assert here.isnan().all()
    x.add_(1)
    torch.cuda.synchronize()
    assert here.tolist() == [0, 1, 2, 3]
    seeds = derive_seeds(1, stream="train", step=0, prompts=2, group_size=2)
    assert torch.equal(seeds.to("cuda").to("cpu").row, seeds.row)  # which is read at once


def test_what_the_host_waits_for_is_counted_with_its_line(gpu: Any) -> None:
    x = torch.arange(4.0, device="cuda")
    with gpu.counted() as count:
        x.mul(2).add(1)
    assert count.launches == 2
    with gpu.counted() as count:
        x[torch.arange(2, device="cuda")].masked_fill(x[:2] > 1, 0)
    assert not count.waits
    waits = {
        "a number": lambda: float(x[0]),
        "a list": lambda: x.tolist(),
        "from the host": lambda: torch.ones(2).to("cuda"),
        "a mask": lambda: x[x > 1],
        "an index of the host": lambda: x[torch.tensor([0])],
        "nonzero": lambda: x.nonzero(),
        "equal": lambda: x.equal(x),
        "synchronize": torch.cuda.synchronize,
    }
    for name, call in waits.items():
        with gpu.counted() as count:
            call()
        assert count.waits.total() == 1, name
        assert next(iter(count.waits)).startswith("test_fake_cuda.py"), name
    pinned = torch.ones(2).pin_memory()
    with gpu.counted() as count:
        pinned.to("cuda", non_blocking=True)
        torch.ones(2).to("cuda", non_blocking=True)
    assert not count.waits


def test_a_graph_repeats_its_launches_and_waits_for_nothing() -> None:
    x, graph = torch.zeros(3, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1) * 2
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [10, 10, 10]
    with pytest.raises(RuntimeError, match="capturing"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        float(y[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "lower right", "grouped"])
def test_attention_and_its_gradient_are_those_of_the_cpu(kind: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    queries = 3 if kind == "lower right" else 5
    query, key, value = (
        torch.randn(2, heads, length, 8, generator=generator).to(dtype)
        for heads, length in ((4, queries), (2 if kind == "grouped" else 4, 5), (2 if kind == "grouped" else 4, 5))
    )
    mask = torch.rand(2, 1, queries, 5, generator=generator) > 0.3
    results = []
    for device in ("cpu", "cuda"):
        given = {
            "plain": {},
            "causal": {"is_causal": True},
            "mask": {"attn_mask": mask.to(device)},
            "lower right": {"attn_mask": causal_lower_right(queries, 5)},
            "grouped": {"enable_gqa": True},
        }[kind]
        inputs = [x.detach().to(device).requires_grad_() for x in (query, key, value)]
        out = attention(*inputs, **given)
        out.float().square().sum().backward()
        results.append([out, *(x.grad for x in inputs)])
    near = {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y.cpu(), rtol=near, atol=near)


def test_half_precision_learns_as_on_the_cpu() -> None:
    """Autocast, the scaler of fp16, and a softmax that widens."""
    losses: dict[str, list[float]] = {"cpu": [], "cuda": []}
    for device, seen in losses.items():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 3)).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05, fused=True)
        scaler = torch.amp.GradScaler(device)
        x, target = torch.linspace(-1, 1, 32).reshape(8, 4).to(device), (torch.arange(8) % 3).to(device)
        for _ in range(5):
            with torch.autocast(device, torch.float16):
                loss = nn.functional.nll_loss(net(x).log_softmax(-1, dtype=torch.float32), target)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            seen.append(float(loss.detach()))
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=2e-3)
    assert losses["cuda"][-1] < losses["cuda"][0]
