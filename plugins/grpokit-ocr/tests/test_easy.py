"""The engine easyocr: its results through the adapter everywhere, and the package itself where it is installed.

The package downloads its weights, which tests do not, so the tests of the real package give it fresh ones: they prove
loading, the calls and the messages. What it reads with its own weights is in test_ocr.py.
"""

import hashlib
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image, ImageDraw

from grpokit import UsageError
from grpokit_ocr.easy import EasyReader
from grpokit_ocr.engine import build


class Results:
    """Gives results in easyocr's form (corners, text, confidence), and keeps what it was given."""

    def __init__(self, results=()):
        self.results = list(results)
        self.given: list[tuple[np.ndarray, dict]] = []

    def recognize(self, pixels, **options):
        self.given.append((pixels, options))
        return self.results

    readtext = recognize


def corners(left, upper, right, lower):
    return [[left, upper], [right, upper], [right, lower], [left, lower]]


def sign() -> Image.Image:
    image = Image.new("RGB", (100, 60), "white")
    ImageDraw.Draw(image).rectangle((20, 10, 79, 49), fill=(255, 0, 0))
    return image


def test_results_come_in_reading_order():
    results = Results(
        [
            (corners(10, 50, 60, 70), "today", 0.9),
            (corners(70, 8, 99, 30), "sale", 0.8),
            (corners(5, 10, 60, 32), " summer ", 0.99),
            (corners(80, 52, 99, 70), "", 0.0),
            ([[12.5, 80.0], [60.0, 90.0], [58.0, 99.0], [10.0, 89.0]], "only", 0.5),  # slanting: floats
        ]
    )
    reader = EasyReader(results, layout="page", batch_size=7)
    assert reader.recognise([sign()]) == [["summer\tsale", "today", "only"]]
    ((pixels, options),) = results.given
    assert options == {"batch_size": 7}
    assert pixels.shape == (60, 100, 3)
    assert pixels[30, 50].tolist() == [0, 0, 255]  # blue first, as OpenCV has it


def test_a_line_is_cut_to_its_ink():
    results = Results([(corners(0, 0, 72, 52), "red", 0.7)])
    assert EasyReader(results, layout="line").recognise([sign()]) == [["red"]]
    ((pixels, options),) = results.given
    assert pixels.shape == (52, 72, 3)  # the ink with its margin
    assert options == {}
    assert pixels.flags["C_CONTIGUOUS"]


def test_blank_pictures_are_not_read():
    results = Results([(corners(0, 0, 9, 9), "?", 0.0)])
    assert EasyReader(results, layout="page").recognise([Image.new("RGB", (64, 32), "navy"), sign()]) == [[], ["?"]]
    assert len(results.given) == 1


@pytest.fixture(scope="module")
def easyocr(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("EASYOCR_MODULE_PATH", str(tmp_path_factory.mktemp("easyocr")))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        warnings.simplefilter("ignore")
        yield pytest.importorskip("easyocr")


@pytest.fixture(scope="module")
def files(easyocr, tmp_path_factory):
    """A folder with fresh networks, which take seconds to make."""
    import torch
    from easyocr import config
    from easyocr.craft import CRAFT
    from easyocr.model.vgg_model import Model

    folder = tmp_path_factory.mktemp("weights")
    english, craft = config.recognition_models["gen2"]["english_g2"], config.detection_models["craft"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        networks = {craft["filename"]: CRAFT(), english["filename"]: Model(1, 256, 256, len(english["characters"]) + 1)}
    for name, network in networks.items():
        torch.save({f"module.{key}": value for key, value in network.state_dict().items()}, folder / name)
    return folder


@pytest.fixture
def weights(files, monkeypatch):
    """The folder, and easyocr's list of checksums changed to its files'."""
    from easyocr import config

    for entry in (config.recognition_models["gen2"]["english_g2"], config.detection_models["craft"]):
        monkeypatch.setitem(entry, "md5sum", hashlib.md5((files / entry["filename"]).read_bytes()).hexdigest())
    return files


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["line", "page"])
def test_the_real_package_reads(weights, layout):
    engine = build("easyocr", layout=layout, languages=["en"], device="cpu", weights_path=weights)
    read = engine.recognise([sign(), Image.new("RGB", (30, 20), "white"), sign().resize((1, 1)), sign().resize((9, 2))])
    assert len(read) == 4
    assert read[1] == []
    assert read == [engine.recognise([image])[0] for image in (sign(), Image.new("RGB", (30, 20), "white"))] + read[2:]


def test_offline_nobody_is_asked_for_weights(easyocr, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("easyocr.easyocr.download_and_unzip", None)
    with pytest.raises(UsageError, match=r"and downloads disabled \(HF_HUB_OFFLINE is set\)\. Fetch them there with"):
        build("easyocr")


def test_missing_weights_end_in_one_message(easyocr, tmp_path):
    with pytest.raises(UsageError) as caught:
        build("easyocr", layout="page", languages=["de", "en"], weights_path=tmp_path)
    message = str(caught.value)
    assert message.startswith(
        "The OCR engine 'easyocr' needs its weights for de, en, latin_g2.pth and craft_mlt_25k.pth. Looked for them in "
        f"'{tmp_path}': Missing {tmp_path}/craft_mlt_25k.pth and downloads disabled. Fetch them there with: python -c "
        f"\"import easyocr; easyocr.Reader(['de', 'en'], gpu=False, model_storage_directory='{tmp_path}')\""
    )
    assert "\n" not in message


@pytest.mark.slow
def test_torn_weights_end_in_one_message(weights, tmp_path):
    torn = shutil.copytree(weights, tmp_path / "torn")
    (torn / "english_g2.pth").write_bytes(b"torn")
    with pytest.raises(UsageError, match=r"MD5 mismatch for .*english_g2\.pth and downloads disabled\. Fetch them"):
        build("easyocr", weights_path=torn)
    assert (torn / "english_g2.pth").read_bytes() == b"torn"  # not easyocr's to delete


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"languages": ["xx"]}, r"easyocr has no language 'xx'\. It has: abq, .*, vi\."),
        ({"languages": ["ja", "ko"]}, "easyocr cannot read ja, ko together: Japanese is only compatible with English"),
        ({"device": "quantum"}, "the device 'quantum' cannot be used here: "),
        ({"threads": 2}, "the engine 'easyocr' computes with torch, whose threads it shares"),
    ],
)
def test_what_the_real_package_refuses(weights, arguments, message):
    with pytest.raises(UsageError, match=message):
        build("easyocr", weights_path=weights, **arguments)


def test_a_folder_that_is_not_there_is_not_made(easyocr, tmp_path):
    with pytest.raises(UsageError, match=r"must be easyocr's folder of weights, and there is none at '.*nowhere'"):
        build("easyocr", weights_path=tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
