"""Features of pictures by hand, and of tiny models of the real classes with random weights."""

import json
import sys
import warnings

import lpips
import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from grpokit import UsageError
from grpokit_clip import tower
from grpokit_likeness.features import features

TINY_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 8, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A tiny CLIP in open_clip's local form."""
    place = tmp_path_factory.mktemp("clip")
    (place / "tiny-likeness-clip.json").write_text(json.dumps(TINY_CLIP))
    open_clip.add_model_config(place / "tiny-likeness-clip.json")
    folder = place / "local"
    folder.mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.create_model("tiny-likeness-clip", pretrained=None)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY_CLIP, "preprocess_cfg": {}}))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return str(folder)


@pytest.fixture(scope="module")
def trunk_library():
    """The lpips library's own network with a random trunk."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.filterwarnings("ignore", message=".*(pretrained|weight enum)", category=UserWarning)
        torch.manual_seed(0)
        return lpips.LPIPS(net="squeeze", pnet_rand=True, verbose=False).eval()


@pytest.fixture(scope="module")
def trunk_file(trunk_library, tmp_path_factory):
    """The same trunk as a file with torchvision's names."""
    file = tmp_path_factory.mktemp("trunk") / "squeeze.pth"
    state = {f"features.{name.partition('.')[2]}": x for name, x in trunk_library.net.state_dict().items()}
    torch.save(state, file)
    return str(file)


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    sizes = [(48, 40), (64, 64), (33, 70)]
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


@pytest.fixture
def of_kind(request, clip_folder, trunk_file):
    """The features of a kind, from the tiny models."""
    options = {
        "pixels": {},
        "clip": {"weights_path": clip_folder, "device": "cpu"},
        "lpips": {"net": "squeeze", "weights_path": trunk_file, "device": "cpu"},
    }
    return features(request.param, reward="test", **options[request.param])


@pytest.mark.parametrize(("of_kind", "width"), [("pixels", 60), ("clip", 24), ("lpips", 2240)], indirect=["of_kind"])
def test_a_picture_has_the_same_numbers_in_every_batch(of_kind, width, pictures):
    together = of_kind(pictures)
    assert together.shape == (3, width)
    assert together.dtype == np.float64
    alone = [of_kind([picture])[0] for picture in reversed(pictures)]
    assert np.array_equal(together[::-1], alone)
    assert np.unique(together, axis=0).shape == (3, width)


def test_pixels_of_a_colour_by_hand():
    row = features("pixels", reward="test")([Image.new("RGB", (20, 30), (51, 0, 255))])[0]
    light = 0.299 * 0.2 + 0.114
    assert row[:12].tolist() == pytest.approx([0.2, 0.0, 1.0, light, 1.0, *[0.0] * 7], abs=1e-12)
    assert row[12:].tolist() == pytest.approx([0.2, 0.0, 1.0] * 16)


def test_pixels_of_two_halves_by_hand():
    """Black on the left, white on the right: one of 63 columns of differences has an edge, and no row has."""
    halves = Image.new("RGB", (64, 64), "black")
    halves.paste("white", (32, 0, 64, 64))
    row = features("pixels", reward="test")([halves])[0]
    assert row[:12].tolist() == pytest.approx([0.5] * 4 + [0.0] + [0.5] * 4 + [0.0, 0.0, 1 / 63], abs=1e-12)
    assert row[12:].reshape(4, 4, 3)[:, :, 0].tolist() == [[0.0, 0.0, 1.0, 1.0]] * 4


def test_the_edges_of_a_picture_do_not_depend_on_its_size():
    rng = np.random.default_rng(1)
    small = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    large = small.resize((512, 512), Image.Resampling.NEAREST)
    rows = features("pixels", reward="test")([small, large])
    assert np.array_equal(*rows)


@pytest.mark.parametrize("of_kind", ["clip"], indirect=True)
def test_clip_is_the_towers_embedding(of_kind, clip_folder, pictures):
    reference = tower.shared(
        model="", pretrained=None, weights_path=clip_folder, device=torch.device("cpu"), dtype="float32", reward="test"
    )
    expected = reference.images(pictures, batch_size=3, reward="test").numpy()
    np.testing.assert_allclose(of_kind(pictures), expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(of_kind(pictures), axis=1), 1.0)


@pytest.mark.parametrize("of_kind", ["lpips"], indirect=True)
def test_lpips_is_the_mean_of_each_channel(of_kind, trunk_library):
    rng = np.random.default_rng(2)
    levels = rng.integers(0, 256, (256, 256, 3), dtype=np.uint8)
    pixels = torch.from_numpy(levels / 127.5 - 1).float().permute(2, 0, 1)[None]
    with torch.no_grad():
        layers = trunk_library.net(trunk_library.scaling_layer(pixels))
    expected = np.concatenate([layer[0].flatten(1).mean(1).numpy() for layer in layers])
    np.testing.assert_allclose(of_kind([Image.fromarray(levels)])[0], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["clip", "lpips"])
def test_a_missing_package_is_told_with_what_installs_it(monkeypatch, kind):
    monkeypatch.setitem(sys.modules, f"grpokit_{kind}", None)
    with pytest.raises(UsageError, match=rf"pip install 'grpokit-likeness\[{kind}\]'"):
        features(kind, reward="test")


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (
            "clip",
            {"wieghts_path": "a"},
            r"no option 'wieghts_path' of the features 'clip' of 'test' \(did you mean 'weig",
        ),
        ("lpips", {"net": "resnet"}, "'net' of the features 'lpips' of 'test' must be 'alex' or 'vgg' or 'squeeze'"),
    ],
)
def test_a_wrong_option_is_named(kind, options, words):
    with pytest.raises(UsageError, match=words):
        features(kind, reward="test", **options)
