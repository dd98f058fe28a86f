"""The settings that policies of Hugging Face models share."""

from __future__ import annotations

from typing import Any

import pytest

from grpokit import UsageError
from grpokit_hf.models.settings import ModelSettings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quantization": "2bit", "lora": {}}, "quantization must be '4bit' or '8bit', or None, got '2bit'"),
        ({"quantization": "4bit"}, r"quantization '4bit' is for frozen weights: .* Add an adapter with lora"),
        ({"dtype": "bf61"}, r"dtype must be 'auto', .*, got 'bf61'"),
        ({"device": "gpu"}, "device must be 'cpu' or 'cuda', got 'gpu'"),
        ({"lora": {"rank": 4}}, "lora has no key 'rank'"),
        ({"reference_ema": {"decay": 1}}, "reference_ema: decay must be below 1"),
        ({"local_files_only": "yes"}, "local_files_only must be true or false, got 'yes'"),
    ],
    ids=str,
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ModelSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quantization": "8bit"}, r"quantization '8bit' needs bitsandbytes 0.49 or later, .* Run: pip install"),
        ({"device": "cuda"}, "torch finds no CUDA device"),
    ],
)
def test_what_this_machine_lacks_counts_only_here(
    settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    elsewhere = ModelSettings(lora={}, **settings)
    with pytest.raises(UsageError, match=words):
        elsewhere.check_here()


@pytest.mark.parametrize(
    ("settings", "copied"),
    [({}, True), ({"lora": {}}, False), ({"lora": {}, "reference_ema": {}}, True), ({"lora": {"adapter": "x"}}, True)],
)
def test_the_reference_is_a_copy_of_what_began_trained(settings: dict[str, Any], *, copied: bool) -> None:
    assert ModelSettings(**settings).copies_reference == copied
