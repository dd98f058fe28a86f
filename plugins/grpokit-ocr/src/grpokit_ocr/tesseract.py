"""The engine `tesseract`, inside this process through tesserocr: the quickest one, for clean print.

tesserocr brings the library but no language data; those are files NAME.traineddata in a folder of Tesseract's. Each
thread works with an API object of its own, which keeps its model loaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import tesserocr  # type: ignore[import-not-found, import-untyped, unused-ignore]
from PIL import Image, ImageOps

from grpokit import UsageError
from grpokit_ocr.engine import Engine, Layout, cores, refuse_device
from grpokit_ocr.layout import enlargement, in_reading_order, ink_box

FOLDERS = (
    "/usr/share/tesseract-ocr/5/tessdata",
    "/usr/share/tessdata",
    "/usr/local/share/tessdata",
    "/opt/homebrew/share/tessdata",
)
"""Where packages of systems put language data; `$TESSDATA_PREFIX` comes first."""

SOURCE = "https://github.com/tesseract-ocr/tessdata_fast/raw/main/"

LINE_HEIGHT = 48
"""Pixels; a line is brought to this height, ..."""

LINE_MARGIN = 10
"""... and gets so many pixels of its background around it, without which letters at the edge are misread."""

SMALL_SIDE = 256
"""Pixels; a page with a shorter side is enlarged to this, up to `MAX_ENLARGEMENT` times."""

MAX_ENLARGEMENT = 4.0

_LINES = tesserocr.RIL.TEXTLINE


def build(
    *,
    layout: Layout,
    languages: Sequence[str] | None,
    device: str | None,
    threads: int | None,
    batch_size: int,
    weights_path: Path | None,
) -> Engine:
    """Build a `TesseractReader`; see `engine.build`. `batch_size` means nothing here: it reads one by one."""
    refuse_device("tesseract", device)
    return TesseractReader(layout=layout, languages=languages or ["eng"], threads=threads, weights_path=weights_path)


class TesseractReader:
    """Reads pictures with Tesseract.

    Args:
        layout: "line" reads a picture's ink as one line; "page" leaves it to Tesseract to find blocks and lines.
        languages: Tesseract's codes, such as eng, deu, chi_sim.
        threads: pictures that are read at a time; None: the processor cores that this process may use, at most 4.
        weights_path: the folder with the language data; None: `$TESSDATA_PREFIX`, then `FOLDERS`.

    Raises:
        UsageError: a language has no data there, or the data cannot be used.
    """

    def __init__(
        self,
        *,
        layout: Layout = "line",
        languages: Sequence[str] = ("eng",),
        threads: int | None = None,
        weights_path: Path | None = None,
    ) -> None:
        self.layout = layout
        self.threads = threads or cores()
        folder = _folder(languages, weights_path)
        mode = tesserocr.PSM.SINGLE_LINE if layout == "line" else tesserocr.PSM.AUTO
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self.threads):
            try:
                api = tesserocr.PyTessBaseAPI(path=f"{folder}/", lang="+".join(languages), psm=mode)
            except RuntimeError as error:
                raise UsageError(
                    f"The OCR engine 'tesseract' cannot use the language data of {', '.join(languages)} in '{folder}': "
                    f"{error}. A file is torn, or made for another version. {_remedy(languages)}"
                ) from error
            self._idle.put(api)

    def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
        """Return the lines of each RGB picture, from top to bottom; one at most with layout "line"."""
        if self.threads == 1 or len(images) < 2:
            return [self._lines(image) for image in images]
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(self._lines, images))

    def _lines(self, image: Image.Image) -> list[str]:
        box = ink_box(image)
        if box is None:
            return []
        api = self._idle.get()  # waits while other threads have them all
        try:
            readable = _line(image.crop(box)) if self.layout == "line" else _page(image)
            api.SetImage(readable)
            api.Recognize()
            lines = api.GetIterator()  # None where nothing was found
            found = [
                (line.BoundingBox(_LINES), line.GetUTF8Text(_LINES))
                for line in (() if lines is None else tesserocr.iterate_level(lines, _LINES))
                if not line.Empty(_LINES)
            ]
            api.Clear()
        finally:
            self._idle.put(api)
        texts = in_reading_order(found)
        return [" ".join(texts)] if texts and self.layout == "line" else texts


def _line(ink: Image.Image) -> Image.Image:
    width = max(1, round(ink.width * LINE_HEIGHT / ink.height))
    line = ink.resize((width, LINE_HEIGHT), Image.Resampling.BICUBIC)
    pixels = np.asarray(line)  # [h, w, 3]
    edge = np.concatenate([pixels[0], pixels[-1]])
    red, green, blue = np.median(edge, axis=0)
    return ImageOps.expand(line, LINE_MARGIN, (int(red), int(green), int(blue)))


def _page(image: Image.Image) -> Image.Image:
    scale = enlargement(image.size, side=SMALL_SIDE, most=MAX_ENLARGEMENT)
    size = round(image.width * scale), round(image.height * scale)
    return image if scale == 1 else image.resize(size, Image.Resampling.BICUBIC)


def _folder(languages: Sequence[str], weights_path: Path | None) -> Path:
    """The first folder that has the data of all languages."""
    odd = [code for code in languages if not re.fullmatch(r"\w+(/\w+)?", code)]
    if odd:
        raise UsageError(f"ocr: {odd[0]!r} is no language code of Tesseract's; expected one such as eng or chi_sim.")
    prefix = os.environ.get("TESSDATA_PREFIX")
    folders = [Path(folder) for folder in (prefix, *FOLDERS) if folder]
    if weights_path is not None:
        folders = [weights_path]
    for folder in folders:
        if all((folder / f"{code}.traineddata").is_file() for code in languages):
            return folder
    files = " and ".join(f"{code}.traineddata" for code in languages)
    there = sorted({path.stem for folder in folders for path in folder.glob("*.traineddata")})
    looked = ", ".join(f"'{folder}'" for folder in folders)
    raise UsageError(
        f"The OCR engine 'tesseract' needs language data, {files} in one folder. Looked in: {looked}; found "
        f"{', '.join(there) or 'none'}. {_remedy(languages)}"
    )


def _remedy(languages: Sequence[str]) -> str:
    code = languages[0]
    return (
        f"Fetch it with: curl -LO {SOURCE}{code}.traineddata -- and give its folder as weights_path; or install your "
        f"system's package (Debian: apt-get install tesseract-ocr-{code.replace('_', '-')})."
    )
