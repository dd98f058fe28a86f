"""The evaluation `text-rendering`: its prompts, word accuracy by hand, and the whole command on real pictures."""

import json
import math
from collections import Counter

import matplotlib
import pytest
from PIL import Image, ImageDraw, ImageFont

from command_line import Call
from grpokit import Prompt, Sample, UsageError
from grpokit.builtin.quotes import quotations
from grpokit_ocr.evaluations import prompts
from grpokit_ocr.reward import OCRReward
from grpokit_ocr.targets import unscorable
from grpokit_ocr.text_scoring import word_accuracy


def test_prompts_of_each_language_and_length():
    found = prompts()
    assert Counter((p.meta["language"], p.meta["length"]) for p in found) == {
        (language, length): 5 for language in ("en", "zh") for length in ("word", "words", "sentence", "lines")
    }
    for prompt in found:
        spans = quotations(prompt.text)
        assert (len(spans) > 1) == (prompt.meta["length"] == "lines"), prompt.text
        if prompt.meta["language"] == "en":
            assert (len(spans[0].split()) == 1) == (prompt.meta["length"] == "word") or len(spans) > 1
        assert unscorable(prompt) == ""  # rapidocr's model writes all of it
    assert "can write no letter" in unscorable(found[-1], engine="easyocr")


@pytest.mark.parametrize(
    ("text", "lines", "wanted"),
    [
        ('the word "river"', ["RIVER"], 1.0),
        ('the word "river"', ["rivet"], 0.0),
        ('the word "river"', [], 0.0),
        ('"fresh bread"', ["bread", "and fresh fish"], 1.0),  # further words and the order do not count
        ('"to be or not to be"', ["to be or not"], 4 / 6),  # each as often as it is quoted
        ('"Friday 8 July" and "Old Town"', ["Friday 9 July", "0ld Town"], 3 / 5),
        ('"a café, it’s open"', ["A CAFÉ it's open!"], 1.0),
        ("招牌“今日特价”", ["今日 特介"], 3 / 4),
        ("招牌“茶，五元”", ["茶", "五元"], 1.0),  # the comma is no word
        ('"SALE 特价"', ["SALE特價"], 2 / 3),
        ('"?!"', ["?!"], math.nan),
        ("no quotes", ["no"], math.nan),
    ],
)
def test_word_accuracy_by_hand(text, lines, wanted):
    assert word_accuracy(text, lines) == pytest.approx(wanted, nan_ok=True)


def page(*lines):
    """A picture with lines of text one below the other."""
    picture = Image.new("RGB", (420, 60 * len(lines) + 40), "white")
    font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans-Bold.ttf", 34)
    for number, line in enumerate(lines):
        ImageDraw.Draw(picture).text((20, 20 + 60 * number), line, fill="navy", font=font)
    return picture


@pytest.mark.slow
def test_both_measures_read_several_lines():
    prompt = Prompt(text='A poster with three lines: "SUMMER NIGHTS", "Friday 8 July", "Old Town Square"')
    pictures = [
        page("SUMMER NIGHTS", "Friday 8 July", "Old Town Square"),
        page("SUMMER NIGHTS", "Friday 8 July"),
        page("SUMMER LIGHTS", "Friday 8 July", "Old Town Square"),
    ]
    samples = [Sample(prompt=prompt, output=picture, group=0) for picture in pictures]
    words = OCRReward(layout="page", measure="words", threads=2)(samples)
    ned = OCRReward(layout="page", threads=2)(samples)
    assert words == pytest.approx([1, 5 / 8, 7 / 8])
    assert ned == pytest.approx([1, 2 / 3, (12 / 13 + 2) / 3])
    with pytest.raises(UsageError, match="measure must be one of text, words, got 'letters'"):
        OCRReward(measure="letters")


def test_the_command_names_the_engine_and_refuses_what_a_policy_cannot_draw(call: Call):
    data = 'data={use: "grpokit_toy.data:glyph_prompts"}'
    done = call("evaluate", "toy-glyph", "--with", "text-rendering", data, "by=[]", "samples=1", "--limit", 4, "--json")
    answer = json.loads(done.out)
    assert (answer["prompts"], set(answer["before"])) == (4, {"word-accuracy", "ned"})
    assert 0 <= answer["before"]["ned"]["mean"] < 1
    assert answer["scored_by"]["word-accuracy"] == "{use: ocr, engine: rapidocr, layout: page, measure: words}"
    refused = call("evaluate", "toy-glyph", "--with", "text-rendering")
    assert refused.code == 2
    assert "toy-glyph draws words of 1 to 5 letters; 'URGENT' has 6" in refused.err
    assert "Evaluate another policy, or give prompts that this one can draw with --prompts FILE." in refused.err
    wrong = call("evaluate", "toy-lm", "--with", "text-rendering")
    assert "evaluation text-rendering, line 6: rewards.0: The reward 'ocr' scores pictures" in wrong.err


def test_what_an_engine_cannot_write_is_named(call: Call):
    words = ["rewards=[{use: ocr, engine: easyocr}]", "--limit", 21]
    done = call("evaluate", "toy-glyph", "--with", "text-rendering", *words)
    assert "the reward 'ocr' cannot score 1 of 21 held-out prompts, first" in done.err
    assert "the engine easyocr can write no letter of '茶'. Name languages" in done.err
