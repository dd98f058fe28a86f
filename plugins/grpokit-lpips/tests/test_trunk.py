"""lpips with the real trunks of AlexNet and VGG: the known scores, and those of the README (`make weights`)."""

import io
import pickle
import re
from pathlib import Path

import lpips_trunks
import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

from grpokit import Prompt, Sample, create
from grpokit_lpips import trunk
from grpokit_lpips.reward import LPIPSReward

PAGE = Path(__file__).parents[1] / "README.md"
SIZE = (256, 256)


@pytest.fixture(scope="module")
def score(tmp_path_factory):
    """`score(name, output, target)` by `ssim`, or by `lpips` with the trunk `alex` or `vgg`."""
    weights = lpips_trunks.package()
    if weights is None:
        pytest.skip("needs the packages of requirements-weights.txt")
    home = tmp_path_factory.mktemp("torch-home")
    lpips_trunks.write(weights, home)
    files = {net: home / "hub" / "checkpoints" / trunk.CHECKPOINTS[net] for net in ("alex", "vgg")}
    rewards = {net: LPIPSReward(net=net, device="cpu", weights_path=file) for net, file in files.items()}
    rewards["ssim"] = create("reward", "ssim")

    def of(name, output, target):
        sample = Sample(prompt=Prompt(text="a picture", target=target), output=output, group=0)
        return rewards[name]([sample])[0]

    return of


def photograph(name="astronaut"):
    return Image.fromarray(getattr(skimage.data, name)()).resize(SIZE)


def blur(radius):
    return photograph().filter(ImageFilter.GaussianBlur(radius))


def noise(sigma):
    field = np.random.default_rng(0).normal(0, sigma, (*SIZE, 3))
    return Image.fromarray((np.asarray(photograph()) + field).clip(0, 255).astype(np.uint8))


def shift(pixels):
    return Image.fromarray(np.roll(np.asarray(photograph()), pixels, axis=1))


def jpeg(quality):
    file = io.BytesIO()
    photograph().save(file, "JPEG", quality=quality)
    return Image.open(file)


def turned_face():
    picture, face = photograph(), (84, 20, 140, 84)
    picture.paste(picture.crop(face).rotate(180), face[:2])
    return picture


def mean_colour():
    colour = np.asarray(photograph()).mean(axis=(0, 1))
    return Image.new("RGB", SIZE, tuple(int(value) for value in colour))


def sign(word):
    picture = Image.new("RGB", SIZE, "white")
    pen = ImageDraw.Draw(picture)
    pen.text((128, 128), word, fill="black", font=ImageFont.load_default(56), anchor="mm")
    return picture


PHOTOGRAPHS = {
    "the photograph itself": photograph,
    "brighter by a fifth": lambda: ImageEnhance.Brightness(photograph()).enhance(1.2),
    "its face upside down": turned_face,
    "moved by 2 pixels": lambda: shift(2),
    "JPEG of quality 10": lambda: jpeg(10),
    "moved by 8 pixels": lambda: shift(8),
    "without colours": lambda: photograph().convert("L"),
    "noise, sigma 25 of 255": lambda: noise(25),
    "blurred by 2 pixels": lambda: blur(2),
    "mirrored": lambda: ImageOps.mirror(photograph()),
    "a cat": lambda: photograph("chelsea"),
    "blurred by 6 pixels": lambda: blur(6),
    "its mean colour alone": mean_colour,
}
SIGNS = {
    "OPFN": lambda: sign("OPFN"),
    "CAFE": lambda: sign("CAFE"),
    "CLOSED": lambda: sign("CLOSED"),
    "nothing": lambda: sign(""),
}


@pytest.mark.very_slow
@pytest.mark.parametrize(
    ("net", "right"), [("alex", [1, 0.5904, 0.2914, 0.3111, 0.6624]), ("vgg", [1, 0.6942, 0.4252, 0.2913, 0.5920])]
)
def test_real_weights_give_the_known_scores(score, net, right):
    outputs = [photograph(), blur(2), blur(6), photograph("chelsea"), noise(25)]
    scores = [score(net, output, photograph()) for output in outputs]
    assert scores == pytest.approx(right, abs=1e-4)


@pytest.mark.very_slow
def test_real_weights_have_the_librarys_heads(score, library):
    """So the trunk beside them is the one that they were trained on."""
    for net, (file, *_) in lpips_trunks.TRUNKS.items():
        arrays = lpips_trunks.read(lpips_trunks.package() / file)
        for i in range(5):
            head = getattr(library[net], f"lin{i}").model[-1].weight.detach().numpy()
            assert np.array_equal(arrays[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].ravel(), head.ravel())


@pytest.mark.very_slow
@pytest.mark.parametrize(("outputs", "target"), [(PHOTOGRAPHS, photograph), (SIGNS, lambda: sign("OPEN"))])
def test_real_weights_give_the_scores_of_the_readme(score, outputs, target):
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    for name, output in outputs.items():
        scores = [score(reward, output(), target()) for reward in ("alex", "vgg", "ssim")]
        assert rows[name] == " | ".join(f"{each:.2f}" for each in scores), name


def test_a_pickle_that_names_more_than_arrays_is_not_read(tmp_path):
    (tmp_path / "other.ckpt").write_bytes(pickle.dumps({"kernel": Path("a")}))
    with pytest.raises(pickle.UnpicklingError, match="expected numpy's arrays"):
        lpips_trunks.read(tmp_path / "other.ckpt")
