"""Products by either library: the same numbers, and oneDNN only for what it is quicker at."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpokit_hf.cpu import products


class Names(TorchDispatchMode):
    """Records the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 33])
def test_the_numbers_and_the_library(
    wide: bool, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_wide_vectors", lambda: wide)
    monkeypatch.setattr(products, "TILE", 30)  # of 140 numbers
    draws = torch.Generator().manual_seed(0)
    x, weight, bias, d = (torch.randn(s, generator=draws).to(dtype) for s in ((rows, 20), (7, 20), (7,), (rows, 7)))
    x = x.t().contiguous().t()  # laid out the other way round
    with Names() as names:
        out = products.linear(x, weight, bias)
        back = products.linear(out, weight.t())
        outer = products.sum_of_outer(products.sum_of_outer(None, d, x), 2 * d, x)
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    full = (y.double() for y in (x, weight, bias, d))
    x, weight, bias, d = full
    for ours, exact in ((out, x @ weight.T + bias), (back, out.double() @ weight), (outer, 3 * d.T @ x)):
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)
    assert outer.dtype == torch.promote_types(dtype, torch.float32)
    assert ("_linear_pointwise" in names.seen) == (wide and dtype == torch.float32 and rows > 0)


def test_a_window_of_a_larger_matrix_is_copied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_wide_vectors", lambda: True)
    x, weight = torch.eye(8)[:, 2:6], torch.arange(48.0).reshape(6, 8)[:, 1:5]
    with Names() as names:
        out = products.linear(x, weight)
    assert "clone" in names.seen
    assert torch.equal(out, x @ weight.t())


def test_a_total_is_changed_in_place() -> None:
    a, b = torch.ones(3, 5), torch.ones(3, 4)
    total = products.sum_of_outer(None, a, b)
    assert products.sum_of_outer(total, a, b).data_ptr() == total.data_ptr()
    assert total.tolist() == [[6.0] * 4] * 5


@pytest.mark.parametrize(("capability", "quick"), [("AVX512", True), ("AVX2", True), ("DEFAULT", False)])
def test_onednn_is_for_cpus_with_wide_vectors(capability: str, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert products._wide_vectors.__wrapped__() == quick


@pytest.mark.filterwarnings("ignore:TF32")
def test_onednn_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_wide_vectors", lambda: True)
    assert products.by_onednn(torch.ones(2, 2))
    with torch.backends.mkldnn.flags(enabled=False):
        assert not products.by_onednn(torch.ones(2, 2))


def test_products_of_many_sizes_are_rounded_to_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size costs oneDNN a megabyte. A row in 8 is added at the most from 64 rows on, and 1 in 32 from 512 on."""
    monkeypatch.setattr(products, "_wide_vectors", lambda: True)
    like, counts = torch.zeros(1), range(1, 4096)
    sizes = [count + products.spare_rows(count, like) for count in counts]
    assert len({size for count, size in zip(counts, sizes, strict=True) if count >= 8}) == 64 + 3 * 32
    assert max(size / count for count, size in zip(counts, sizes, strict=True) if count >= 64) <= 1.125
    assert max(size / count for count, size in zip(counts, sizes, strict=True) if count >= 512) <= 1 + 1 / 32
    monkeypatch.setattr(products, "_wide_vectors", lambda: False)
    assert products.spare_rows(1001, like) == 0
