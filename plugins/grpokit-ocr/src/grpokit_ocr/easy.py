"""The engine `easyocr`: its recogniser on a picture's ink, or its detector and recogniser on whole pictures.

The package downloads its weights itself on first use, into its own folder; with `weights_path` it looks only there and
downloads nothing, and nor does it where `HF_HUB_OFFLINE` is set. It is the engine that can use a GPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from huggingface_hub import constants
from numpy.typing import NDArray
from PIL import Image

from grpokit import UsageError
from grpokit.rewards.device import find_device
from grpokit_ocr.engine import Engine, Layout
from grpokit_ocr.layout import Box, in_reading_order, ink_box


def build(
    *,
    layout: Layout,
    languages: Sequence[str] | None,
    device: str | None,
    threads: int | None,
    batch_size: int,
    weights_path: Path | None,
) -> Engine:
    """Build an `EasyReader`; see `engine.build`.

    Raises:
        ModuleNotFoundError: easyocr is not installed.
        UsageError: an argument is not for this engine, or the weights are not there.
    """
    import easyocr  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from huggingface_hub import constants

    if threads is not None:
        raise UsageError("ocr: the engine 'easyocr' computes with torch, whose threads it shares: leave threads out.")
    if weights_path is not None and not weights_path.is_dir():  # easyocr would make it
        raise UsageError(
            f"ocr: weights_path must be easyocr's folder of weights, and there is none at '{weights_path}'."
        )
    codes = list(languages or ["en"])
    folder = None if weights_path is None else str(weights_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # easyocr uses what torch has deprecated
        plan = _plan(easyocr, codes, folder)
        try:
            reader = easyocr.Reader(
                codes,
                gpu=device is None or str(find_device(device, reward="ocr")),  # True: it chooses
                model_storage_directory=folder,
                download_enabled=weights_path is None and not constants.HF_HUB_OFFLINE,
                detector=layout == "page",
                verbose=False,
            )
        except (OSError, AssertionError, BadZipFile, KeyError) as error:  # the second: a wrong checksum
            raise UsageError(_missing(easyocr, plan, layout, codes, error)) from error
    return EasyReader(reader, layout=layout, batch_size=batch_size)


class EasyReader:
    """Reads pictures with an `easyocr.Reader`, one by one.

    Args:
        reader: the `easyocr.Reader`; with layout "page" it needs its detector.
        layout: "line" reads a picture's ink as one line.
        batch_size: the most lines of one picture that a GPU reads together.
    """

    def __init__(self, reader: Any, *, layout: Layout, batch_size: int = 16) -> None:
        self._reader = reader
        self.layout = layout
        self.batch_size = batch_size

    def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
        """Return the lines of each RGB picture, from top to bottom; one at most with layout "line"."""
        return [self._lines(image) for image in images]

    def _lines(self, image: Image.Image) -> list[str]:
        box = ink_box(image)
        if box is None:
            return []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pin_memory", category=UserWarning)  # on a CPU, at each call
            if self.layout == "line":
                results = self._reader.recognize(_blue_first(image.crop(box)))
            else:
                results = self._reader.readtext(_blue_first(image), batch_size=self.batch_size)
        return in_reading_order((_around(corners), text) for corners, text, _ in results)


def _blue_first(image: Image.Image) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.asarray(image)[:, :, ::-1])  # [h, w, 3], as OpenCV has it


def _around(corners: Sequence[Sequence[float]]) -> Box:
    xs, ys = zip(*corners, strict=True)
    return float(min(xs)), float(min(ys)), float(max(xs)), float(max(ys))


def _plan(easyocr: Any, codes: list[str], folder: str | None) -> Any:
    """A Reader without networks: easyocr's own check of the languages, and its choice of folder and alphabet."""
    from easyocr import config  # type: ignore[import-not-found, import-untyped, unused-ignore]

    unknown = [code for code in codes if code not in config.all_lang_list]
    if unknown:
        raise UsageError(
            f"ocr: easyocr has no language {unknown[0]!r}. It has: {', '.join(sorted(config.all_lang_list))}."
        )
    try:
        return easyocr.Reader(
            codes,
            gpu=False,
            model_storage_directory=folder,
            download_enabled=False,
            detector=False,
            recognizer=False,
            verbose=False,
        )
    except ValueError as error:  # languages that no one recogniser has
        raise UsageError(f"ocr: easyocr cannot read {', '.join(codes)} together: {error}.") from error


def _missing(easyocr: Any, plan: Any, layout: Layout, codes: list[str], error: BaseException) -> str:
    from easyocr import config  # type: ignore[import-not-found, import-untyped, unused-ignore]

    models = [model for generation in config.recognition_models.values() for model in generation.values()]
    files = [model["filename"] for model in models if model["characters"] == plan.character]
    if layout == "page":
        files.append(config.detection_models["craft"]["filename"])
    folder = Path(plan.model_storage_directory)
    reason = " ".join(str(error).split()) or type(error).__name__
    reason += " (HF_HUB_OFFLINE is set)" * bool(constants.HF_HUB_OFFLINE)
    code = f"import easyocr; easyocr.Reader({codes}, gpu=False, model_storage_directory='{folder}')"
    return (
        f"The OCR engine 'easyocr' needs its weights for {', '.join(codes)}, {' and '.join(files)}. Looked for them in "
        f"'{folder}': {reason}. Fetch them there with: python -c \"{code}\" -- or, without network, on another "
        "machine, and give the copied folder as weights_path."
    )
