"""Reads text from pictures: the interface of an engine, and the one that ships.

`LineReader` runs the recogniser that the package rapidocr brings, directly with onnxruntime: without detector and
OpenCV, and many times as fast on small pictures as that package's own pipeline. It takes the ink of a picture as one
line. Other engines, and pages of many lines, fit behind `Engine` without a change elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from grpokit import UsageError

HEIGHT = 48
"""Pixels; the model's input height."""

MAX_WIDTH = 1280
"""Pixels; a longer line is squeezed into this width."""

MAX_COLUMNS = 4096
"""Pixels of width per call of the model, all its pictures together: each 8 give 18,710 probabilities."""

WIDTH_STEP = 16
"""Widths are rounded up to a multiple of this, so that pictures of nearly the same width share a batch."""

MIN_CONTRAST = 24
"""Of 255; where nothing differs more from the background, the picture is blank."""

LARGE = 1024
"""Pixels; in a picture with longer sides the ink is looked for at a whole fraction of its size, to save time."""

INK = 0.3
"""What differs from the background by this share of the largest difference is ink."""


class Engine(Protocol):
    """Anything that reads text from pictures."""

    def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
        """Return, for each RGB picture, its lines of text in reading order; no line for a blank one.

        What is read from one picture must not depend on the others.
        """


class LineReader:
    """Reads each picture as one line with rapidocr's packaged recogniser.

    Args:
        threads: of onnxruntime; None: the processor cores that this process may use, at most 4.
        batch_size: the most pictures per call of the model; long lines share a call with fewer.
        model: an ONNX file with a CTC text recogniser of the PP-OCR family (input [b, 3, 48, w], characters in its
            metadata); None: the one inside the installed package rapidocr.

    Raises:
        ModuleNotFoundError: rapidocr is not installed.
        UsageError: the model is missing or is not such a recogniser.
    """

    def __init__(self, *, threads: int | None = None, batch_size: int = 16, model: str | Path | None = None) -> None:
        if batch_size < 1 or (threads is not None and threads < 1):
            raise UsageError(f"batch_size and threads must be at least 1, got {batch_size} and {threads}.")
        self.batch_size = batch_size
        path = packaged_model() if model is None else Path(model)
        self._session = _open(path, threads or _cores())
        self._input = self._session.get_inputs()[0].name
        self._characters = _characters(self._session, path)

    def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
        """Return one line, or none, for each RGB picture."""
        lines: list[list[str]] = [[] for _ in images]
        by_width: dict[int, list[tuple[int, NDArray[np.float32]]]] = defaultdict(list)
        for i, image in enumerate(images):
            box = ink_box(image)
            if box is not None:
                line = _prepare(image.crop(box))
                by_width[line.shape[2]].append((i, line))
        for width, rows in by_width.items():
            # Only equal widths share a batch: filling up to the widest would let a picture's text depend on its mates.
            size = max(1, min(self.batch_size, MAX_COLUMNS // width))
            for start in range(0, len(rows), size):
                chunk = rows[start : start + size]
                for (i, _), text in zip(chunk, self._read(np.stack([line for _, line in chunk])), strict=True):
                    if text.strip():
                        lines[i] = [text]
        return lines

    def _read(self, batch: NDArray[np.float32]) -> list[str]:
        """Greedy CTC: the likeliest class per position, repeats merged, blanks (class 0) dropped."""
        probabilities = self._session.run(None, {self._input: batch})[0]  # [b, 3, 48, w] -> [b, w / 8, classes]
        best = probabilities.argmax(axis=2)  # [b, w / 8]
        new = np.diff(best, axis=1, prepend=-1) != 0
        kept = new & (best != 0)
        return ["".join(self._characters[c] for c in row[keep]) for row, keep in zip(best, kept, strict=True)]


def packaged_model() -> Path:
    """The recogniser inside the installed package rapidocr, which is found but not imported (it needs OpenCV)."""
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'rapidocr'", name="rapidocr")
    folders = [Path(folder) / "models" for folder in spec.submodule_search_locations]
    # rapidocr downloads further models (other languages and sizes) into the same folder: take the one it ships.
    shipped = [path for folder in folders for path in folder.glob("PP-OCR*_rec_small.onnx")]
    found = sorted(shipped or [path for folder in folders for path in folder.glob("*rec*.onnx")])
    if not found:
        raise UsageError(
            "The installed rapidocr has no recogniser (*rec*.onnx) in its folder 'models'. Install rapidocr 3.10, or "
            "name a model file with the parameter 'model'."
        )
    return found[-1]


def ink_box(image: Image.Image) -> tuple[int, int, int, int] | None:
    """The box (left, upper, right, lower) around everything that differs from the background; None if nothing does.

    The background is the median colour of the picture's edge. A 3 x 3 mean comes first, so that noise in single pixels
    does not stretch the box. The box keeps a margin of an eighth of its height, where the picture has it.
    """
    if min(image.size) < 1:
        return None
    shrink = max(1, max(image.size) // LARGE)
    small = image.reduce(shrink) if shrink > 1 else image
    pixels = np.asarray(small.filter(ImageFilter.BoxBlur(1)), dtype=np.float32)  # [h, w, 3]
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    distance = np.abs(pixels - np.median(edge, axis=0)).max(axis=2)  # [h, w]
    if distance.max() < MIN_CONTRAST:
        return None
    ink = distance > INK * distance.max()
    ys, xs = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    margin = max(1, (ys[-1] + 1 - ys[0]) // 8)
    return (
        max(0, int(xs[0] - margin) * shrink),
        max(0, int(ys[0] - margin) * shrink),
        min(image.width, int(xs[-1] + 1 + margin) * shrink),
        min(image.height, int(ys[-1] + 1 + margin) * shrink),
    )


def _prepare(line: Image.Image) -> NDArray[np.float32]:
    """[3, 48, w]: the line at the model's height, blue first, in [-1, 1]; filled up with zeros, as in its training."""
    width = min(MAX_WIDTH, max(1, round(line.width * HEIGHT / line.height)))
    pixels = np.asarray(line.resize((width, HEIGHT), Image.Resampling.BILINEAR), dtype=np.float32)
    out = np.zeros((3, HEIGHT, -(-width // WIDTH_STEP) * WIDTH_STEP), dtype=np.float32)
    out[:, :, :width] = pixels[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1
    return out


def _cores() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, usable)


def _open(path: Path, threads: int) -> Any:
    if not path.is_file():
        raise UsageError(f"There is no OCR model at '{path}'.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads must not slow down torch
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _characters(session: Any, path: Path) -> list[str]:
    """The text of each class: blank first, a space last, as the PP-OCR recognisers have them."""
    listed = session.get_modelmeta().custom_metadata_map.get("character", "").splitlines()
    classes = session.get_outputs()[0].shape[-1]
    characters = ["", *listed, " "]
    if not listed or classes != len(characters):
        raise UsageError(
            f"The OCR model '{path.name}' should list its characters in its metadata, two fewer than its classes; it "
            f"lists {len(listed)} and has {classes} classes. Use a PP-OCR recogniser as packaged by rapidocr."
        )
    return characters
