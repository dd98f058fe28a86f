"""Statistics of outputs: numbers computed by hand, outputs that they cannot measure, and the contract of rewards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from grpokit import Prompt, RewardSpec, Sample, create
from grpokit_check import Check, parametrize_with_checks, reward_checks
from grpokit_diagnosis.plugin import grpokit_rewards
from grpokit_diagnosis.statistics import episodes, pictures, texts

Statistic = Callable[[Sequence[Sample]], list[float]]
SPECS = {spec.name: spec for spec in grpokit_rewards()}


def one(statistic: Statistic, output: Any, **info: float) -> float:
    (number,) = statistic([Sample(prompt=Prompt(""), output=output, group=0, info=info)])
    return number


def picture(*rows: Sequence[tuple[int, int, int]]) -> Image.Image:
    return Image.fromarray(np.array(rows, np.uint8))


def halves(left: int, right: int, side: int = 64) -> Image.Image:
    """A grey left and a grey right half."""
    grey = np.full((side, side), left, np.uint8)
    grey[:, side // 2 :] = right
    return Image.fromarray(grey).convert("RGB")


RED, GREEN, BLACK, WHITE, PINK = (255, 0, 0), (0, 255, 0), (0, 0, 0), (255, 255, 255), (255, 127, 127)
STRIPES = Image.fromarray(np.tile(np.array([0, 255], np.uint8), (64, 32))).convert("RGB")


@pytest.mark.parametrize(
    ("statistic", "output", "number"),
    [
        (pictures.contrast, halves(0, 255), 0.5),
        (pictures.contrast, halves(51, 102), 0.1),
        (pictures.contrast, halves(90, 90), 0.0),
        (pictures.saturation, picture([RED, GREEN], [WHITE, BLACK]), 0.5),
        (pictures.saturation, picture([PINK, PINK]), 128 / 255),
        (pictures.hue_entropy, picture([RED, GREEN]), math.log(2) / math.log(24)),
        (pictures.hue_entropy, picture([RED, WHITE]), 0.0),
        (pictures.hue_entropy, halves(0, 255), 0.0),
        (pictures.sharpness, halves(90, 90), 0.0),
        (pictures.edge_strength, halves(0, 255, side=64), 1 / 64),  # one step in each row of 64 pixels
        (pictures.edge_strength, halves(90, 90), 0.0),
        (pictures.symmetry, halves(0, 255), -1.0),
        (pictures.symmetry, STRIPES.rotate(90), 1.0),
        (pictures.symmetry, halves(90, 90), 1.0),
        (pictures.text_area, halves(0, 255), 0.0),
        (texts.text_length, "two words", 9),
        (texts.word_count, " two\n words ", 2),
        (texts.repetition, "abcdabcd", 1 / 5),  # abcd bcda cdab dabc abcd
        (texts.repetition, "aaaaaa", 2 / 3),
        (texts.repetition, "abc", math.nan),
        (texts.distinct_words, "The cat and the dog", 4 / 5),
        (texts.distinct_words, "  ", math.nan),
        (texts.digits, "7 + 5 = 12", 4 / 6),
        (texts.digits, "", math.nan),
        (texts.punctuation, "7 + 5 = 12", 2 / 6),
        (texts.punctuation, "so, what?", 2 / 8),
        (texts.capitals, "No 7 ÄÖ", 3 / 4),
        (texts.capitals, "7 中文", math.nan),
        (texts.latin_letters, "ab 中文 é", 3 / 5),
        (texts.latin_letters, "нет", 0),
        (texts.latin_letters, "7!", math.nan),
    ],
)
def test_numbers_by_hand(statistic: Statistic, output: Any, number: float) -> None:
    assert one(statistic, output) == pytest.approx(number, abs=1e-6, nan_ok=True)


def test_episodes() -> None:
    told = {"length": 12, "mean_action": 0.25, "action_changes": 0.5}
    functions = (episodes.episode_length, episodes.mean_action, episodes.action_changes)
    assert [one(function, "", **told) for function in functions] == [12, 0.25, 0.5]
    assert all(math.isnan(one(function, "return 3 in 3 steps")) for function in functions)


@pytest.mark.parametrize("name", SPECS)
def test_what_it_cannot_measure_has_no_number(name: str) -> None:
    statistic = create("reward", name)
    for output in (None, 7, Image.new("RGB", (8, 8)) if "text" in SPECS[name].accepts else "a text"):
        assert math.isnan(one(statistic, output))


def test_a_blur_takes_sharpness_away_and_a_change_of_contrast_does_not() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (96, 96), dtype=np.uint8)
    sharp = Image.fromarray(noise)
    soft = sharp.resize((24, 24), Image.Resampling.BOX).resize((96, 96), Image.Resampling.BICUBIC)
    faint = Image.fromarray(noise // 4 + 90)
    levels = [one(pictures.sharpness, shown.convert("RGB")) for shown in (sharp, soft, faint)]
    assert levels[0] == pytest.approx(8 / 9, abs=0.03)  # a blur of 9 pixels leaves a ninth of what is all noise
    assert levels[1] < levels[0] - 0.2
    assert levels[2] == pytest.approx(levels[0], abs=0.02)


def test_text_area_sees_letters_and_neither_shapes_nor_noise() -> None:
    page = Image.new("RGB", (512, 512), "white")
    pen = ImageDraw.Draw(page)
    for y in range(4, 250, 24):
        pen.text((4, y), "The quick brown fox jumps over the lazy dog and " * 2, fill="black", font_size=16)
    assert 0.12 < one(pictures.text_area, page) < 0.5  # the upper half has lines of text
    shapes = Image.new("RGB", (512, 512), "white")
    ImageDraw.Draw(shapes).ellipse((100, 100, 400, 400), fill="navy")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8))
    assert one(pictures.text_area, shapes) < 0.02
    assert one(pictures.text_area, noise) == 0


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (15, 17)])
@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if "image" in spec.accepts])
def test_small_and_narrow_pictures(name: str, size: tuple[int, int]) -> None:
    low, high = SPECS[name].range
    number = one(create("reward", name), Image.new("RGB", size, "navy"))
    assert low is not None
    assert high is not None
    assert low <= number <= high


def test_a_large_picture_takes_milliseconds() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), dtype=np.uint8)
    samples = [Sample(prompt=Prompt(""), output=Image.fromarray(noise), group=0)]
    statistics = [create("reward", name) for name, spec in SPECS.items() if "image" in spec.accepts]
    begin = time.process_time()
    for statistic in statistics:
        statistic(samples)
    assert time.process_time() - begin < 0.3  # 0.02 s on one quiet core


def test_every_statistic_has_two_words() -> None:
    assert len(SPECS) == 18
    for spec in SPECS.values():
        assert spec.statistic is not None
        lower, higher = spec.statistic
        assert lower != higher


def checks() -> Iterator[Check]:
    for name in ("text-area", "repetition", "action-changes"):
        spec: RewardSpec = SPECS[name]
        yield from reward_checks(create("reward", name), spec=spec, module="grpokit_diagnosis.plugin")


@parametrize_with_checks(checks())
def test_the_contract(check: Check) -> None:
    check()
