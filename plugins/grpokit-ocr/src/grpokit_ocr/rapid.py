"""The engine `rapidocr`: the PP-OCR models that the package rapidocr brings, for single lines and for whole pictures.

The recogniser is run directly with onnxruntime, without OpenCV and many times as fast on small pictures as that
package's own pipeline. For pages the package's detector finds the lines, and the same recogniser reads them.
"""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from numpy.typing import NDArray
from PIL import Image

from grpokit import UsageError
from grpokit_ocr import alphabets
from grpokit_ocr.engine import Engine, Layout, cores, refuse_device
from grpokit_ocr.layout import Box, enlargement, in_reading_order, ink_box

HEIGHT = 48
"""Pixels; the recogniser's input height."""

MAX_WIDTH = 1280
"""Pixels; a longer line is squeezed into this width."""

MAX_COLUMNS = 4096
"""Pixels of width per call of the recogniser, all its pictures together: each 8 give 18,710 probabilities."""

WIDTH_STEP = 16
"""Widths are rounded up to a multiple of this, so that pictures of nearly the same width share a batch."""

DETECTOR_SIDE = 960
"""Pixels; the detector sees a picture with a longer side scaled down to this."""

SMALL_SIDE = 256
"""Pixels; for the detector a picture with a shorter side is enlarged to this, up to `MAX_ENLARGEMENT` times."""

MAX_ENLARGEMENT = 4.0

DETECTOR_STEP = 32
"""Pixels; the detector's sides are multiples of this."""

MIN_CONFIDENCE = 0.6
"""On a page, a line whose letters have a lower mean probability is taken for texture."""


def build(
    *,
    layout: Layout,
    languages: Sequence[str] | None,
    device: str | None,
    threads: int | None,
    batch_size: int,
    weights_path: Path | None,
) -> Engine:
    """Build a `LineReader` or a `PageReader`; see `engine.build`."""
    refuse_device("rapidocr", device)
    reader = LineReader(threads=threads, batch_size=batch_size, weights_path=weights_path, languages=languages)
    return PageReader(reader, threads=threads) if layout == "page" else reader


class LineReader:
    """Reads each picture's ink as one line, with rapidocr's packaged recogniser.

    Args:
        threads: of onnxruntime; None: the processor cores that this process may use, at most 4.
        batch_size: the most pictures per call of the model; long lines share a call with fewer.
        weights_path: an ONNX file with a CTC text recogniser of the PP-OCR family (input [b, 3, 48, w], characters in
            its metadata); None: the one inside the installed package rapidocr.
        languages: codes in `alphabets.LETTERS` whose letters the recogniser must have.

    Raises:
        ModuleNotFoundError: rapidocr is not installed.
        UsageError: the model is missing, is not such a recogniser, or lacks letters of a language.
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        batch_size: int = 16,
        weights_path: Path | None = None,
        languages: Sequence[str] | None = None,
    ) -> None:
        self.batch_size = batch_size
        path = packaged_model() if weights_path is None else weights_path
        self._session = _open(path, threads or cores())
        self._input = self._session.get_inputs()[0].name
        self._characters = _characters(self._session, path)
        _check_languages(languages or (), set(self._characters), path)

    def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
        """Return one line, or none, for each RGB picture."""
        boxes = [ink_box(image) for image in images]
        cut = {i: images[i].crop(box) for i, box in enumerate(boxes) if box}
        lines: list[list[str]] = [[] for _ in images]
        for i, (text, _) in zip(cut, self.read(list(cut.values())), strict=True):
            if text.strip():
                lines[i] = [text]
        return lines

    def read(self, lines: Sequence[Image.Image]) -> list[tuple[str, float]]:
        """Return the text of each picture of one line, and the mean probability of its letters (0 without any).

        One that is much taller than wide may run up or down, or have its letters below each other: it is read turned to
        either side as well, and the surest reading counts. A turned one has two letters at least, or it may be an I.
        """
        turned = [_turned(line) for line in lines]
        texts = iter(self._read([picture for pictures in turned for picture in pictures]))
        surest = []
        for pictures in turned:
            upright, *others = [next(texts) for _ in pictures]
            long = [reading for reading in others if sum(map(str.isalnum, reading[0])) > 1]
            surest.append(max([upright, *long], key=lambda reading: reading[1]))
        return surest

    def _read(self, lines: Sequence[Image.Image]) -> list[tuple[str, float]]:
        texts = [("", 0.0)] * len(lines)
        prepared = [_prepare(line) for line in lines]
        by_width = defaultdict[int, list[int]](list)
        for i, pixels in enumerate(prepared):
            by_width[pixels.shape[2]].append(i)
        for width, rows in by_width.items():
            # Only equal widths share a batch: filling up to the widest would let a picture's text depend on its mates.
            size = max(1, min(self.batch_size, MAX_COLUMNS // width))
            for start in range(0, len(rows), size):
                chunk = rows[start : start + size]
                batch = np.stack([prepared[i] for i in chunk])
                for i, text in zip(chunk, self._decode(batch), strict=True):
                    texts[i] = text
        return texts

    def _decode(self, batch: NDArray[np.float32]) -> list[tuple[str, float]]:
        """Greedy CTC: the likeliest class per position, repeats merged, blanks (class 0) dropped."""
        probabilities = self._session.run(None, {self._input: batch})[0]  # [b, 3, 48, w] -> [b, w / 8, classes]
        best = probabilities.argmax(axis=2)  # [b, w / 8]
        sure = np.take_along_axis(probabilities, best[:, :, None], axis=2)[:, :, 0]  # [b, w / 8]
        changed = np.diff(best, axis=1, prepend=-1) != 0
        kept = changed & (best != 0)
        readings = []
        for row, p, keep in zip(best, sure, kept, strict=True):
            text = "".join(self._characters[c] for c in row[keep])
            readings.append((text, float(p[keep].mean()) if keep.any() else 0.0))
        return readings


class PageReader:
    """Finds the lines of each picture with rapidocr's packaged detector, and reads them with a `LineReader`.

    Args:
        reader: reads the lines that were found.
        threads: of the detector; None: the processor cores that this process may use, at most 4.
    """

    def __init__(self, reader: LineReader, *, threads: int | None = None) -> None:
        from rapidocr.ch_ppocr_det.utils import DBPostProcess  # brings OpenCV, which single lines do without

        self._reader = reader
        self._session = _open(packaged_model("det"), threads or cores())
        self._input = self._session.get_inputs()[0].name
        # As rapidocr sets it by itself.
        self._boxes: Any = DBPostProcess(thresh=0.3, box_thresh=0.5, unclip_ratio=1.6, use_dilation=True)

    def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
        """Return the lines of each RGB picture, from top to bottom."""
        found = [self.find(image) for image in images]  # one by one: no picture is scaled for another
        cut = []
        for image, quads in zip(images, found, strict=True):
            cut += [_straighten(image, quad) for quad in quads]
        readings = iter(self._reader.read(cut))
        pages = []
        for quads in found:
            pieces = []
            for box in _upright(quads):
                text, sure = next(readings)
                if sure >= MIN_CONFIDENCE:
                    pieces.append((box, text))
            pages.append(in_reading_order(pieces))
        return pages

    def find(self, image: Image.Image) -> NDArray[np.float32]:
        """[n, 4, 2]: the corners (x, y) of each line in an RGB picture, clockwise from the upper left of its text."""
        none = np.zeros((0, 4, 2), dtype=np.float32)
        if ink_box(image) is None:
            return none
        grown = enlargement(image.size, side=SMALL_SIDE, most=MAX_ENLARGEMENT)
        scale = min(grown, DETECTOR_SIDE / max(image.size))
        width, height = (max(1, round(side * scale / DETECTOR_STEP)) * DETECTOR_STEP for side in image.size)
        pixels = _pixels(image, width, height)
        batch = np.ascontiguousarray(pixels[None])
        text = self._session.run(None, {self._input: batch})[0]  # [1, 1, h, w]: the probability of text
        quads, _ = self._boxes(text, (height, width))
        if len(quads) == 0:
            return none
        scales = np.array([image.width / width, image.height / height], dtype=np.float32)
        found: NDArray[np.float32] = np.asarray(quads, dtype=np.float32) * scales
        return found


@cache
def characters(weights_path: Path | None) -> frozenset[str]:
    """All characters that a recogniser can write; `weights_path` as of `LineReader`, which says what is raised."""
    path = packaged_model() if weights_path is None else weights_path
    return frozenset(_characters(_open(path, 1), path))


def packaged_model(kind: Literal["rec", "det"] = "rec") -> Path:
    """The recogniser or detector inside the installed package rapidocr, which is found but not imported.

    Importing it would need OpenCV.
    """
    spec = importlib.util.find_spec("rapidocr")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'rapidocr'", name="rapidocr")
    folders = [Path(folder) / "models" for folder in spec.submodule_search_locations]
    # rapidocr downloads further models (other languages and sizes) into the same folder: take the one it ships.
    shipped = [path for folder in folders for path in folder.glob(f"PP-OCR*_{kind}_small.onnx")]
    found = sorted(shipped or [path for folder in folders for path in folder.glob(f"*{kind}*.onnx")])
    if not found:
        raise UsageError(
            f"The installed rapidocr has no model *{kind}*.onnx in its folder 'models'. Install rapidocr 3.10"
            + (", or name a recogniser with the parameter 'weights_path'." if kind == "rec" else ".")
        )
    return found[-1]


def _straighten(image: Image.Image, quad: NDArray[np.float32]) -> Image.Image:
    """Cut a line out along its corners [4, 2]."""
    upper_left, upper_right, lower_right, lower_left = quad
    width = _longer(upper_left - upper_right, lower_left - lower_right)
    height = _longer(upper_left - lower_left, upper_right - lower_right)
    corners = np.concatenate([upper_left, lower_left, lower_right, upper_right]).tolist()
    return image.transform((width, height), Image.Transform.QUAD, corners, Image.Resampling.BICUBIC)


def _longer(first: NDArray[np.float32], second: NDArray[np.float32]) -> int:
    """The length of the longer one of two edges, in pixels; at least 1."""
    length = max(np.linalg.norm(first), np.linalg.norm(second))
    return max(1, round(float(length)))


def _turned(line: Image.Image) -> list[Image.Image]:
    """A line as it may have to lie for reading."""
    if line.height < 1.5 * line.width:
        return [line]
    return [line, line.transpose(Image.Transpose.ROTATE_90), line.transpose(Image.Transpose.ROTATE_270)]


def _upright(quads: NDArray[np.float32]) -> list[Box]:
    """The boxes of lines [n, 4, 2] for the reading order, after the page is turned back by their median slant."""
    if len(quads) == 0:
        return []
    right, down = (quads[:, 1] - quads[:, 0]).T  # along the upper edges
    slant = float(np.median(np.arctan2(down, right)))
    cos, sin = np.cos(slant), np.sin(slant)
    turned = quads @ np.array([[cos, -sin], [sin, cos]])  # [n, 4, 2]
    boxes = np.concatenate([turned.min(axis=1), turned.max(axis=1)], axis=1)  # [n, 4]
    return [(left, upper, right, lower) for left, upper, right, lower in boxes.tolist()]


def _prepare(line: Image.Image) -> NDArray[np.float32]:
    """[3, 48, w]: the line at the model's height, blue first, in [-1, 1]; filled up with zeros, as in its training."""
    width = min(MAX_WIDTH, max(1, round(line.width * HEIGHT / line.height)))
    padded = math.ceil(width / WIDTH_STEP) * WIDTH_STEP
    out = np.zeros((3, HEIGHT, padded), dtype=np.float32)
    out[:, :, :width] = _pixels(line, width, HEIGHT)
    return out


def _pixels(image: Image.Image, width: int, height: int) -> NDArray[np.float32]:
    """[3, height, width]: a picture as the models see it, blue first, in [-1, 1]."""
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, dtype=np.float32)[:, :, ::-1]
    return pixels.transpose(2, 0, 1) / 127.5 - 1


def _open(path: Path, threads: int) -> Any:
    if not path.is_file():
        raise UsageError(f"There is no OCR model at '{path}'.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads must not slow down torch
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own types, which share no base
        reason = str(error).splitlines()[0]
        raise UsageError(f"The file '{path}' is no ONNX model that onnxruntime can read: {reason}") from error


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


def _check_languages(languages: Sequence[str], characters: set[str], path: Path) -> None:
    for language in languages:
        lacking = alphabets.missing_letters(language, characters) if language in alphabets.LETTERS else None
        if lacking == "":
            continue
        known = [code for code in alphabets.LETTERS if not alphabets.missing_letters(code, characters)]
        reason = "is not known to it" if lacking is None else f"needs letters that it lacks ({lacking})"
        raise UsageError(
            f"ocr: the language {language!r} {reason}. The recogniser '{path.name}' reads: {', '.join(known)}. For "
            "another, give a recogniser as weights_path, or take another engine."
        )
