"""What an OCR engine is, which ones there are, and how one is chosen: the only module that knows them all.

An engine's own module is imported when that engine is asked for, so that nobody installs what they do not use; a
missing dependency ends in the command that brings it. An engine of one's own needs nothing but `recognise`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, get_args

from PIL import Image

from grpokit import PluginError, UsageError

EngineName = Literal["rapidocr", "easyocr", "tesseract"]

Layout = Literal["line", "page"]
"""line: the ink of a picture is one line of text. page: lines are looked for, anywhere in the picture."""

_MODULES: dict[EngineName, tuple[str, str]] = {
    "rapidocr": ("grpokit_ocr.rapid", "pip install 'grpokit[ocr]'"),
    "easyocr": ("grpokit_ocr.easy", "pip install 'grpokit-ocr[easyocr]'"),
    "tesseract": ("grpokit_ocr.tesseract", "pip install 'grpokit-ocr[tesseract]'"),
}
"""Of each engine: the module with its `build`, and the command that installs what it needs."""


class Engine(Protocol):
    """Anything that reads text from pictures."""

    def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
        """Return, for each RGB picture, its lines of text in reading order; no line for a blank one.

        A tab in a line says that what it separates stands side by side, and may be columns.

        What is read from one picture must not depend on the others.
        """


def build(
    name: EngineName,
    *,
    layout: Layout = "line",
    languages: Sequence[str] | None = None,
    device: str | None = None,
    threads: int | None = None,
    batch_size: int = 16,
    weights_path: str | Path | None = None,
) -> Engine:
    """Build an engine by its name; see `OCRReward` for the arguments.

    Raises:
        UsageError: an argument is out of range, or not for this engine; its weights are not there.
        PluginError: the engine's package is not installed.
    """
    choices = (("engine", name, EngineName), ("layout", layout, Layout))
    for argument, value, kind in choices:
        known = get_args(kind)
        if value not in known:
            raise UsageError(f"ocr: {argument} must be one of {', '.join(known)}, got {value!r}.")
    if batch_size < 1 or (threads is not None and threads < 1):
        raise UsageError(f"ocr: batch_size and threads must be at least 1, got {batch_size} and {threads}.")
    if languages is not None and (
        isinstance(languages, str) or not languages or not all(isinstance(code, str) for code in languages)
    ):
        raise UsageError(f"ocr: languages must be a list of codes, such as [en], got {languages!r}.")
    module, install = _MODULES[name]
    try:
        engine: Engine = importlib.import_module(module).build(
            layout=layout,
            languages=languages,
            device=device,
            threads=threads,
            batch_size=batch_size,
            weights_path=None if weights_path is None else Path(weights_path).expanduser(),
        )
    except ModuleNotFoundError as error:
        raise PluginError(
            f"The OCR engine '{name}' needs the Python module '{error.name}', which is not installed. Run: {install}"
        ) from error
    return engine


def refuse_device(name: EngineName, device: str | None) -> None:
    """Raise UsageError unless `device` is one that an engine for CPUs can use."""
    if device not in (None, "cpu"):
        raise UsageError(
            f"ocr: the engine '{name}' runs on the CPU, got device {device!r}. Leave device out, or take the engine "
            "easyocr, which can use a GPU."
        )


def cores() -> int:
    """The processor cores that this process may use, at most 4."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:
        usable = os.cpu_count() or 1
    return min(4, usable)
