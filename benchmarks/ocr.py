"""How well and how fast the OCR engines read: 200 rendered words, and pages of lines on white and on photographs.

    python benchmarks/ocr.py [--threads 2] [--tessdata FOLDER] [--easyocr FOLDER]

Letters, sizes and noise are drawn here with the fonts of matplotlib and Pillow, the same at every run. A word counts
as read if it is exactly right but for its case, a page if all of its lines are, in order. An engine that is not
installed, or without weights, is a row that says so. Speeds are the best of three passes; the relative one is pictures
per second of CPU time, which other work on the machine changes least, with the first row as 1.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import matplotlib
import numpy as np
import skimage.data
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grpokit import GrpokitError
from grpokit_ocr.engine import Engine, build

WORDS = 200
HEIGHTS = (16, 18, 20, 24, 32, 48)
"""Pixels of a picture; its letters take 0.7 of them."""

NOISE = 25
"""Of 255; standard deviation per pixel and colour."""

PASSES = 3
"""Times that the pictures are read; the quickest counts."""

Picture = tuple[Image.Image, list[str]]
"""A picture and its lines, in reading order."""


def words(*, noise: float = 0.0) -> list[Picture]:
    """200 words in two fonts, six sizes and three cases, on a tight canvas or in the middle of a wider one."""
    rng = random.Random(0)
    chosen = rng.sample(_vocabulary(), WORDS)
    pictures = []
    for i, word in enumerate(chosen):
        text = (word, word.capitalize(), word.upper())[i % 3]
        height = HEIGHTS[i % len(HEIGHTS)]
        face = _font("DejaVuSans.ttf" if i % 2 else None, round(0.7 * height))
        left, top, right, bottom = face.getbbox(text)
        width = round(right - left) + (8, 60)[i // 2 % 2]
        picture = Image.new("RGB", (width, height), "white")
        at = ((width - (right - left)) // 2 - left, (height - (bottom - top)) // 2 - top)
        ImageDraw.Draw(picture).text(at, text, fill="black", font=face)
        pictures.append((_noisy(picture, noise, seed=i) if noise else picture, [text]))
    return pictures


def pages(*, photographs: bool) -> list[Picture]:
    """24 pages of one to five lines: black on white, or white with a rim on photographs."""
    rng = random.Random(1)
    backgrounds = [getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket")]
    result = []
    for i in range(24):
        width, height, size = ((512, 512, 30), (640, 384, 36), (256, 192, 20))[i % 3]
        picture = Image.fromarray(backgrounds[i % 4]).resize((width, height))
        if not photographs:
            picture = Image.new("RGB", (width, height), "white")
        face = _font("DejaVuSans-Bold.ttf", size)
        draw = ImageDraw.Draw(picture)
        lines: list[str] = []
        y = rng.randrange(4, size)
        for _ in range(1 + i % 5):
            text = " ".join(rng.sample(_vocabulary(), rng.randint(1, 3)))
            while draw.textlength(text, font=face) > width - 16:
                text = text.rpartition(" ")[0]
            x = rng.randrange(8, int(width - draw.textlength(text, font=face)) - 6)
            ink = {"fill": "white", "stroke_width": 3, "stroke_fill": "black"} if photographs else {"fill": "black"}
            draw.text((x, y), text, font=face, **ink)
            lines.append(text)
            y += round(1.7 * size)
            if y + 1.4 * size > height:
                break
        result.append((picture, lines))
    return result


def right(engine: Engine, pictures: Sequence[Picture]) -> tuple[float, float, float]:
    """The share of pictures whose lines are all read, whatever their case; pictures per second; and per CPU second."""
    images = [image for image, _ in pictures]
    engine.recognise(images[:8])
    wall = cpu = float("inf")
    found: list[list[str]] = []
    for _ in range(PASSES):
        start, used = time.perf_counter(), time.process_time()
        found = [[line.replace("\t", " ") for line in lines] for lines in engine.recognise(images)]
        wall, cpu = min(wall, time.perf_counter() - start), min(cpu, time.process_time() - used)
    same = [[a.casefold() for a in f] == [b.casefold() for b in w] for f, (_, w) in zip(found, pictures, strict=True)]
    return sum(same) / len(pictures), len(pictures) / wall, len(pictures) / cpu


@functools.cache
def _vocabulary() -> list[str]:
    return [word.lower() for word in (resources.files("grpokit_toy") / "assets/words.txt").read_text().split()]


@functools.cache
def _font(name: str | None, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.load_default(size=size) if name is None else ImageFont.truetype(folder / name, size)


def _noisy(picture: Image.Image, sigma: float, *, seed: int) -> Image.Image:
    pixels = np.asarray(picture) + np.random.default_rng(seed).normal(0, sigma, (picture.height, picture.width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tessdata", help="the folder with eng.traineddata")
    parser.add_argument("--easyocr", help="easyocr's folder of weights")
    given = parser.parse_args()
    sets = {
        "line": {"words": words(), "words, noise": words(noise=NOISE)},
        "page": {"pages on white": pages(photographs=False), "pages on photographs": pages(photographs=True)},
    }
    table = Table(title=f"{given.threads} threads, load before {os.getloadavg()[0]:.1f}")
    for heading in ("engine", "layout", "pictures"):
        table.add_column(heading)
    for heading in ("right", "pictures/s", "relative"):
        table.add_column(heading, justify="right")
    first = None
    engines = {
        "rapidocr": {"threads": given.threads},
        "tesseract": {"threads": given.threads, "weights_path": given.tessdata},
        "easyocr": {"weights_path": given.easyocr, "device": "cpu"},
    }
    for name, arguments in engines.items():
        for layout, pictures in sets.items():
            try:
                engine = build(name, layout=layout, **arguments)  # type: ignore[arg-type]
            except GrpokitError as error:
                table.add_row(name, layout, escape(f"not run: {error}"))
                break
            for what, some in pictures.items():
                share, speed, per_cpu_second = right(engine, some)
                first = first or per_cpu_second
                table.add_row(name, layout, what, f"{share:.1%}", f"{speed:.1f}", f"{per_cpu_second / first:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
