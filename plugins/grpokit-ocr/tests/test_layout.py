"""The box around ink and the reading order, on pictures and boxes whose numbers were worked out by hand."""

import doctest

import pytest
from PIL import Image, ImageDraw

from grpokit_ocr import layout
from grpokit_ocr.layout import enlargement, in_reading_order, ink_box


def test_doctests():
    assert doctest.testmod(layout).failed == 0


def test_the_ink_box_is_the_word_with_a_margin():
    image = Image.new("RGB", (100, 60), "white")
    ImageDraw.Draw(image).rectangle((20, 10, 79, 49), fill="black")  # 60 x 40, margin 5, and 1 from the 3 x 3 mean
    assert ink_box(image) == (14, 4, 86, 56)
    huge = image.resize((4000, 2400), Image.Resampling.NEAREST)
    assert ink_box(huge) == pytest.approx((600, 200, 3400, 2200), abs=6)  # margin 1600 / 8
    assert ink_box(Image.new("RGB", (100, 60), "gray")) is None
    assert ink_box(Image.new("RGB", (0, 60))) is None


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([], []),
        ([((0, 0, 9, 9), "  ")], []),
        ([((0, 20, 9, 30), "two"), ((50, 0, 99, 10), "one")], ["one", "two"]),
        ([((50, 0, 99, 10), "right"), ((0, 1, 40, 11), "left")], ["left\tright"]),
        # Of ten rows six are shared with the line above: one line. Four: two lines.
        ([((0, 0, 9, 10), "a"), ((20, 4, 29, 14), "b")], ["a\tb"]),
        ([((0, 0, 9, 10), "a"), ((20, 6, 29, 16), "b")], ["a", "b"]),
        # A small word beside large letters; the line below starts further left.
        ([((60, 12, 90, 22), "off"), ((10, 0, 50, 30), "50%"), ((5, 40, 80, 60), "today")], ["50%\toff", "today"]),
        # Decisions: each overlaps the next one, yet the third is below the first.
        ([((0, 0, 9, 10), "a"), ((20, 4, 29, 14), "b"), ((40, 8, 49, 18), "c")], ["a\tb", "c"]),
        # From right to left, as most of a line's letters run.
        ([((0, 0, 40, 10), "עולם"), ((50, 1, 99, 11), "שלום")], ["שלום\tעולם"]),
        ([((0, 0, 40, 10), "50"), ((50, 1, 99, 11), "مرحبا")], ["مرحبا\t50"]),
        ([((0, 0, 40, 10), "cafe"), ((50, 1, 99, 11), "גן")], ["cafe\tגן"]),
        # Upright columns of Chinese are read from the right; those that lie are not, nor are Latin ones.
        ([((0, 0, 10, 40), "五元"), ((20, 0, 30, 50), "绿茶好")], ["绿茶好\t五元"]),
        ([((0, 0, 30, 20), "五元"), ((40, 0, 80, 20), "绿茶好")], ["五元\t绿茶好"]),
        ([((0, 0, 10, 40), "OPEN"), ((20, 0, 30, 40), "DAILY")], ["OPEN\tDAILY"]),
    ],
)
def test_the_reading_order(pieces, lines):
    assert in_reading_order(pieces) == lines
    assert in_reading_order(pieces[::-1]) == lines


def test_small_pictures_are_enlarged_within_bounds():
    assert enlargement((100, 64), side=256, most=4) == 4
    assert enlargement((900, 32), side=256, most=4) == 4
    assert enlargement((128, 400), side=256, most=4) == 2
    assert enlargement((512, 256), side=256, most=4) == enlargement((512, 512), side=256, most=4) == 1
