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
from dataclasses import replace

from PIL import Image

from grpokit.errors import GrpokitError
from grpokit.rewards.terms import Reward
from grpokit.types import Sample
from grpokit_check.check import attempt, expect
from grpokit_check.reward.memory_rise import rise

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


def pictures() -> dict[str, Image.Image]:
    """Pictures of unusual sizes and modes."""
    gray = Image.linear_gradient("L").resize((48, 32))
    deep = Image.new("I;16", (48, 32))
    deep.putdata([40 * i for i in range(48 * 32)])
    return {
        **{f"a picture of {w} x {h} pixels": Image.new("RGB", (w, h), "red") for w, h in ((1, 1), (1, 64), (64, 1))},
        **{f"an all {colour} picture": Image.new("RGB", (48, 32), colour) for colour in ("black", "white")},
        **{f"a picture of mode {mode!r}": gray.convert(mode) for mode in ("1", "L", "LA", "P", "RGBA", "CMYK")},
        "a transparent picture": Image.new("RGBA", (48, 32), (255, 0, 0, 0)),
        "a picture of mode 'I;16'": deep,
    }


def degenerate_images(reward: Reward, sample: Sample) -> None:
    """Any picture gets a number, NaN or a clear error.

    They are `pictures`, and one of 4096 x 1024 pixels that may take `MEMORY`, in the place of a sample's output.
    """
    for title, picture in pictures().items():
        _score(reward, replace(sample, output=picture), title)
    huge = Image.effect_mandelbrot((4096, 1024), (-3.0, -2.5, 2.0, 2.5), 10).convert("RGB")
    title = "a picture of 4096 x 1024 pixels"
    gc.collect()  # what is freed meanwhile would hide what the reward takes
    with rise() as risen:
        _score(reward, replace(sample, output=huge), title)
    expect(risen.bytes <= MEMORY, f"at most {MEMORY / 2**20:,.0f} MiB of memory for {title}",
           f"{risen.bytes / 2**20:,.0f} MiB",
           "a computation at full size; bring pictures to a fixed size first")  # fmt: skip


def degenerate_texts(reward: Reward, sample: Sample) -> None:
    """Any text gets a number, NaN or a clear error."""
    for title, text in TEXTS.items():
        _score(reward, replace(sample, output=text), title)


def _score(reward: Reward, sample: Sample, title: str) -> None:
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")  # numpy's come once per line of code otherwise
        answer = attempt(lambda: [float(x) for x in reward([sample])])
    if isinstance(answer, GrpokitError):
        return
    expect(not isinstance(answer, BaseException), f"a number, NaN or a GrpokitError for {title}", repr(answer),
           "a size, mode or length that it does not expect; grpokit.images.to_rgb reads every mode")  # fmt: skip
    expect(len(answer) == 1 and not math.isinf(answer[0]), f"a finite number or NaN for {title}", f"{answer}",
           "a division by a spread or a length that is 0")  # fmt: skip
    unsound = [x.message for x in records if x.category is RuntimeWarning and UNSOUND.search(str(x.message))]
    expect(not unsound or math.isnan(answer[0]),
           f"NaN, or a score that is computed without NaN and infinity, for {title}",
           f'the score {answer[0]} after numpy\'s warning "{unsound and unsound[0]}"',
           "a NaN that min(), max() or a comparison hides; test for it first (math.isnan), or use numpy.errstate where "
           "it is intended")  # fmt: skip
