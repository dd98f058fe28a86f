"""What the engines read of the benchmark's pictures, and that the default one loses no time beside its model."""

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest

from grpokit_ocr.engine import build
from grpokit_ocr.rapid import HEIGHT, LineReader

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "ocr.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("ocr_benchmark", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("noise", [pytest.param(0, marks=pytest.mark.slow), 25])
def test_98_of_100_words_are_read(benchmark, monkeypatch, noise):
    monkeypatch.setattr(benchmark, "PASSES", 1)
    pictures = benchmark.words(noise=noise)[:100]
    assert min(image.height for image, _ in pictures) == 16
    share, *_ = benchmark.right(build("rapidocr", threads=2), pictures)
    assert share >= 0.98


@pytest.mark.slow
def test_pages_on_photographs_are_read(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "PASSES", 1)
    share, *_ = benchmark.right(build("rapidocr", layout="page", threads=2), benchmark.pages(photographs=True))
    assert share >= 0.8  # a space that is lost in 24 pages is a page lost


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("layout", "drawn", "least"),
    [
        ("line", lambda benchmark: benchmark.words(), 0.98),
        ("line", lambda benchmark: benchmark.words(noise=25), 0.97),
        ("page", lambda benchmark: benchmark.pages(photographs=False)[:8], 0.87),  # a lost letter is a page lost
    ],
    ids=["words", "noise", "pages"],
)
def test_easyocr_reads_with_its_real_weights(benchmark, monkeypatch, tmp_path, layout, drawn, least):
    folder = pytest.importorskip("easyocr_en_models").model_dir()
    monkeypatch.setattr(benchmark, "PASSES", 1)
    monkeypatch.setenv("EASYOCR_MODULE_PATH", str(tmp_path))
    engine = build("easyocr", layout=layout, device="cpu", weights_path=folder)
    share, *_ = benchmark.right(engine, drawn(benchmark))
    assert share >= least


@pytest.mark.slow
def test_reading_takes_little_more_than_its_model_needs(benchmark):
    """Whatever the machine: cutting, scaling, batching and decoding together may cost as much as the model itself."""
    images = [image for image, _ in benchmark.words()[:72]]
    reader = LineReader(threads=1)
    columns = 0

    def run(batch):
        nonlocal columns
        columns += batch.shape[0] * batch.shape[3]
        return model(batch)

    model, reader._decode = reader._decode, run
    reader.recognise(images)  # how much there is to read; equal widths only, so that nothing is filled up
    reader._decode = model
    ink = sum(image.width * HEIGHT / image.height for image in images)
    assert columns <= 1.1 * ink

    def best(work):
        return min(_seconds(work) for _ in range(3))

    batch = np.zeros((16, 3, HEIGHT, 128), dtype=np.float32)
    bare = best(lambda: reader._session.run(None, {reader._input: batch})) * columns / (16 * 128)
    assert best(lambda: reader.recognise(images)) <= 2.5 * bare


def _seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
