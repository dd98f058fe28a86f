"""The reward on pictures: what it reads, what it keeps, what it refuses."""

import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

import grpokit
from grpokit import PluginError, Prompt, RewardError, Sample, UsageError
from grpokit_ocr import rapid
from grpokit_ocr.rapid import LineReader
from grpokit_ocr.reward import OCRReward
from grpokit_ocr.targets import unscorable

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
WORD_LIST = (
    "river stone maple orbit candle forest silver planet bridge window garden thunder pepper marble rocket violin "
    "island purple copper hammer market puzzle camera desert engine flower guitar honest jacket kettle ladder magnet "
    "needle oyster pencil quartz ribbon saddle tunnel umbrella valley walnut yellow zipper anchor basket cactus dragon "
    "ember falcon glacier harbor insect jungle kitten lemon mirror nutmeg ocean parrot"
)
WORDS = WORD_LIST.split()


def draw(
    text: str,
    *,
    height: int = 32,
    size: tuple[int, int] | None = None,
    font: str = "DejaVuSansMono-Bold.ttf",
    ink: str = "black",
    paper: str = "white",
) -> Image.Image:
    """A line of text whose letters take 0.7 of `height`, tightly cut or in the middle of `size`."""
    face = ImageFont.truetype(FONTS / font, round(0.7 * height))
    left, top, right, bottom = face.getbbox(text)
    width, tall = size or (int(right - left) + 8, height)
    image = Image.new("RGB", (width, tall), paper)
    at = ((width - (right - left)) // 2 - left, (tall - (bottom - top)) // 2 - top)
    ImageDraw.Draw(image).text(at, text, fill=ink, font=face)
    return image


def noisy(image: Image.Image, sigma: float, seed: int = 0) -> Image.Image:
    pixels = np.asarray(image) + np.random.default_rng(seed).normal(0, sigma, (image.height, image.width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def sample(output: object, text: str = 'the word "river"') -> Sample:
    return Sample(prompt=Prompt(text=text), output=output, group=0)


@pytest.fixture(scope="module")
def reader() -> LineReader:
    return LineReader(threads=2)


@pytest.fixture
def reward(reader: LineReader) -> OCRReward:
    return OCRReward(engine=reader)


class Recorder:
    """An engine that reads a picture's width, and counts what it was asked to read."""

    def __init__(self):
        self.asked: list[tuple[int, int]] = []

    def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
        self.asked += [image.size for image in images]
        assert all(image.mode == "RGB" for image in images)
        return [[str(image.width)] for image in images]


CASES = {
    "16 px": {"height": 16},
    "16 px, noise": {"height": 16, "noise": 25},
    "32 px": {},
    "small on a wide canvas, noise": {"height": 20, "size": (160, 32), "noise": 15},
    "white on navy": {"height": 24, "size": (180, 40), "ink": "white", "paper": "navy", "noise": 10},
    "sans": {"height": 24, "font": "DejaVuSans.ttf"},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_rendered_words_are_read(reward, case):
    case = dict(case)
    sigma = case.pop("noise", 0)
    pictures = [noisy(draw(word, **case), sigma, i) if sigma else draw(word, **case) for i, word in enumerate(WORDS)]
    scores = reward([sample(p, f'the word "{w}"') for p, w in zip(pictures, WORDS, strict=True)])
    assert sum(score == 1 for score in scores) / len(WORDS) >= 0.97


def test_phrases_are_read_with_their_spaces(reward):
    phrases = [" ".join(WORDS[i : i + 3]) for i in range(0, 30, 3)]
    assert reward([sample(draw(p, height=24), f'"{p}"') for p in phrases]) == [1.0] * 10


def test_a_dash_is_read_as_any_dash(reward):
    drawn = ["Open 9–5", "Open 9-5", "Open 95"]
    assert reward([sample(draw(text), '"Open 9–5"') for text in drawn]) == [1, 1, 7 / 8]


@pytest.mark.parametrize(
    ("text", "options", "can"),
    [
        ("no quotes", {}, False),
        ('"tea"', {}, True),
        ('"24"', {}, True),
        ('"ÉÇÜ"', {}, True),
        ('"МОСКВА"', {}, False),  # which it reads as MOCKBA
        ('"МОСКВА" and "tea"', {}, True),  # one of the two tells samples apart
        ('"绿茶"', {}, True),
        ('"!?"', {}, True),
        ('"МОСКВА"', {"engine": "tesseract"}, False),
        ('"ÉÇÜ"', {"engine": "tesseract"}, True),
        ('"МОСКВА"', {"engine": "easyocr", "languages": ["ru"]}, True),
        ('"МОСКВА"', {"engine": Recorder()}, True),
        ('"МОСКВА"', {"weights_path": "nowhere.onnx"}, True),  # building the reward says what is wrong
    ],
)
def test_prompts_that_no_picture_can_fulfil(text, options, can):
    assert (unscorable(Prompt(text=text), **options) == "") == can


def test_the_score_falls_with_each_wrong_letter_drawn(reward):
    drawn = ["thunder", "thunter", "thanter", "chanter", "chapter"]
    scores = reward([sample(draw(word), 'the word "thunder"') for word in drawn])
    assert scores == pytest.approx([1, 6 / 7, 5 / 7, 4 / 7, 3 / 7])


def test_extra_text_in_the_picture_costs_unless_switched_off(reader):
    picture = sample(draw("tea shop"), 'the word "tea"')
    assert OCRReward(engine=reader)([picture]) == [3 / 8]
    assert OCRReward(engine=reader, extra_text_penalty=0)([picture]) == [1.0]


@pytest.mark.parametrize("colour", ["white", "black", (120, 30, 200)])
def test_a_blank_picture_scores_zero(reward, colour):
    assert reward([sample(Image.new("RGB", (128, 32), colour))]) == [0.0]


def test_a_scribble_scores_about_zero(reward):
    rng = random.Random(0)
    scores = []
    for _ in range(8):
        image = Image.new("RGB", (128, 32), "white")
        ImageDraw.Draw(image).line([(rng.randrange(128), rng.randrange(32)) for _ in range(8)], fill="black", width=2)
        scores.append(reward([sample(image, 'the word "umbrella"')])[0])
    assert max(scores) <= 0.25


def test_a_batch_of_one_equals_a_batch_of_many_in_any_order(reader):
    pictures = [draw(word, height=h) for word, h in zip(WORDS[:8], [16, 24, 32, 48] * 2, strict=True)]
    pictures += [draw(" ".join(WORDS[:8])), Image.new("RGB", (64, 32), "white"), noisy(draw("lemon"), 60)]
    together = reader.recognise(pictures)
    assert [reader.recognise([p])[0] for p in pictures] == together
    order = random.Random(1).sample(range(len(pictures)), len(pictures))
    assert reader.recognise([pictures[i] for i in order]) == [together[i] for i in order]
    assert LineReader(threads=1, batch_size=3).recognise(pictures) == together


def test_inputs_are_left_alone(reward):
    picture = draw("river").convert("RGBA")
    before = picture.tobytes()
    reward([sample(picture)])
    assert (picture.mode, picture.tobytes()) == ("RGBA", before)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "1", "RGBA", "CMYK", "I;16"])
def test_other_modes_are_read(reward, mode):
    rgb = draw("river")
    picture = (
        Image.fromarray(np.asarray(rgb.convert("L")).astype(np.uint16) * 257) if mode == "I;16" else rgb.convert(mode)
    )
    assert picture.mode == mode
    assert reward([sample(picture)]) == [1.0]


def test_transparent_parts_are_white(reward):
    alpha = Image.eval(draw("river").convert("L"), lambda value: 255 - value)
    picture = Image.new("RGBA", alpha.size, "black")  # black ink under an alpha channel that cuts out the letters
    picture.putalpha(alpha)
    assert reward([sample(picture)]) == [1.0]


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 40), (300, 1), (3000, 2)])
def test_tiny_pictures_do_not_fail(reward, size):
    speckled = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    (score,) = reward([sample(speckled)])
    assert 0 <= score <= 1


def test_huge_and_very_wide_pictures_are_read(reward):
    assert reward([sample(draw("river", height=200, size=(3000, 2000)))]) == [1.0]
    assert reward([sample(draw("river", height=20, size=(4000, 24)))]) == [1.0]
    (score,) = reward([sample(draw("river " * 40, height=16), '"river"')])
    assert 0 <= score < 0.2


def test_rows_that_quote_nothing_are_nan_and_not_read():
    engine = Recorder()
    samples = [
        sample(Image.new("L", (10, 5)), "a cup"),
        sample(Image.new("L", (20, 5)), '"20"'),
        sample(Image.new("L", (30, 5)), '""'),
    ]
    scores = OCRReward(engine=engine)(samples)
    assert math.isnan(scores[0])
    assert scores[1] == 1.0
    assert math.isnan(scores[2])
    assert engine.asked == [(20, 5)]
    assert OCRReward(engine=engine)([]) == []


def test_a_picture_is_read_once():
    engine = Recorder()
    reward = OCRReward(engine=engine, cache_size=2)
    first, second, third = (sample(Image.new("RGB", (width, 4)), '"10"') for width in (10, 20, 30))
    assert reward([first, second, first]) == reward([first, second, first]) == [1.0, 0.5, 1.0]
    assert engine.asked == [(10, 4), (20, 4)]
    reward([first])  # now the second is the one unused for longest
    reward([third])
    reward([first])
    assert len(engine.asked) == 3
    reward([second])
    assert engine.asked[3:] == [(20, 4)]


def test_the_cache_tells_sizes_and_pixels_apart_and_can_be_off():
    engine = Recorder()
    reward = OCRReward(engine=engine, cache_size=0)
    wide, tall = Image.new("RGB", (8, 2)), Image.new("RGB", (2, 8))  # the same bytes
    assert reward([sample(wide, '"8"'), sample(tall, '"2"')]) == [1.0, 1.0]
    reward([sample(wide), sample(wide)])
    assert engine.asked == [(8, 2), (2, 8), (8, 2)]


def test_a_cached_score_is_the_score(reader):
    reward = OCRReward(engine=reader)
    samples = [sample(draw(word), '"thunder"') for word in WORDS[:5]]
    assert reward(samples) == reward(samples) == OCRReward(engine=reader, cache_size=0)(samples)


@pytest.mark.parametrize(("output", "named"), [("river", "str"), (None, "NoneType"), (np.zeros((8, 8, 3)), "ndarray")])
def test_an_output_of_the_wrong_type_is_refused(output, named):
    with pytest.raises(
        RewardError, match=rf"Expected a PIL\.Image\.Image as the output of row 1 \(reward 'ocr'\), got {named}"
    ):
        OCRReward(engine=Recorder())([sample(Image.new("L", (4, 4))), sample(output)])


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_picture_without_a_known_white_is_refused(mode):
    with pytest.raises(RewardError, match=rf"row 0 \(reward 'ocr'\) has the mode '{mode}'.*Convert it first"):
        OCRReward(engine=Recorder())([sample(Image.new(mode, (4, 4)))])


@pytest.mark.parametrize(
    "parameters",
    [{"extra_text_penalty": 1.5}, {"extra_text_penalty": -0.1}, {"cache_size": -1}, {"threads": 0}, {"batch_size": 0}],
)
def test_parameters_out_of_range_are_refused(parameters):
    with pytest.raises(UsageError, match=next(iter(parameters))):
        OCRReward(**parameters)


def test_the_registry_builds_the_reward():
    reward = grpokit.create("reward", "ocr", {"threads": 1, "extra_text_penalty": 0.5})
    assert isinstance(reward, OCRReward)
    assert reward.extra_text_penalty == 0.5
    with pytest.raises(PluginError, match="did you mean 'extra_text_penalty'"):
        grpokit.create("reward", "ocr", {"extra_text_penalti": 1})


def test_a_missing_engine_names_the_install_command(monkeypatch):
    monkeypatch.setattr(rapid.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"needs the Python module 'rapidocr'.*Run: pip install 'grpokit\[ocr\]'"):
        grpokit.create("reward", "ocr")


def test_a_missing_dependency_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "grpokit_ocr.rapid")
    with pytest.raises(PluginError, match=r"needs the Python module 'onnxruntime'.*Run: pip install 'grpokit\[ocr\]'"):
        grpokit.create("reward", "ocr")


def test_each_reward_has_a_cache_of_its_own(reader):
    class Deaf:
        def recognise(self, images: Sequence[Image.Image]) -> list[list[str]]:
            return [[] for _ in images]

    hears, deaf = OCRReward(engine=reader), OCRReward(engine=Deaf())
    picture = sample(draw("river"))
    assert [hears([picture]), deaf([picture]), hears([picture])] == [[1.0], [0.0], [1.0]]


def test_announcing_the_reward_imports_nothing_heavy_and_reading_needs_no_opencv():
    code = """
import sys
import grpokit_ocr.plugin
(spec,) = grpokit_ocr.plugin.grpokit_rewards()
assert spec.name == "ocr" and spec.range == (0, 1)
assert not {"numpy", "PIL", "onnxruntime", "rapidfuzz", "torch"} & set(sys.modules), sorted(sys.modules)
from PIL import Image
from grpokit_ocr.reward import OCRReward
image = Image.new("RGB", (64, 16), "white")
image.paste("black", (8, 4, 40, 12))
assert isinstance(OCRReward(threads=1).read([image]), list)
assert not {"rapidocr", "cv2", "torch", "easyocr", "tesserocr"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
