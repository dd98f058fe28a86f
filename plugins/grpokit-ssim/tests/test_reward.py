"""ssim, mse and structure: the definitions, the conformance ladder on photographs, odd pictures, what is refused."""

import io
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageChops, ImageFilter
from skimage.metrics import structural_similarity

import grpokit
from grpokit import DataError, PluginError, Prompt, RewardError, Sample
from grpokit_ssim import reward
from grpokit_ssim.reward import mse, ssim, structure

ALL = pytest.mark.parametrize("score", [ssim, mse, structure])


def sample(output: object, other: object = None, group: int = 0) -> Sample:
    """One picture is both target and source, so that all three rewards can be held to the same."""
    return Sample(prompt=Prompt(text="a picture", target=other, image=other), output=output, group=group)


def photo(name: str, side: int = 192) -> Image.Image:
    """The middle of one of scikit-image's bundled photographs."""
    image = Image.fromarray(getattr(skimage.data, name)())
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def noise(image: Image.Image, sigma: float) -> Image.Image:
    pixels = np.asarray(image) + np.random.default_rng(0).normal(0, sigma, (image.height, image.width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "jpeg", quality=quality)
    return Image.open(file).convert("RGB")


def flat(*colour: int, size: tuple[int, int] = (16, 16)) -> Image.Image:
    return Image.new("RGB", size, colour)


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    return [photo(name) for name in ("astronaut", "chelsea", "coffee", "rocket")]


@pytest.mark.parametrize("score", [ssim, structure])
def test_it_is_scikit_images(photos, score):
    for target in photos:
        output = noise(target.filter(ImageFilter.GaussianBlur(1)), 10)
        direct = structural_similarity(
            np.asarray(target) / 255, np.asarray(output) / 255, data_range=1.0, channel_axis=-1
        )
        assert score([sample(output, target)]) == pytest.approx([direct], abs=1e-6)


def test_ssim_and_mse_look_at_the_target_and_structure_at_the_source(photos):
    target, source = photos[:2]
    edited = noise(source, 20)
    both = Sample(prompt=Prompt(text="a cat in space", target=target, image=source), output=edited, group=0)
    assert structure([both]) == structure([sample(edited, source)]) != structure([sample(edited, target)])
    assert ssim([both]) == ssim([sample(edited, target)])
    assert mse([both]) == mse([sample(edited, target)])
    no_source = Sample(prompt=Prompt(text="a cat", target=target), output=edited, group=0)
    no_target = Sample(prompt=Prompt(text="a cat", image=source), output=edited, group=0)
    assert [math.isnan(x) for x in structure([no_source, no_target])] == [True, False]
    assert [math.isnan(x) for x in ssim([no_source, no_target])] == [False, True]


def test_structure_falls_with_what_an_edit_changes_beside_the_asked(photos):
    source = photos[0]
    edits = []
    for side in (0, 24, 48, 96, 192):  # pixels of a square that is painted over
        edit = source.copy()
        edit.paste("navy", (0, 0, side, side))
        edits.append(edit)
    scores = structure([sample(edit, source) for edit in edits])
    assert scores[0] == 1.0
    assert all(better > worse for better, worse in itertools.pairwise(scores)), scores
    assert scores[1] > 0.97  # a 64th of the picture is another


def test_ssim_of_flat_pictures_by_hand():
    # Variances are 0, so only the luminance term is left: (2 * .2 * .6 + C) / (.2^2 + .6^2 + C), C = .01^2.
    assert ssim([sample(flat(51, 51, 51), flat(153, 153, 153))]) == pytest.approx([0.2401 / 0.4001], abs=1e-9)
    assert ssim([sample(flat(0, 0, 0), flat(255, 255, 255))]) == pytest.approx([0.0001 / 1.0001], abs=1e-9)


def test_mse_by_hand():
    black = flat(0, 0, 0, size=(2, 1))
    half = black.copy()
    half.putpixel((0, 0), (255, 0, 51))  # one of two pixels: (1 + 0 + .04) / (2 * 3)
    assert mse([sample(half, black)]) == pytest.approx([-1.04 / 6], abs=1e-12)
    assert mse([sample(flat(0, 0, 0), flat(255, 255, 255))]) == [-1.0]


def test_the_same_picture_is_best(photos):
    assert ssim([sample(photo, photo) for photo in photos]) == [1.0] * 4
    assert mse([sample(photo.copy(), photo) for photo in photos]) == [0.0] * 4
    assert structure([sample(photo.copy(), photo) for photo in photos]) == [1.0] * 4


LADDERS = {
    "blur": [lambda image, r=r: image.filter(ImageFilter.GaussianBlur(r)) for r in (0.7, 1.5, 3, 6)],
    "noise": [lambda image, s=s: noise(image, s) for s in (5, 15, 30, 60)],
    "jpeg": [lambda image, q=q: jpeg(image, q) for q in (95, 60, 20, 5)],
    "shift": [lambda image, d=d: ImageChops.offset(image, d, 0) for d in (1, 2, 4)],
}


@ALL
@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS.keys())
def test_each_step_down_the_ladder_costs(photos, ladder, score):
    for target in photos:
        scores = score([sample(output, target) for output in [target, *(worse(target) for worse in ladder)]])
        assert all(better > worse for better, worse in itertools.pairwise(scores)), scores


@ALL
def test_a_batch_of_one_equals_a_batch_of_many_in_any_order(photos, score):
    batch = [sample(noise(target, sigma), target) for target in photos for sigma in (5, 40)]
    together = score(batch)
    assert [score([one])[0] for one in batch] == together
    assert score(batch[::-1]) == together[::-1]
    assert score([]) == []


@ALL
def test_inputs_are_left_alone(photos, score):
    output, target = photos[0].resize((64, 48)).convert("RGBA"), photos[0].convert("P")
    before = output.tobytes(), target.tobytes(), target.getpalette()
    score([sample(output, target)])
    assert (output.tobytes(), target.tobytes(), target.getpalette()) == before
    assert (output.mode, output.size, target.mode) == ("RGBA", (64, 48), "P")


@ALL
def test_another_size_is_brought_to_the_targets(photos, score):
    target = photos[1]
    large, small = target.resize((400, 300)), target.resize((50, 40))
    by_hand = [image.resize(target.size, reward.RESAMPLING) for image in (large, small)]
    scores = score([sample(large, target), sample(small, target)])
    assert scores == score([sample(image, target) for image in by_hand])
    assert scores[1] < scores[0] < score([sample(target, target)])[0]


@ALL
def test_a_photograph_of_many_pixels_is_shrunk_first(photos, score, monkeypatch):
    monkeypatch.setattr("grpokit.images.COMPARED_PIXELS", 3200)
    target = photos[1].resize((320, 160))
    small = target.resize((80, 40), reward.RESAMPLING)
    assert score([sample(photos[0], target)]) == score([sample(photos[0], small)])
    assert score([sample(target, target)]) == score([sample(small, small)])


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (2, 9), (3, 3), (4, 5), (6, 6), (6, 40), (7, 7), (8, 300)])
def test_pictures_smaller_than_the_window(size):
    rng = np.random.default_rng(0)
    first, second = (Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)) for _ in range(2))
    same, other = ssim([sample(first, first), sample(second, first)])
    assert same == 1.0
    assert -1 <= other < 1


@pytest.mark.parametrize(("size", "window"), [((6, 20), 5), ((5, 5), 5), ((4, 4), 3), ((7, 9), 7), ((30, 30), 7)])
def test_the_window_is_the_largest_odd_one_that_fits(size, window):
    rng = np.random.default_rng(1)
    target, output = (rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8) for _ in range(2))
    direct = structural_similarity(target / 255, output / 255, win_size=window, data_range=1.0, channel_axis=-1)
    (score,) = ssim([sample(Image.fromarray(output), Image.fromarray(target))])
    assert score == pytest.approx(direct, abs=1e-9)


@ALL
def test_gray_palette_and_transparent_pictures(photos, score):
    gray = photos[2].convert("L")
    assert score([sample(gray, gray.convert("RGB"))]) == score([sample(gray, gray)])
    palette = photos[2].convert("P")
    assert score([sample(palette, palette.convert("RGB"))]) == score([sample(palette, palette)])
    bits = photos[2].convert("1")
    assert score([sample(bits, bits.convert("RGB"))]) == score([sample(bits, bits)])
    deep = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    assert deep.mode == "I;16"
    assert score([sample(deep, gray)]) == score([sample(gray, gray)])


def test_transparent_parts_are_white():
    half_seen = Image.new("RGBA", (16, 16), (0, 0, 0, 102))  # 40 % black over white: 153
    assert mse([sample(half_seen, flat(153, 153, 153)), sample(half_seen, flat(0, 0, 0))]) == pytest.approx([0, -0.36])
    keyed = Image.new("P", (16, 16))
    keyed.putpalette([0, 0, 0])
    keyed.info["transparency"] = 0
    assert mse([sample(keyed, flat(255, 255, 255))]) == [0.0]


@ALL
def test_a_row_without_the_other_picture_cannot_be_scored(photos, score):
    scores = score([sample(photos[0]), sample(photos[0], photos[0]), sample(photos[1])])
    assert math.isnan(scores[0])
    assert not math.isnan(scores[1])
    assert math.isnan(scores[2])


@ALL
@pytest.mark.parametrize(("output", "named"), [("text", "str"), (None, "NoneType"), (np.zeros((8, 8, 3)), "ndarray")])
def test_an_output_of_the_wrong_type_is_refused(score, output, named):
    with pytest.raises(
        RewardError, match=rf"PIL\.Image\.Image as the output of row 1 \(reward '{score.__name__}'\), got {named}"
    ):
        score([sample(flat(0, 0, 0), flat(0, 0, 0)), sample(output, flat(0, 0, 0))])


@ALL
def test_a_target_of_the_wrong_type_is_refused(score):
    place = "source" if score is structure else "target"
    message = rf"as the {place} of row 0 \(prompt 'a picture'\), got str\. Give the prompts a folder of {place} images"
    with pytest.raises(DataError, match=message):
        score([sample(flat(0, 0, 0), "1.png")])


@ALL
@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_picture_without_a_known_white_is_refused(score, mode):
    with pytest.raises(RewardError, match=f"mode '{mode}'.*Convert it first"):
        score([sample(Image.new(mode, (9, 9)), flat(0, 0, 0))])


@ALL
def test_a_picture_without_pixels_is_refused(score):
    with pytest.raises(RewardError, match="0 x 9 pixels"):
        score([sample(Image.new("RGB", (0, 9)), flat(0, 0, 0))])


def test_the_registry_finds_them():
    target = flat(10, 20, 30)
    assert grpokit.create("reward", "ssim")([sample(target, target)]) == [1.0]
    assert grpokit.create("reward", "mse")([sample(target, target)]) == [0.0]
    assert grpokit.create("reward", "structure")([sample(target, target)]) == [1.0]
    with pytest.raises(PluginError, match="has no parameter 'window'"):
        grpokit.create("reward", "ssim", {"window": 11})


def test_a_missing_dependency_names_the_install_command(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "skimage"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "skimage", None)
    monkeypatch.delitem(sys.modules, "grpokit_ssim.reward")
    with pytest.raises(PluginError, match=r"needs the Python module 'skimage.*pip install 'grpokit\[ssim\]'"):
        grpokit.create("reward", "ssim")


def test_announcing_the_rewards_imports_nothing_heavy():
    code = """
import sys
import grpokit_ssim.plugin
specs = {spec.name: spec.range for spec in grpokit_ssim.plugin.grpokit_rewards()}
assert specs == {"ssim": (-1, 1), "structure": (-1, 1), "mse": (-1, 0)}
assert not {"numpy", "PIL", "skimage", "torch"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
