"""The sentence about what a reward taught, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from grpokit.evaluation.paired import Change
from grpokit_diagnosis.taught.measure import Shift
from grpokit_diagnosis.taught.sentence import sentence


def shift(change: float, width: float, words: tuple[str, str], **fields: Any) -> Shift:
    values = {"name": "brightness", "before": 0.0, "after": 0.0, "correlation": None, "beyond_chance": True}
    return Shift(change=change, width=width, words=words, trained=False, **{**values, **fields})


def fall(name: str, change: float, width: float) -> Change:
    return Change(
        name=name,
        before=0.6,
        after=0.6 + change,
        before_width=0.1,
        after_width=0.1,
        change=change,
        width=width,
        shared=20,
        verdict="worse",
        monitor=True,
    )


BRIGHTER = shift(1.93, 0.21, ("darker", "brighter"))
LESS_VARIED = shift(-0.8, 0.06, ("less varied", "more varied"))
DARKER_PAYS = shift(0.0, 0.1, ("darker", "brighter"), correlation=-0.843)
BRIGHTER_PAYS = shift(0.0, 0.1, ("darker", "brighter"), correlation=0.843)


@pytest.mark.parametrize(
    ("shifts", "explains", "fallen", "text"),
    [
        (
            [BRIGHTER, LESS_VARIED],
            BRIGHTER_PAYS,
            [],
            "It taught: brighter (+1.9 ± 0.2), less varied (-0.80 ± 0.06). Within a group, 'brightness' explains 71 % "
            "of the reward (favours brighter).",
        ),
        (
            [BRIGHTER],
            DARKER_PAYS,
            [fall("ssim", -0.45, 0.021)],
            "It taught: brighter (+1.9 ± 0.2). Within a group, 'brightness' explains 71 % of the reward (favours "
            "darker). But ssim fell by 0.45 ± 0.02.",
        ),
        (
            [BRIGHTER],
            None,
            [fall("ssim", -0.45, 0.021), fall("ocr", -0.5, 0.2), fall("mse", -0.0543, 0.0031)],
            "It taught: brighter (+1.9 ± 0.2). But ssim fell by 0.45 ± 0.02, ocr by 0.5 ± 0.2 and mse by 0.054 ± "
            "0.003.",
        ),
        (
            [],
            None,
            [],
            "No statistic changed beyond chance by 0.2 standard deviations or more.",
        ),
    ],
)
def test_the_sentence(shifts: list[Shift], explains: Shift | None, fallen: list[Change], text: str) -> None:
    assert sentence(shifts, explains, fallen, rose=True) == text
    assert sentence(shifts, explains, fallen, rose=False) == text.replace("It taught", "The outputs changed")
