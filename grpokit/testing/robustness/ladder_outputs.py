"""The outputs of the ladders: distorted photographs, misspelt words, and adversarial examples.

The photographs are those inside scikit-image; everything else is drawn or written here, with fixed seeds, so that a
ladder gives the same report everywhere. Nothing here knows of rewards.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont

SIDE = 192
"""Pixels; the longer side of the photographs."""

CANVAS = (512, 96)
"""Pixels; the width and height of drawn words."""

LETTERS = 40
"""Pixels; the size of their font."""

PHOTOGRAPHS = ("astronaut", "cat", "coffee", "rocket")
CAPTIONS = tuple(f'a photograph with the caption "{name}"' for name in PHOTOGRAPHS)


@dataclass(frozen=True, kw_only=True)
class Distortion:
    """One way to make a picture worse; `levels` go from light to severe, in the unit that `summary` names."""

    name: str
    summary: str
    levels: Sequence[float]
    apply: Callable[[Image.Image, float], Image.Image]


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word and one of the same length without a common letter or digit."""

    right: str
    wrong: str

    def misspelt(self) -> list[str]:
        """The word with one wrong letter, with two, and so on to the last, from the inside outwards."""
        order = sorted(range(len(self.right)), key=lambda i: abs(2 * i + 1 - len(self.right)))
        texts = []
        for count in range(1, len(order) + 1):
            changed = set(order[:count])
            texts.append("".join(self.wrong[i] if i in changed else c for i, c in enumerate(self.right)))
        return texts


WORDS = (
    Word(right="POCKET", wrong="BRIDAS"),
    Word(right="GARDEN", wrong="POSTIL"),
    Word(right="MARKET", wrong="DOUBLY"),
)
TEXTS = (
    Word(right="pocket", wrong="bridas"),
    Word(right="garden", wrong="postil"),
    Word(right="market", wrong="doubly"),
)
NUMBERS = (Word(right="4711", wrong="8093"), Word(right="365", wrong="472"), Word(right="12", wrong="90"))


def photographs() -> list[Image.Image]:
    """scikit-image's photographs in the order of `PHOTOGRAPHS`, RGB, scaled down to `SIDE`.

    Raises:
        ModuleNotFoundError: scikit-image is not installed.
    """
    from skimage import data

    pictures = []
    for name in PHOTOGRAPHS:
        picture = Image.fromarray(getattr(data, name)()).convert("RGB")
        picture.thumbnail((SIDE, SIDE))
        pictures.append(picture)
    return pictures


def _noise(picture: Image.Image, sigma: float) -> Image.Image:
    field = np.random.default_rng(0).normal(0.0, 1.0, (picture.height, picture.width, 3))
    return _picture(np.asarray(picture) + sigma * field)


def _jpeg(picture: Image.Image, quality: float) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=int(quality))
    return Image.open(buffer).convert("RGB")


def _shift(picture: Image.Image, pixels: float) -> Image.Image:
    n = int(pixels)
    wider = np.pad(np.asarray(picture), ((n, 0), (n, 0), (0, 0)), mode="edge")
    return Image.fromarray(wider[: picture.height, : picture.width])


def _picture(pixels: NDArray[np.float64]) -> Image.Image:
    return Image.fromarray(np.clip(pixels.round(), 0, 255).astype(np.uint8))


DISTORTIONS = (
    Distortion(
        name="blur",
        summary="Gaussian blur, radius in pixels",
        levels=(0.5, 1, 2, 4),
        apply=lambda picture, radius: picture.filter(ImageFilter.GaussianBlur(radius)),
    ),
    Distortion(name="noise", summary="Gaussian noise, sigma of 255", levels=(5, 15, 40, 80), apply=_noise),
    Distortion(name="jpeg", summary="JPEG compression, falling quality", levels=(80, 50, 20, 5), apply=_jpeg),
    Distortion(name="shift", summary="a shift right and down, in pixels", levels=(1, 2, 4, 8), apply=_shift),
)


def substitutes(photo: Image.Image) -> Iterator[tuple[str, Image.Image]]:
    """Pictures of a photograph's size that show nothing of it, each with its name."""
    mean = np.asarray(photo).mean(axis=(0, 1)).round()
    yield "flat mean colour", Image.new("RGB", photo.size, tuple(int(x) for x in mean))
    static = np.random.default_rng(1).integers(0, 256, (photo.height, photo.width, 3))
    yield "pure noise", _picture(static.astype(np.float64))


DECORATIONS = ("contrast x 1.5", "saturation x 2", "sharpened", "in a white frame", "nine small copies")


def decorated(photo: Image.Image) -> Iterator[tuple[str, Image.Image]]:
    """The photograph with what makes a picture more striking and no better, in the order of `DECORATIONS`."""
    width, height = photo.size
    framed = Image.new("RGB", photo.size, "white")
    framed.paste(photo.resize((width - width // 6, height - height // 6)), (width // 12, height // 12))
    tiled = Image.new("RGB", photo.size)
    tile = photo.resize((-(-width // 3), -(-height // 3)))
    for i in range(9):
        tiled.paste(tile, (i % 3 * tile.width, i // 3 * tile.height))
    pictures = (
        ImageEnhance.Contrast(photo).enhance(1.5),
        ImageEnhance.Color(photo).enhance(2.0),
        photo.filter(ImageFilter.UnsharpMask(radius=2, percent=200, threshold=0)),
        framed,
        tiled,
    )
    yield from zip(DECORATIONS, pictures, strict=True)


def captioned(photo: Image.Image, text: str) -> Image.Image:
    """The photograph with a text across its middle."""
    picture = photo.copy()
    font = ImageFont.load_default(picture.height // 6)
    centre = (picture.width / 2, picture.height / 2)
    ImageDraw.Draw(picture).text(
        centre, text, font=font, fill="white", anchor="mm", stroke_width=2, stroke_fill="black"
    )
    return picture


def drawn(text: str, *, ink: str = "black", height: int = LETTERS) -> Image.Image:
    """A text in Pillow's own font in the middle of a white picture; a line that is too long shrinks to fit."""
    picture = Image.new("RGB", CANVAS, "white")
    draw = ImageDraw.Draw(picture)
    longest = max(text.split("\n"), key=len)
    while height > 8 and draw.textlength(longest, font=ImageFont.load_default(height)) > CANVAS[0] - 16:
        height -= 1
    font = ImageFont.load_default(height)
    draw.text((CANVAS[0] / 2, CANVAS[1] / 2), text, font=font, fill=ink, anchor="mm", align="center")
    return picture


def scribbles() -> Image.Image:
    """Lines that are not letters."""
    rng = np.random.default_rng(2)
    picture = Image.new("RGB", CANVAS, "white")
    draw = ImageDraw.Draw(picture)
    for left in range(120, 392, 68):
        points = rng.uniform((left, 24), (left + 60, 72), (9, 2))
        draw.line([(float(x), float(y)) for x, y in points], fill="black", width=4)
    return picture


def signs(word: Word) -> Iterator[tuple[str, Image.Image]]:
    """Adversarial examples for a reader of words in pictures, each with its name."""
    yield "many times in small letters", drawn("\n".join([" ".join([word.right] * 8)] * 5), height=14)
    yield "in ink that nobody sees", drawn(word.right, ink="#f4f4f4")
    yield "letters in another order", drawn(jumbled(word.right))
    yield "among other words", drawn(f"SALE {word.right} NEW OPEN HELLO")


def jumbled(text: str) -> str:
    """The same characters in another order.

    >>> jumbled("pocket")
    'oktpce'
    """
    return text[1::2] + text[::2]


def texts(text: str, prompt: str) -> Iterator[tuple[str, str]]:
    """Adversarial examples for a reward that wants `text`, each with its name."""
    yield "blank", " "
    yield "many times", " ".join([text] * 20)
    yield "letters in another order", jumbled(text)
    yield "in a long text", f"It may be this or that, {text} or another, who knows. " * 3
    yield "the prompt repeated", prompt
