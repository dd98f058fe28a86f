"""Unusual outputs that a policy may make: tiny, huge, blank, or of a rare mode.

A reward may score each of them, return NaN, or refuse it with a `GrpokitError`. Any other error fails the check, since
it would stop a run after hours. A score fails it too if numpy warned of a mean of nothing or a division by 0 on the
way: `min(1.0, nan)` is 1.0, and a policy would learn to make the broken picture.
"""

from __future__ import annotations

import gc
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpokit.errors import GrpokitError
from grpokit.rewards.terms import Reward
from grpokit.testing.check import expect
from grpokit.tracking.process_memory import rise
from grpokit.types import Sample

if TYPE_CHECKING:
    from PIL.Image import Image

UNSOUND = re.compile("invalid value|empty slice|divide by zero|degrees of freedom", re.IGNORECASE)
"""numpy's warnings of a result that is NaN or infinite."""

MEMORY = 2**30
"""The most bytes that scoring a picture of 4096 x 1024 pixels may take: some eighty times the picture's own."""

TEXTS = {
    "an empty text": "",
    "white space": " \n\t ",
    "100 kB of one letter": "x" * 100_000,
    "100 kB of words and numbers": "one 2, " * 14_286,
    "emoji": "\U0001f469\u200d\U0001f680\U0001f3f3\ufe0f\u200d\U0001f308 12",
    "a text with NUL": "12\x0012",
    "right-to-left text": "\u202b\u0634\u0645\u0633 12 \u05e9\u05de\u05e9\u202c",
}


def pictures() -> Iterator[tuple[str, Image]]:
    """Pictures of unusual sizes and modes, each with its description."""
    from PIL import Image

    gray = Image.linear_gradient("L").resize((48, 32))
    yield "a picture of 1 x 1 pixels", Image.new("RGB", (1, 1), "red")
    yield "a picture of 1 x 64 pixels", Image.new("RGB", (1, 64), "red")
    yield "a picture of 64 x 1 pixels", Image.new("RGB", (64, 1), "red")
    yield "an all black picture", Image.new("RGB", (48, 32), "black")
    yield "an all white picture", Image.new("RGB", (48, 32), "white")
    for mode, what in (
        ("1", "black and white"),
        ("L", "grayscale"),
        ("LA", "grayscale with transparency"),
        ("P", "palette"),
        ("RGBA", "RGBA"),
        ("CMYK", "CMYK"),
    ):
        yield f"a picture of mode {mode!r} ({what})", gray.convert(mode)
    yield "a transparent picture", Image.new("RGBA", (48, 32), (255, 0, 0, 0))
    deep = Image.new("I;16", (48, 32))
    deep.putdata([40 * i for i in range(48 * 32)])
    yield "a picture of mode 'I;16' (16-bit gray)", deep


def check_pictures(reward: Reward, sample: Sample) -> None:
    """Score each of `pictures`, and one of 4096 x 1024 pixels within `MEMORY`, in the place of a sample's output."""
    from PIL import Image

    for what, picture in pictures():
        _one(reward, replace(sample, output=picture), what)
    huge = Image.effect_mandelbrot((4096, 1024), (-3.0, -2.5, 2.0, 2.5), 10).convert("RGB")
    taken = _memory(reward, replace(sample, output=huge), "a picture of 4096 x 1024 pixels")
    expect(taken <= MEMORY, f"at most {MEMORY / 2**20:,.0f} MiB of memory for a picture of 4096 x 1024 pixels",
           f"{taken / 2**20:,.0f} MiB", "a computation at full size; bring pictures to a fixed size first")  # fmt: skip


def check_texts(reward: Reward, sample: Sample) -> None:
    """Score each of `TEXTS` in the place of a sample's output."""
    for what, text in TEXTS.items():
        _one(reward, replace(sample, output=text), what)


def _one(reward: Reward, sample: Sample, what: str) -> None:
    values: Sequence[Any] = ()
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")  # numpy's come once per line of code otherwise
            values = [float(x) for x in reward([sample])]
    except GrpokitError:
        return
    except (Exception, SystemExit) as error:  # a component may raise anything
        expect(False, f"a number, NaN or a GrpokitError for {what}", repr(error),
               "a size, mode or length that it does not expect; grpokit.images.to_rgb reads every mode")  # fmt: skip
    expect(len(values) == 1 and not math.isinf(values[0]), f"a finite number or NaN for {what}", f"{values}",
           "a division by a spread or a length that is 0")  # fmt: skip
    unsound = [w for w in warned if issubclass(w.category, RuntimeWarning) and UNSOUND.search(str(w.message))]
    if unsound and not math.isnan(values[0]):
        outcome = f'the score {values[0]} after numpy\'s warning "{unsound[0].message}"'
        expect(False, f"NaN, or a score that is computed without NaN and infinity, for {what}", outcome,
               "a NaN that min(), max() or a comparison hides; test for it first (math.isnan), or use "
               "numpy.errstate where it is intended")  # fmt: skip


def _memory(reward: Reward, sample: Sample, what: str) -> int:
    """How many bytes the process grew by, at its peak, while a sample was scored."""
    gc.collect()  # what is freed meanwhile would hide what the reward takes
    with rise() as risen:
        _one(reward, sample, what)
    return risen.bytes
