"""How an engine is chosen: what is refused, and what each missing package ends in."""

import sys

import pytest

import grpokit
from grpokit import PluginError, UsageError
from grpokit_ocr.reward import OCRReward


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "rapid"}, "engine must be one of rapidocr, easyocr, tesseract, got 'rapid'"),
        ({"layout": "lines"}, "layout must be one of line, page, got 'lines'"),
        ({"languages": "en"}, r"languages must be a list of codes, such as \[en\], got 'en'"),
        ({"languages": []}, r"languages must be a list of codes, such as \[en\], got \[\]"),
        ({"languages": [1]}, r"languages must be a list of codes, such as \[en\], got \[1\]"),
        ({"device": "cuda"}, "engine 'rapidocr' runs on the CPU, got device 'cuda'"),
        ({"threads": 0}, "batch_size and threads must be at least 1, got 16 and 0"),
        ({"batch_size": 0}, "batch_size and threads must be at least 1, got 0 and None"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        OCRReward(**arguments)


def test_the_registry_refuses_them_too():
    with pytest.raises(grpokit.GrpokitError, match=r"rapidocr.*easyocr.*tesseract"):
        grpokit.create("reward", "ocr", {"engine": "paddle"})
    with pytest.raises(PluginError, match="layout must be 'line' or 'page', got 'book'"):
        grpokit.create("reward", "ocr", {"layout": "book"})


@pytest.mark.parametrize(("name", "module"), [("easyocr", "easyocr"), ("tesseract", "tesserocr")])
def test_a_missing_engine_names_its_own_extra(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "grpokit_ocr.tesseract", raising=False)
    with pytest.raises(PluginError) as caught:
        grpokit.create("reward", "ocr", {"engine": name})
    assert str(caught.value) == (
        f"The OCR engine '{name}' needs the Python module '{module}', which is not installed. Run: pip install "
        f"'grpokit-ocr[{name}]'"
    )
