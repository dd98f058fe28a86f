"""Whether any picture of a prompt can be scored: the prompt quotes something, in letters that the engine can write."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpokit import Prompt, UsageError
from grpokit.builtin.quotes import quotations


def unscorable(
    prompt: Prompt,
    *,
    engine: Any = "rapidocr",
    languages: Sequence[str] | None = None,
    weights_path: str | Path | None = None,
) -> str:
    """Why no picture of a prompt can be scored; empty if they can be. The parameters are those of `OCRReward`."""
    spans = quotations(prompt.text)
    if not spans:
        return "it has no text in quotes"
    text = unicodedata.normalize("NFKC", "".join(spans))
    letters = [letter for letter in text if letter.isalnum()]
    if not letters or any(_writes(letter, engine, languages, weights_path) for letter in letters):
        return ""
    remedy = "a recogniser as weights_path, or another engine" if engine == "rapidocr" else "languages"
    return f"the engine {engine} can write no letter of {spans[0]!r}. Name {remedy}"


def _writes(letter: str, engine: Any, languages: Sequence[str] | None, weights_path: str | Path | None) -> bool:
    if letter.isascii():
        return True
    if engine == "rapidocr":
        try:
            from grpokit_ocr.rapid import characters

            return letter in characters(weights_path and Path(weights_path).expanduser())
        except (ModuleNotFoundError, UsageError):  # building the reward says so
            return True
    if engine not in ("easyocr", "tesseract") or languages:
        return True
    return "LATIN" in unicodedata.name(letter, "")
