"""The engine rapidocr: whole pages with its detector, its languages, and models that cannot be used."""

import random
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageDraw, ImageFont

from grpokit import Prompt, Sample, UsageError
from grpokit_ocr import alphabets, rapid
from grpokit_ocr.engine import build
from grpokit_ocr.rapid import LineReader, PageReader
from grpokit_ocr.reward import OCRReward

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
MENU = ["Grand opening", "fresh bread", "and coffee", "open daily"]


def page(lines: list[str], *, size: tuple[int, int] = (480, 360), letters: int = 28, background=None) -> Image.Image:
    """Lines below each other, each further right than the one before; white with a rim on a background."""
    image = Image.new("RGB", size, "white") if background is None else background.resize(size)
    face = ImageFont.truetype(FONTS / "DejaVuSans-Bold.ttf", letters)
    ink = {"fill": "black"} if background is None else {"fill": "white", "stroke_width": 3, "stroke_fill": "black"}
    for i, line in enumerate(lines):
        at = (letters + i * letters // 2, letters // 2 + 2 * i * letters)
        ImageDraw.Draw(image).text(at, line, font=face, **ink)
    return image


@pytest.fixture(scope="module")
def reader() -> PageReader:
    return build("rapidocr", layout="page", threads=2)


def test_lines_of_a_page_are_read_from_top_to_bottom(reader):
    assert reader.recognise([page(MENU)]) == [MENU]


@pytest.mark.parametrize("photo", ["astronaut", "coffee"])
def test_text_on_a_photograph_is_found(reader, photo):
    background = Image.fromarray(getattr(skimage.data, photo)())
    assert reader.recognise([page(MENU[:2], background=background, letters=36)]) == [MENU[:2]]


@pytest.mark.parametrize("angle", [-12, 8])
def test_slanting_lines_keep_their_order(reader, angle):
    slanting = page(MENU).rotate(angle, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    assert reader.recognise([slanting]) == [MENU]


def test_small_pages_are_enlarged(reader):
    assert reader.recognise([page(["tea", "shop"], size=(120, 60), letters=14)]) == [["tea", "shop"]]


def test_pieces_side_by_side_are_one_line(reader):
    image = page([], size=(640, 200))
    face = ImageFont.truetype(FONTS / "DejaVuSans-Bold.ttf", 30)
    for text, at in (("sale", (440, 22)), ("summer", (30, 20)), ("today", (30, 120))):
        ImageDraw.Draw(image).text(at, text, font=face, fill="black")
    assert reader.recognise([image]) == [["summer\tsale", "today"]]


def below_each_other(word: str, *, letters: int = 48, gap: int = 6) -> Image.Image:
    image = Image.new("RGB", (200, 480), "white")
    face, y = ImageFont.truetype(FONTS / "DejaVuSans.ttf", letters), 20
    for letter in word:
        left, top, right, bottom = face.getbbox(letter)
        ImageDraw.Draw(image).text((90 - (left + right) // 2, y - top), letter, font=face, fill="black")
        y += round(bottom - top) + gap
    return image


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "picture"),
    [
        ("river boat", page(["river boat"], size=(300, 60)).transpose(Image.Transpose.ROTATE_90)),
        ("river boat", page(["river boat"], size=(300, 60)).transpose(Image.Transpose.ROTATE_270)),
        ("river", below_each_other("river")),
        ("BREAD", below_each_other("BREAD", letters=64, gap=30)),  # found as five lines
    ],
    ids=["up", "down", "letters", "far apart"],
)
def test_text_that_does_not_lie_is_read(reader, text, picture):
    sample = Sample(prompt=Prompt(text=f'a sign "{text}"'), output=picture, group=0)
    assert OCRReward(engine=reader)([sample]) == OCRReward(threads=2)([sample]) == [1.0]


def test_a_letter_that_is_taller_than_wide_stands_upright():
    """Turned, the reader is sure to see an underscore."""
    images = [below_each_other(letter) for letter in "Il"]
    assert LineReader(threads=2).recognise(images) == [["1"], ["1"]]


def test_a_page_that_one_line_cannot_read_scores_as_a_page(reader):
    sample = Sample(prompt=Prompt(text='a menu with "fresh bread" and "open daily"'), output=page(MENU[1:]), group=0)
    assert OCRReward(engine=reader, extra_text_penalty=0)([sample]) == [1.0]
    # "and coffee" is too much: beside "fresh bread" it leaves 11 of 22 letters, beside "open daily" only 10 of 21.
    assert OCRReward(engine=reader)([sample]) == pytest.approx([(1 + 11 / 22) / 2])
    assert OCRReward(threads=1)([sample])[0] < 0.3


@pytest.mark.slow
def test_a_batch_of_one_equals_a_batch_of_many_in_any_order(reader):
    photo = Image.fromarray(skimage.data.coffee())
    pages = [
        page(MENU),
        Image.new("RGB", (64, 64), "white"),
        page(MENU[:2], background=photo),
        page(["tea"], size=(90, 40), letters=16),
    ]
    together = reader.recognise(pages)
    assert together[1] == []
    assert [reader.recognise([one])[0] for one in pages] == together
    order = random.Random(0).sample(range(len(pages)), len(pages))
    assert reader.recognise([pages[i] for i in order]) == [together[i] for i in order]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 40), (300, 1), (3000, 2), (2, 3000)])
def test_odd_sizes_do_not_fail(reader, size):
    speckled = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    (lines,) = reader.recognise([speckled])
    assert len(lines) <= 1


def test_textures_are_not_taken_for_words(reader):
    photos = [Image.fromarray(getattr(skimage.data, name)()).resize((384, 384)) for name in ("rocket", "chelsea")]
    read = reader.recognise([photo.convert("RGB") for photo in photos])
    assert sum(len(line) for lines in read for line in lines) <= 2


def test_what_a_line_says_comes_with_its_confidence():
    reader = LineReader(threads=1)
    face = ImageFont.truetype(FONTS / "DejaVuSans.ttf", 28)
    word = Image.new("RGB", (100, 40), "white")
    ImageDraw.Draw(word).text((8, 2), "river", font=face, fill="black")
    (text, sure), nothing = reader.read([word, Image.new("RGB", (100, 40), "white")])
    assert text == "river"
    assert 0.9 < sure <= 1
    assert nothing == ("", 0.0)


@pytest.mark.parametrize(
    ("text", "language"),
    [("Straße über Köln", "de"), ("crêpe à la façon", "fr"), ("niño corazón", "es"), ("żółty święto", "pl")],
)
def test_letters_beyond_a_to_z_are_read(text, language):
    face = ImageFont.truetype(FONTS / "DejaVuSans.ttf", 28)
    image = Image.new("RGB", (400, 48), "white")
    ImageDraw.Draw(image).text((8, 4), text, font=face, fill="black")
    assert LineReader(threads=1, languages=[language]).recognise([image]) == [[text]]


def test_languages_are_held_against_the_models_letters():
    LineReader(threads=1, languages=["en", "ch", "japan", "tr"])
    with pytest.raises(UsageError, match=r"'ru' needs letters that it lacks \(абвг.*small\.onnx' reads: .*de, en, .*"):
        LineReader(threads=1, languages=["en", "ru"])
    with pytest.raises(UsageError, match=r"'xx' is not known to it.*For another, give a recogniser"):
        LineReader(threads=1, languages=["xx"])


def test_missing_letters_are_small_and_capital_ones():
    ascii_letters = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert alphabets.missing_letters("en", ascii_letters) == ""
    assert alphabets.missing_letters("en", ascii_letters - {"q"}) == "q"
    assert alphabets.missing_letters("de", ascii_letters) == "äöüßÄÖÜ"
    assert alphabets.missing_letters("ch", ascii_letters | set("汉语简体")) == "中国"


def test_a_model_that_is_missing_or_no_recogniser_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no OCR model at '.*nowhere\.onnx'"):
        OCRReward(weights_path=tmp_path / "nowhere.onnx")
    with pytest.raises(UsageError, match="should list its characters"):
        OCRReward(weights_path=rapid.packaged_model("det"))
    torn = tmp_path / "torn.onnx"
    torn.write_bytes(b"not a model")
    with pytest.raises(UsageError, match=r"torn\.onnx' is no ONNX model that onnxruntime can read"):
        OCRReward(weights_path=torn)


def test_another_models_file_is_used():
    path = rapid.packaged_model()
    face = ImageFont.truetype(FONTS / "DejaVuSans.ttf", 28)
    image = Image.new("RGB", (120, 40), "white")
    ImageDraw.Draw(image).text((8, 2), "maple", font=face, fill="black")
    assert OCRReward(weights_path=str(path), threads=1).read([image]) == [["maple"]]


def test_only_pages_need_opencv():
    code = """
import sys
from grpokit_ocr.engine import build
build("rapidocr", threads=1)
assert not {"cv2", "rapidocr"} & set(sys.modules)
sys.modules["cv2"] = None
from grpokit import PluginError
try:
    build("rapidocr", layout="page", threads=1)
except PluginError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == (
        "The OCR engine 'rapidocr' needs the Python module 'cv2', which is not installed. Run: pip install "
        "'grpokit[ocr]'\n"
    )
