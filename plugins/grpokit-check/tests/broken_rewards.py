"""Rewards that are wrong in one way each, for the checks and the ladder; each with the one check that finds it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from grpokit import RewardError, Sample, registry

Rows = Sequence[Sample]


def pixels(image: Any) -> NDArray[np.float64]:
    if not isinstance(image, Image.Image):
        raise RewardError(f"Expected a picture, got a {type(image).__name__}.")
    return np.asarray(image.convert("RGB"), dtype=np.float64) / 255


def mse(samples: Rows) -> list[float]:
    """A good one: minus the mean squared difference, at the target's size; NaN without a target."""
    return [_mse(s) for s in samples]


def _mse(sample: Sample) -> float:
    pixels(sample.output)
    target = sample.prompt.target
    if not isinstance(target, Image.Image):
        return math.nan
    return -float(np.mean((pixels(sample.output.convert("RGB").resize(target.size)) - pixels(target)) ** 2))


def brightness(samples: Rows) -> list[float]:
    """A good one that compares with nothing."""
    return [float(pixels(s.output).mean()) for s in samples]


def to_source(samples: Rows) -> list[float]:
    """A good one for editing: as `mse`, against the source picture."""
    return [
        -float(np.mean((pixels(s.output.resize(s.prompt.image.size)) - pixels(s.prompt.image)) ** 2)) for s in samples
    ]


def ignores_the_target(samples: Rows) -> list[float]:
    return [math.nan if s.prompt.target is None else 0.5 + 0 * pixels(s.output).mean() for s in samples]


def _smooth(a: NDArray[np.float64]) -> float:
    return -float(np.mean(np.diff(a, axis=0) ** 2) + np.mean(np.diff(a, axis=1) ** 2))


def _grainy(a: NDArray[np.float64]) -> float:
    return float(np.percentile(np.abs(np.diff(a, axis=1)), 5))


def _blocky(a: NDArray[np.float64]) -> float:
    steps = np.abs(np.diff(a, axis=1)).mean(axis=(0, 2))
    edge = np.arange(len(steps)) % 8 == 7
    return float(steps[edge].mean() - steps[~edge].mean())


def _flat_on_the_left(a: NDArray[np.float64]) -> float:
    return float(np.mean([np.array_equal(a[:, i], a[:, i + 1]) for i in range(8)]))


def _with_bonus(bonus: Callable[[NDArray[np.float64]], float], factor: float) -> Callable[[Rows], list[float]]:
    def reward(samples: Rows) -> list[float]:
        return [x + factor * bonus(pixels(s.output)) for x, s in zip(mse(samples), samples, strict=True)]

    return reward


# --- texts ---------------------------------------------------------------------------------------------------------


def _text(sample: Sample) -> str:
    if not isinstance(sample.output, str):
        raise RewardError(f"Expected a text, got a {type(sample.output).__name__}.")
    return sample.output


def likeness(samples: Rows) -> list[float]:
    """A good one: the share of places with the target's letter."""
    return [_likeness(_text(s), s.prompt.target) for s in samples]


def _likeness(text: str, target: Any) -> float:
    if not isinstance(target, str):
        return math.nan
    return sum(a == b for a, b in zip(text, target, strict=False)) / max(1, len(text), len(target))


def first_and_last(samples: Rows) -> list[float]:
    """Letters in between are free."""
    pairs = [(_text(s), s.prompt.target or " ") for s in samples]
    return [float(len(a) == len(b) and a[:1] + a[-1:] == b[:1] + b[-1:]) for a, b in pairs]


def blank_is_half_right(samples: Rows) -> list[float]:
    return [x if _text(s).strip() else 0.5 for x, s in zip(likeness(samples), samples, strict=True)]


def starts_right(samples: Rows) -> list[float]:
    """What follows the target is free."""
    return [_likeness(_text(s)[: len(s.prompt.target or "")], s.prompt.target) for s in samples]


# --- words in pictures: a real engine reads them, and the score is made wrong ----------------------------------------


@functools.cache
def ocr(**params: Any) -> Any:
    return registry.create("reward", "ocr", {"threads": 1, **params})


def nearly_right_is_right(samples: Rows) -> list[float]:
    return [1.0 if x > 0.75 else x for x in ocr()(samples)]


def blank_sign_is_half_right(samples: Rows) -> list[float]:
    return [0.5 if pixels(s.output).std() == 0 else x for x, s in zip(ocr()(samples), samples, strict=True)]


def substring_is_perfect(samples: Rows) -> list[float]:
    return list(ocr(extra_text_penalty=0)(samples))


PICTURES: list[tuple[str, Callable[[Rows], list[float]]]] = [
    ("ladder-identical", ignores_the_target),
    ("ladder-blur", _with_bonus(_smooth, 0.5)),
    ("ladder-noise", _with_bonus(_grainy, 1.0)),
    ("ladder-jpeg", _with_bonus(_blocky, 0.2)),
    ("ladder-shift", _with_bonus(_flat_on_the_left, 0.05)),
    ("ladder-letters", nearly_right_is_right),
    ("ladder-blank", blank_sign_is_half_right),
    ("ladder-extra-text", substring_is_perfect),
]
TEXTS: list[tuple[str, Callable[[Rows], list[float]]]] = [
    ("ladder-letters", first_and_last),
    ("ladder-blank", blank_is_half_right),
    ("ladder-extra-text", starts_right),
]


# --- outputs at the edge ---------------------------------------------------------------------------------------------


def first_letter(samples: Rows) -> list[float]:
    return [ord(_text(s)[0]) / 1e6 for s in samples]


def needs_eight_pixels(samples: Rows) -> list[float]:
    return [float(pixels(s.output)[4, 4, 0]) for s in samples]


def only_colour(samples: Rows) -> list[float]:
    for s in samples:
        pixels(s.output)
    return [float(np.asarray(s.output)[..., 2].mean()) for s in samples]


def relative_contrast(samples: Rows) -> list[float]:
    return [math.inf if pixels(s.output).std() == 0 else 1 / float(pixels(s.output).std()) for s in samples]


def steps_from_row_to_row(samples: Rows) -> list[float]:
    """Of a picture of one row the mean is NaN, and min(1.0, NaN) is 1.0."""
    return [min(1.0, float(np.abs(np.diff(pixels(s.output), axis=0)).mean())) for s in samples]


def relative_brightness(samples: Rows) -> list[float]:
    """0/0 in a black picture, and every comparison with NaN is false."""
    values = [pixels(s.output).mean() / pixels(s.output).max() for s in samples]
    return [float(x) if x < 0.9 else 0.9 for x in values]


AT_THE_EDGE: list[tuple[str, Callable[[Rows], list[float]], str]] = [
    ("degenerate-texts", first_letter, "for an empty text; got IndexError"),
    ("degenerate-images", needs_eight_pixels, "for a picture of 1 x 1 pixels; got IndexError"),
    ("degenerate-images", only_colour, "for a picture of mode 'LA'; got IndexError"),
    ("degenerate-images", relative_contrast, "a finite number or NaN for an all black picture; got [inf]"),
    (
        "degenerate-images",
        steps_from_row_to_row,
        'for a picture of 1 x 1 pixels; got the score 1.0 after numpy\'s warning "Mean of empty slice"',
    ),
    (
        "degenerate-images",
        relative_brightness,
        "for an all black picture; got the score 0.9 after numpy's warning \"inv",
    ),
]
