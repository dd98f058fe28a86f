"""benchmarks/head.py: what the fused head needs of the memory of log-softmax, and what stops the script."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import head
import pytest
from head import Layer

LARGE = Layer(hidden=32, vocab=16_384)
LOGITS = 128  # MiB
TINY = Layer(tokens=300, hidden=4, vocab=50)


@pytest.fixture(scope="module")
def dense() -> float:
    return head.apart("log-softmax", LARGE)["peak"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's figures about a process")
@pytest.mark.very_slow
def test_the_peak_is_a_fraction_of_log_softmax(dense: float) -> None:
    """Of 2,048 tokens it holds the logits of 256 at a time, some copies of these, and the gradients."""
    found = head.apart("fused", LARGE)
    assert dense > 3 * LOGITS
    assert found["peak"] < 0.25 * dense
    assert found["peak"] < LOGITS
    assert found["error"] < 1e-5


@pytest.mark.slow
def test_other_numbers_than_those_of_log_softmax_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(head.AGREEMENT, "cpu", 0.0)
    with pytest.raises(SystemExit, match=r"fused differs from log-softmax by \d\.\de-0\d at 50 tokens"):
        head.apart("fused", TINY)


def test_the_table_is_written_into_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = shutil.copy(head.PAGE, tmp_path)
    monkeypatch.setattr(head, "PAGE", Path(page))
    monkeypatch.setattr(head, "apart", lambda way, layer: {"peak": 100.0 if way == "log-softmax" else 40.0})
    monkeypatch.setattr(sys, "argv", ["head.py", "--vocab", "2048", "--write"])
    head.main()
    assert "| 2,048 | 16 | 100 | 40 | 0.40 |" in Path(page).read_text()


@pytest.mark.parametrize(
    ("options", "words"), [(["--vocab", "0"], "at least 1"), (["--device", "cuda"], "torch finds none")]
)
def test_bad_options_are_one_line(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(head.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["head.py", *options])
    with pytest.raises(SystemExit):
        head.main()
    assert words in capsys.readouterr().err.splitlines()[-1]
