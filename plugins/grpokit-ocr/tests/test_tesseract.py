"""The engine tesseract: its messages everywhere; what it reads where the language data of English is.

The data is no part of tesserocr. It is looked for in $TESSDATA_PREFIX and where systems put it.
"""

import random
import threading
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from grpokit import PluginError, Prompt, Sample, UsageError, create
from grpokit_ocr.engine import build
from grpokit_ocr.reward import OCRReward

tesserocr = pytest.importorskip("tesserocr")
pytestmark = pytest.mark.slow

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
WORDS = ["river", "Stone", "MAPLE", "orbit", "candle", "Forest", "SILVER", "planet", "bridge", "Window"]


def draw(*lines: str, height: int = 32, size: tuple[int, int] | None = None, ink="black", paper="white") -> Image.Image:
    face = ImageFont.truetype(FONTS / "DejaVuSans.ttf", round(0.7 * height))
    width = max(round(face.getlength(line)) for line in lines) + 16
    image = Image.new("RGB", size or (width, height * len(lines)), paper)
    for i, line in enumerate(lines):
        ImageDraw.Draw(image).text((8, 2 + i * height), line, font=face, fill=ink)
    return image


def english() -> bool:
    try:
        build("tesseract", threads=1)
    except UsageError:
        return False
    return True


reads = pytest.mark.skipif(not english(), reason="needs eng.traineddata (set TESSDATA_PREFIX to its folder)")


def test_missing_language_data_ends_in_one_message(tmp_path):
    (tmp_path / "osd.traineddata").write_bytes(b"")
    with pytest.raises(UsageError) as caught:
        build("tesseract", languages=["chi_sim", "eng"], weights_path=tmp_path)
    assert str(caught.value) == (
        "The OCR engine 'tesseract' needs language data, chi_sim.traineddata and eng.traineddata in one folder. Looked "
        f"in: '{tmp_path}'; found osd. Fetch it with: curl -LO "
        "https://github.com/tesseract-ocr/tessdata_fast/raw/main/chi_sim.traineddata -- and give its folder as "
        "weights_path; or install your system's package (Debian: apt-get install tesseract-ocr-chi-sim)."
    )


def test_the_folder_of_the_environment_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSDATA_PREFIX", str(tmp_path / "mine"))
    with pytest.raises(UsageError, match=r"Looked in: '.*/mine', '/usr/share/tesseract-ocr/5/tessdata', .*; found "):
        build("tesseract", languages=["xyz"])


def test_torn_language_data_ends_in_one_message(tmp_path):
    (tmp_path / "eng.traineddata").write_bytes(b"torn")
    with pytest.raises(UsageError, match=r"cannot use the language data of eng in '.*A file is torn, or made for"):
        build("tesseract", weights_path=tmp_path)


@pytest.mark.parametrize("code", ["../eng", "", "eng+deu", "a b"])
def test_what_is_no_language_code_is_refused(tmp_path, code):
    with pytest.raises(UsageError, match="is no language code of Tesseract's; expected one such as eng or chi_sim"):
        build("tesseract", languages=[code], weights_path=tmp_path)


def test_a_gpu_is_refused():
    with pytest.raises(UsageError, match="engine 'tesseract' runs on the CPU, got device 'cuda:0'"):
        build("tesseract", device="cuda:0")


@reads
@pytest.mark.parametrize("height", [16, 32, 64])
@pytest.mark.parametrize("canvas", [None, (300, 90)])
def test_words_are_read(height, canvas):
    pictures = [draw(word, height=height, size=canvas) for word in WORDS]
    assert build("tesseract", threads=2).recognise(pictures) == [[word] for word in WORDS]


@reads
def test_light_letters_on_dark_and_noise_are_read():
    pictures = [draw(word, ink="white", paper="navy") for word in WORDS]
    noise = np.random.default_rng(0)
    pictures = [Image.fromarray((np.asarray(p) + noise.normal(0, 15, (*p.size[::-1], 3))).clip(0, 255).astype("uint8"))
                for p in pictures]  # fmt: skip
    read = build("tesseract", threads=2).recognise(pictures)
    assert sum(lines == [word] for lines, word in zip(read, WORDS, strict=True)) >= 9


@reads
def test_the_reward_scores_with_it():
    reward = create("reward", "ocr", {"engine": "tesseract", "threads": 1})
    drawn = ["thunder", "thunter", "thanter"]
    samples = [Sample(prompt=Prompt(text='the word "thunder"'), output=draw(word), group=0) for word in drawn]
    assert reward(samples) == pytest.approx([1, 6 / 7, 5 / 7])
    with pytest.raises(PluginError, match="has no parameter 'psm'"):
        create("reward", "ocr", {"engine": "tesseract", "psm": 7})


@reads
def test_a_page_is_read_from_top_to_bottom():
    page = draw("deal score", "crew", "shade of red", "cat", size=(400, 300), height=40)
    engine = build("tesseract", layout="page", threads=1)
    assert engine.recognise([page, Image.new("RGB", (64, 64), "white")]) == [
        ["deal score", "crew", "shade of red", "cat"],
        [],
    ]


@reads
@pytest.mark.parametrize("layout", ["line", "page"])
def test_a_batch_of_one_equals_a_batch_of_many_in_any_order(layout):
    pictures = [draw(word, height=h) for word in WORDS for h in (16, 40)] + [Image.new("RGB", (40, 20), "red")]
    engine = build("tesseract", layout=layout, threads=2)
    together = engine.recognise(pictures)
    assert [engine.recognise([picture])[0] for picture in pictures] == together
    order = random.Random(0).sample(range(len(pictures)), len(pictures))
    assert engine.recognise([pictures[i] for i in order]) == [together[i] for i in order]
    assert build("tesseract", layout=layout, threads=1).recognise(pictures) == together


@reads
def test_two_callers_share_one_api_object_in_turns():
    engine = build("tesseract", threads=1)
    results: dict[int, list[list[str]]] = {}
    pictures = [draw(word) for word in WORDS]
    callers = [
        threading.Thread(target=lambda i=i: results.update({i: engine.recognise(pictures[i::2])})) for i in (0, 1)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == {0: [[w] for w in WORDS[0::2]], 1: [[w] for w in WORDS[1::2]]}


@reads
@pytest.mark.parametrize("layout", ["line", "page"])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 40), (300, 1), (3000, 2)])
def test_odd_sizes_do_not_fail(layout, size):
    speckled = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    sample = Sample(prompt=Prompt(text='"river"'), output=speckled, group=0)
    (score,) = OCRReward(engine="tesseract", layout=layout, threads=1)([sample])
    assert 0 <= score <= 1
