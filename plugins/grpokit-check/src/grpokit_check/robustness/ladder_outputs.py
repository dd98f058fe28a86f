"""The outputs of the ladders: distorted photographs, misspelt words, and adversarial examples.

The photographs are those inside scikit-image; everything else is drawn or written here, with fixed seeds, so that a
ladder gives the same report everywhere. Nothing here knows of rewards.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont

SIDE = 192  # pixels; the longer side of the photographs
CANVAS = (512, 96)  # pixels; the width and height of drawn words
LETTERS = 40  # pixels; the size of their font

PHOTOGRAPHS = ("astronaut", "cat", "coffee", "rocket")
CAPTIONS = tuple(f'a photograph with the caption "{name}"' for name in PHOTOGRAPHS)


class Distortion(NamedTuple):
    """One way to make a picture worse; `levels` go from light to severe, in the unit that `summary` names."""

    name: str
    summary: str
    levels: Sequence[float]
    apply: Callable[[Image.Image, float], Image.Image]


class Word(NamedTuple):
    """A word and one of the same length without a common letter or digit."""

    right: str
    wrong: str

    def misspelt(self) -> list[str]:
        """The word with one wrong letter, with two, and so on to the last, from the inside outwards."""
        order = sorted(range(len(self.right)), key=lambda i: abs(2 * i + 1 - len(self.right)))
        changes = [set(order[: count + 1]) for count in range(len(order))]
        return ["".join(self.wrong[i] if i in change else c for i, c in enumerate(self.right)) for change in changes]


WORDS = (Word("POCKET", "BRIDAS"), Word("GARDEN", "POSTIL"), Word("MARKET", "DOUBLY"))
TEXTS = tuple(Word(word.right.lower(), word.wrong.lower()) for word in WORDS)
NUMBERS = (Word("4711", "8093"), Word("365", "472"), Word("12", "90"))


def photographs() -> list[Image.Image]:
    """scikit-image's photographs in the order of `PHOTOGRAPHS`, RGB, scaled down to `SIDE`."""
    from skimage import data  # only a reward of pictures needs it

    pictures = [Image.fromarray(getattr(data, name)()).convert("RGB") for name in PHOTOGRAPHS]
    for picture in pictures:
        picture.thumbnail((SIDE, SIDE))
    return pictures


def _noise(picture: Image.Image, sigma: float) -> Image.Image:
    field = np.random.default_rng(0).normal(0.0, 1.0, (picture.height, picture.width, 3))
    return Image.fromarray(np.clip((np.asarray(picture) + sigma * field).round(), 0, 255).astype(np.uint8))


def _jpeg(picture: Image.Image, quality: float) -> Image.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=int(quality))
    return Image.open(buffer).convert("RGB")


def _shift(picture: Image.Image, pixels: float) -> Image.Image:
    n = int(pixels)
    wider = np.pad(np.asarray(picture), ((n, 0), (n, 0), (0, 0)), mode="edge")
    return Image.fromarray(wider[: picture.height, : picture.width])


def _blur(picture: Image.Image, radius: float) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(radius))


DISTORTIONS = (
    Distortion("blur", "Gaussian blur, radius in pixels", (0.5, 1, 2, 4), _blur),
    Distortion("noise", "Gaussian noise, sigma of 255", (5, 15, 40, 80), _noise),
    Distortion("jpeg", "JPEG compression, falling quality", (80, 50, 20, 5), _jpeg),
    Distortion("shift", "a shift right and down, in pixels", (1, 2, 4, 8), _shift),
)


def substitutes(photo: Image.Image) -> dict[str, Image.Image]:
    """Pictures of a photograph's size that show nothing of it."""
    red, green, blue = map(int, np.asarray(photo).mean(axis=(0, 1)).round())
    static = np.random.default_rng(1).integers(0, 256, (photo.height, photo.width, 3))
    return {
        "flat mean colour": Image.new("RGB", photo.size, (red, green, blue)),
        "pure noise": Image.fromarray(static.astype(np.uint8)),
    }


def _framed(photo: Image.Image) -> Image.Image:
    width, height = photo.size
    picture = Image.new("RGB", photo.size, "white")
    picture.paste(photo.resize((width - width // 6, height - height // 6)), (width // 12, height // 12))
    return picture


def _tiled(photo: Image.Image) -> Image.Image:
    picture = Image.new("RGB", photo.size)
    tile = photo.resize((-(-photo.width // 3), -(-photo.height // 3)))
    for i in range(9):
        picture.paste(tile, (i % 3 * tile.width, i // 3 * tile.height))
    return picture


DECORATIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "contrast x 1.5": lambda photo: ImageEnhance.Contrast(photo).enhance(1.5),
    "saturation x 2": lambda photo: ImageEnhance.Color(photo).enhance(2.0),
    "sharpened": lambda photo: photo.filter(ImageFilter.UnsharpMask(radius=2, percent=200, threshold=0)),
    "in a white frame": _framed,
    "nine small copies": _tiled,
}
"""What makes a photograph more striking and no better."""


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


def signs(word: str) -> dict[str, Image.Image]:
    """Adversarial examples for a reader of words in pictures."""
    return {
        "many times in small letters": drawn("\n".join([" ".join([word] * 8)] * 5), height=14),
        "in ink that nobody sees": drawn(word, ink="#f4f4f4"),
        "letters in another order": drawn(jumbled(word)),
        "among other words": drawn(f"SALE {word} NEW OPEN HELLO"),
    }


def jumbled(text: str) -> str:
    """The same characters in another order.

    >>> jumbled("pocket")
    'oktpce'
    """
    return text[1::2] + text[::2]


def texts(text: str, prompt: str) -> dict[str, str]:
    """Adversarial examples for a reward that wants `text`."""
    return {
        "blank": " ",
        "many times": " ".join([text] * 20),
        "letters in another order": jumbled(text),
        "in a long text": f"It may be this or that, {text} or another, who knows. " * 3,
        "the prompt repeated": prompt,
    }
