"""lpips: the library's own numbers, sizes and modes, batches, where weights come from, what is refused."""

import errno
import functools
import hashlib
import http.server
import itertools
import math
import re
import runpy
import socket
import subprocess
import sys
import threading
import time
import warnings

import lpips
import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageFilter

import grpokit
from grpokit import DataError, PluginError, Prompt, RewardError, Sample, UsageError
from grpokit.rewards import downloads
from grpokit_lpips import reward, trunk
from grpokit_lpips.reward import LPIPSReward

PUBLISHED = trunk.SOURCE  # before conftest closes the way there
NETS = pytest.mark.parametrize("net", ["alex", pytest.param("vgg", marks=pytest.mark.slow), "squeeze"])


def sample(output: object, target: object = None, group: int = 0) -> Sample:
    return Sample(prompt=Prompt(text="a picture", target=target), output=output, group=group)


def picture(seed: int, width: int = 48, height: int = 40) -> Image.Image:
    """Coloured blots: smooth, with edges, and unlike those of another seed."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def noise(image: Image.Image, sigma: float) -> Image.Image:
    pixels = np.asarray(image) + np.random.default_rng(0).normal(0, sigma, (image.height, image.width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].double().div(127.5).sub(1).float()


def direct(network: torch.nn.Module, output: Image.Image, target: Image.Image) -> float:
    with torch.no_grad():
        return 1 - float(network(tensor(output), tensor(target)))


@pytest.fixture
def score(checkpoints):
    return LPIPSReward(net="squeeze", weights_path=checkpoints["squeeze"], device="cpu")


@NETS
def test_scores_are_the_librarys(net, library, checkpoints, device):
    score = LPIPSReward(net=net, weights_path=checkpoints[net], device=device, batch_size=3)
    pairs = [(noise(picture(i), 20 * i), picture(i)) for i in range(4)] + [(picture(1), picture(2))]
    by_hand = [direct(library[net], *pair) for pair in pairs]
    assert score([sample(*pair) for pair in pairs]) == pytest.approx(by_hand, abs=1e-6)
    assert by_hand[0] == 1.0
    assert max(by_hand[1:]) < 1 - 1e-4


def test_the_cached_checkpoint_is_read_as_the_library_reads_it(monkeypatch, tmp_path):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        whole = torchvision.models.squeezenet1_1().state_dict()  # with the classifier, as it is published
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(whole, tmp_path / "hub" / "checkpoints" / "squeezenet1_1-b8a52dc0.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torchvision's, for how lpips calls it
        network = lpips.LPIPS(net="squeeze", verbose=False)
    output, target = noise(picture(5), 30), picture(5)
    (got,) = LPIPSReward(net="squeeze", device="cpu")([sample(output, target)])
    assert got == pytest.approx(direct(network, output, target), abs=1e-6)
    assert got < 1 - 1e-4


@NETS
def test_the_files_are_torchvisions(net):
    model = {"alex": "alexnet", "vgg": "vgg16", "squeeze": "squeezenet1_1"}[net]
    published = torchvision.models.get_model_weights(model).IMAGENET1K_V1.url
    assert published == PUBLISHED + trunk.CHECKPOINTS[net]


def test_the_same_picture_is_best_and_noise_costs(score):
    target = picture(1)
    scores = score([sample(noise(target, sigma), target) for sigma in (0, 5, 15, 40, 90)])
    assert scores[0] == 1.0
    assert all(better > worse for better, worse in itertools.pairwise(scores)), scores
    blurred = score([sample(target.filter(ImageFilter.GaussianBlur(r)), target) for r in (1, 3, 9)])
    assert all(better > worse for better, worse in itertools.pairwise([1.0, *blurred])), blurred


@NETS
def test_no_head_has_a_negative_weight(library, net):
    """So no distance is below 0, and no score above the range that the spec declares."""
    assert all(weight.min() >= 0 for name, weight in library[net].named_parameters() if name.startswith("lin"))


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_batches_sizes_and_order_do_not_matter(score, checkpoints, batch_size):
    sizes = [(48, 40), (64, 33), (48, 40), (40, 48), (48, 40)]
    batch = [sample(noise(picture(i, *size), 30), picture(i, *size)) for i, size in enumerate(sizes)]
    batched = LPIPSReward(net="squeeze", weights_path=checkpoints["squeeze"], device="cpu", batch_size=batch_size)
    alone = [score([one])[0] for one in batch]
    assert batched(batch) == pytest.approx(alone, abs=1e-6)
    assert batched(batch[::-1]) == pytest.approx(alone[::-1], abs=1e-6)
    assert len({round(x, 4) for x in alone}) == 5
    assert batched([]) == []


def test_another_size_is_brought_to_the_targets(score):
    target = picture(1, 64, 48)
    large, small = picture(1, 200, 160), picture(1, 20, 15)
    by_hand = [image.resize((64, 48), reward.RESAMPLING) for image in (large, small)]
    scores = score([sample(large, target), sample(small, target)])
    assert scores == pytest.approx(score([sample(image, target) for image in by_hand]), abs=1e-6)
    assert scores[1] < scores[0] < 1


def test_a_photograph_of_many_pixels_is_shrunk_first(score, monkeypatch):
    monkeypatch.setattr("grpokit.images.COMPARED_PIXELS", 3200)
    target = picture(1, 320, 160)
    small = target.resize((80, 40), reward.RESAMPLING)
    assert score([sample(picture(2, 64, 48), target)]) == score([sample(picture(2, 64, 48), small)])


@NETS
def test_small_and_odd_pictures(net, library, checkpoints):
    score = LPIPSReward(net=net, weights_path=checkpoints[net], device="cpu")
    for size in [(1, 1), (5, 31), (90, 2), (31, 32), (33, 47)]:
        first, second = picture(1, *size), picture(2, *size)
        same, other = score([sample(first, first), sample(second, first)])
        columns, rows = (np.minimum(np.arange(max(32, n)), n - 1) for n in size)  # the last one repeated
        padded = [Image.fromarray(np.asarray(image)[rows][:, columns]) for image in (second, first)]
        assert min(padded[0].size) >= 32
        assert same == 1.0, size
        assert other == pytest.approx(direct(library[net], *padded), abs=1e-6), size


def test_gray_palette_and_transparent_pictures(score):
    target = picture(3)
    for mode in ("L", "P", "1"):
        image = target.convert(mode)
        assert score([sample(image, image.convert("RGB"))]) == [1.0]
    half_seen = Image.new("RGBA", (40, 40), (0, 0, 0, 102))  # 40 % black over white: 153
    assert score([sample(half_seen, Image.new("RGB", (40, 40), (153, 153, 153)))]) == [1.0]


def test_inputs_are_left_alone(score):
    output, target = picture(1, 30, 30).convert("RGBA"), picture(2).convert("P")
    before = output.tobytes(), target.tobytes(), target.getpalette()
    score([sample(output, target)])
    assert (output.tobytes(), target.tobytes(), target.getpalette()) == before
    assert (output.mode, output.size, target.mode) == ("RGBA", (30, 30), "P")


def test_building_leaves_the_random_states_alone(checkpoints):
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    LPIPSReward(net="squeeze", weights_path=checkpoints["squeeze"], device="cpu")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nothing_of_the_network_can_be_trained(score):
    assert not any(p.requires_grad for p in score.model.parameters())
    assert not any(module.training for module in score.model.modules())


@pytest.mark.parametrize(("dtype", "digits"), [("float64", 1e-5), ("bfloat16", 0.05)])
def test_other_precisions(score, checkpoints, dtype, digits):
    other = LPIPSReward(net="squeeze", weights_path=checkpoints["squeeze"], device="cpu", dtype=dtype)
    assert {p.dtype for p in other.model.parameters()} == {getattr(torch, dtype)}
    rows = [sample(noise(picture(1), 40), picture(1)), sample(picture(2), picture(2))]
    scores = other(rows)
    assert scores == pytest.approx(score(rows), abs=digits)
    assert scores[0] != score(rows)[0]
    assert scores[1] == 1.0


def test_an_autocast_around_the_call_changes_nothing(score):
    rows = [sample(noise(picture(1), 40), picture(1))]
    plain = score(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert score(rows) == plain


def test_clip_brings_scores_below_zero_to_zero(checkpoints):
    score, clipped = (
        LPIPSReward(net="squeeze", weights_path=checkpoints["squeeze"], device="cpu", clip=clip)
        for clip in (False, True)
    )
    for one in (score, clipped):
        for name, weight in one.model.named_parameters():
            if name.startswith("lin"):
                weight.mul_(1000.0)  # distances far above 1
    rows = [sample(noise(picture(1), 90), picture(1)), sample(picture(1), picture(1)), sample(picture(1))]
    low, same, none = score(rows)
    assert low < -1
    assert same == 1.0
    assert math.isnan(none)
    assert clipped(rows[:2]) == [0.0, 1.0]
    assert math.isnan(clipped(rows)[2])


def test_a_row_without_a_target_cannot_be_scored(score):
    scores = score([sample(picture(1)), sample(picture(1), picture(1)), sample(picture(2))])
    assert [math.isnan(x) for x in scores] == [True, False, True]


@pytest.mark.parametrize(("output", "named"), [("text", "str"), (None, "NoneType"), (np.zeros((8, 8, 3)), "ndarray")])
def test_an_output_of_the_wrong_type_is_refused(score, output, named):
    with pytest.raises(RewardError, match=rf"as the output of row 1 \(reward 'lpips'\), got {named}"):
        score([sample(picture(1), picture(1)), sample(output)])


def test_a_target_of_the_wrong_type_is_refused(score):
    with pytest.raises(DataError, match=r"as the target of row 0 \(prompt 'a picture'\), got str\. Give the prompts"):
        score([sample(picture(1), "1.png")])


@pytest.fixture
def served(monkeypatch, tmp_path, checkpoints):
    """A server on this machine with the squeeze trunk under a name that ends in its hash; the names asked for."""
    with open(checkpoints["squeeze"], "rb") as file:
        content = file.read()
    name = f"squeezenet1_1-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / name).write_bytes(content)
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path.lstrip("/"))

    handler = functools.partial(Handler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setattr(trunk, "SOURCE", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setitem(trunk.CHECKPOINTS, "squeeze", name)
        yield asked
        server.shutdown()


def test_a_missing_trunk_is_fetched_into_torchs_cache_once(served, library, tmp_path, capsys):
    place = tmp_path / "torch-home" / "hub" / "checkpoints" / trunk.CHECKPOINTS["squeeze"]
    output, target = noise(picture(5), 30), picture(5)
    (got,) = LPIPSReward(net="squeeze", device="cpu")([sample(output, target)])
    assert got == pytest.approx(direct(library["squeeze"], output, target), abs=1e-6)
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"grpokit-lpips: fetching {trunk.SOURCE}{trunk.CHECKPOINTS['squeeze']} to '{place}'\n",
    )
    fetched = len(served)
    assert LPIPSReward(net="squeeze", device="cpu")([sample(output, target)]) == [got]
    assert set(served) == {trunk.CHECKPOINTS["squeeze"]}
    assert len(served) == fetched
    assert capsys.readouterr().err == ""


def test_a_file_with_another_hash_is_not_kept(served, tmp_path):
    name = trunk.CHECKPOINTS["squeeze"]
    (tmp_path / "served" / name).write_bytes(b"another file")
    with pytest.raises(UsageError, match=rf"fetching it from http://127\..*{name} failed: invalid hash value"):
        LPIPSReward(net="squeeze", device="cpu")
    assert list((tmp_path / "torch-home" / "hub" / "checkpoints").iterdir()) == []


def test_a_file_that_the_server_lacks(served, tmp_path):
    (tmp_path / "served" / trunk.CHECKPOINTS["squeeze"]).unlink()
    with pytest.raises(UsageError, match="failed: the server says 404"):
        LPIPSReward(net="squeeze", device="cpu")


@NETS
def test_missing_weights_say_which_file_where_and_how(net, tmp_path):
    place = tmp_path / "torch-home" / "hub" / "checkpoints" / trunk.CHECKPOINTS[net]
    start = time.perf_counter()
    with pytest.raises(UsageError) as missing:
        LPIPSReward(net=net, device="cpu")
    assert time.perf_counter() - start < 5  # no waiting and no second try
    said, url = str(missing.value), f"http://127.0.0.1:9/{trunk.CHECKPOINTS[net]}"
    assert f"no file '{place}'" in said
    assert f"fetching it from {url} failed: [Errno {errno.ECONNREFUSED}]" in said
    assert f"load_state_dict_from_url('{url}', check_hash=True)" in said


def test_a_server_that_never_answers_is_left_after_a_while(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(trunk, "SOURCE", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        monkeypatch.setattr(downloads, "PATIENCE", 0.2)
        with pytest.raises(UsageError, match="failed: timed out"):
            LPIPSReward(net="squeeze", device="cpu")


def test_offline_nobody_is_asked(served, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set"):
        LPIPSReward(net="squeeze", device="cpu")
    assert served == []
    assert capsys.readouterr().err == ""


def test_the_command_of_the_message_fetches_the_file(served, monkeypatch, tmp_path):
    """As it is printed, hash and all, from a server on this machine; in this process, which has torch."""
    where = trunk.SOURCE
    monkeypatch.setattr(trunk, "SOURCE", "http://127.0.0.1:9/")
    with pytest.raises(UsageError) as missing:
        LPIPSReward(net="squeeze", device="cpu")
    code = str(missing.value).partition('python -c "')[2].partition('"')[0]
    (tmp_path / "command.py").write_text(code.replace("http://127.0.0.1:9/", where))
    runpy.run_path(str(tmp_path / "command.py"), run_name="__main__")
    asked = len(served)
    assert LPIPSReward(net="squeeze", device="cpu")([sample(picture(1), picture(1))]) == [1.0]
    assert len(served) == asked


def test_a_weights_path_without_a_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"no file '.*gone\.pth' \(as the parameter weights_path says\)"):
        LPIPSReward(weights_path=str(tmp_path / "gone.pth"), device="cpu")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"torn", b"PK\x03\x04 torn", "half"])
def test_a_torn_file_is_refused(tmp_path, checkpoints, content):
    if content == "half":
        with open(checkpoints["squeeze"], "rb") as file:
            content = file.read()
        content = content[: len(content) // 2]
    (tmp_path / "torn.pth").write_bytes(content)
    with pytest.raises(UsageError) as refused:
        LPIPSReward(net="squeeze", weights_path=str(tmp_path / "torn.pth"), device="cpu")
    assert re.search(
        r"torn\.pth' cannot be read as a checkpoint of torch \([A-Za-z]+\): it is torn", str(refused.value)
    )
    assert f"Give {trunk.CHECKPOINTS['squeeze']}, or leave weights_path out. Fetch" in str(refused.value)
    assert "Delete" not in str(refused.value)  # the file is the user's


def test_a_torn_file_in_the_cache_is_to_be_deleted(tmp_path):
    place = tmp_path / "torch-home/hub/checkpoints" / trunk.CHECKPOINTS["squeeze"]
    place.parent.mkdir(parents=True)
    place.write_bytes(b"torn")
    with pytest.raises(UsageError, match=r"\): it is torn, or another kind of file\. Delete it\. Fetch"):
        LPIPSReward(net="squeeze", device="cpu")


def test_another_trunks_file_is_refused(tmp_path, checkpoints):
    with pytest.raises(UsageError, match=r"not a checkpoint of the trunk 'squeeze'.*'features\.3\.squeeze\.weight' is"):
        LPIPSReward(net="squeeze", weights_path=checkpoints["alex"], device="cpu")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UsageError, match=r"not a checkpoint of the trunk 'alex'.*'features\.0\.weight' is not in it"):
        LPIPSReward(weights_path=str(tmp_path / "list.pth"), device="cpu")
    state = torch.load(checkpoints["squeeze"])
    state["features.0.weight"] = torch.zeros(64, 3, 7, 7)
    torch.save(state, tmp_path / "shape.pth")
    with pytest.raises(UsageError, match=r"shape\.pth' is not a checkpoint .* size mismatch for slice1\.0\.weight"):
        LPIPSReward(net="squeeze", weights_path=str(tmp_path / "shape.pth"), device="cpu")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"net": "resnet"}, "net must be one of alex, vgg, squeeze, got 'resnet'"),
        ({"dtype": "float16"}, "dtype must be one of float32, bfloat16, float64, got 'float16'"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"device": "abacus"}, "the device 'abacus' cannot be used here: .*Leave it out, or set cpu"),
    ],
)
def test_wrong_parameters_are_refused(params, said):
    with pytest.raises(UsageError, match=said):
        LPIPSReward(**{"device": "cpu", **params})


def test_the_registry_builds_it(checkpoints):
    params = {"net": "squeeze", "weights_path": checkpoints["squeeze"], "device": "cpu"}
    assert grpokit.create("reward", "lpips", params)([sample(picture(1), picture(1))]) == [1.0]
    with pytest.raises(PluginError, match="net must be 'alex' or 'vgg' or 'squeeze', got 'resnet'"):
        grpokit.create("reward", "lpips", {"net": "resnet"})


def test_a_missing_dependency_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "lpips", None)
    monkeypatch.delitem(sys.modules, "grpokit_lpips.reward")
    monkeypatch.delitem(sys.modules, "grpokit_lpips.trunk")
    monkeypatch.delattr("grpokit_lpips.trunk")
    with pytest.raises(PluginError, match=r"needs the Python module 'lpips'.*pip install 'grpokit\[lpips\]'"):
        grpokit.create("reward", "lpips")


def test_announcing_the_reward_imports_nothing_heavy():
    code = """
import sys
import grpokit_lpips.plugin
specs = {spec.name: spec.range for spec in grpokit_lpips.plugin.grpokit_rewards()}
assert specs == {"lpips": (None, 1)}
assert not {"numpy", "PIL", "lpips", "torch", "torchvision"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
