"""`scoring` against pyiqa itself: the same numbers, with higher better, for each picture alone."""

import http.server
import math
import os
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyiqa
import pytest
import scipy.io
import torch
from PIL import Image, ImageFilter
from pyiqa.archs import niqe_arch, wadiqam_arch
from skimage import data

from grpokit_pyiqa.scoring import NO_SCORES, Metric, MetricError

BY_PIP = {  # metric -> the smallest side of a square that it scores
    **dict.fromkeys(("entropy", "nlpd", "psnr", "psnry", "vsi"), 1),
    **{"fsim": 1, "gmsd": 4, "piqe": 8, "ssim": 11, "ssimc": 11, "mad": 16, "vif": 33, "cw_ssim": 64, "ms_ssim": 161},
}
SLOW = {"mad"}  # seconds a picture
BY_NAME = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in sorted(BY_PIP)]
ALL = pytest.mark.parametrize("name", BY_NAME)
COMPARING = [each for each in BY_NAME if each.values[0] not in ("entropy", "piqe")]
SIDE = 176


def photograph(name="astronaut", size=(SIDE, SIDE)):
    return Image.fromarray(getattr(data, name)()).resize(size)


def sample(output, target=None, text="a picture"):
    return SimpleNamespace(output=output, prompt=SimpleNamespace(text=text, target=target))


def blurred(radius):
    return photograph().filter(ImageFilter.GaussianBlur(radius))


def noisy(sigma):
    field = np.random.default_rng(0).normal(0, sigma, (SIDE, SIDE, 3))
    return Image.fromarray((np.asarray(photograph()) + field).clip(0, 255).astype(np.uint8))


@ALL
def test_scores_are_those_of_pyiqa_to_the_bit(name, tmp_path):
    files = tmp_path / "output.png", tmp_path / "target.png"
    pictures = noisy(20), photograph()
    for picture, file in zip(pictures, files, strict=True):
        picture.save(file)
    metric = pyiqa.create_metric(name, device="cpu")
    direct = metric(*map(str, files[: 1 + (metric.metric_mode == "FR")])).item()
    assert Metric(name)([sample(*pictures)]) == [-direct if metric.lower_better else direct]


@ALL
def test_a_score_does_not_depend_on_its_batch(name):
    samples = [
        sample(noisy(20), photograph()),
        sample(blurred(2), photograph()),
        sample(photograph("coffee"), noisy(5)),
    ]
    metric = Metric(name)
    scores = metric(samples)
    assert scores == [metric([each])[0] for each in samples]
    assert scores[::-1] == metric(samples[::-1])
    assert len(set(scores)) == 3


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("damage", [blurred, noisy])
def test_more_damage_scores_less(name, damage):
    outputs = [photograph(), *map(damage, (2, 6, 40) if damage is noisy else (1, 2, 6))]
    scores = Metric(name)([sample(output, photograph()) for output in outputs])
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4


@pytest.mark.parametrize(("name", "sigma", "gain"), [("entropy", 40, 0.3), ("piqe", 6, 20)])
def test_what_two_of_them_take_for_quality_is_noise(name, sigma, gain):
    """The README warns of it."""
    clean, noise = Metric(name)([sample(photograph()), sample(noisy(sigma))])
    assert noise > clean + gain


def test_piqe_prefers_the_sharp_picture():
    clean, blur = Metric("piqe")([sample(photograph()), sample(blurred(1))])
    assert clean > blur + 10


@ALL
def test_the_smallest_pictures(name):
    least = BY_PIP[name]
    metric = Metric(name)
    target = photograph(size=(least, least))
    assert len(metric([sample(photograph("coffee", (least, least)), target)])) == 1
    if least > 1:
        small = photograph(size=(least - 1, least - 1))
        with pytest.raises(MetricError, match=f"at least {least} x {least} pixels, got {least - 1} x {least - 1}"):
            metric([sample(small, small)])


def test_an_output_is_brought_to_the_size_of_its_target():
    output, target = photograph(size=(300, 200)), photograph()
    metric = Metric("psnr")
    assert metric([sample(output, target)]) == metric(
        [sample(output.resize(target.size, Image.Resampling.BICUBIC), target)]
    )


def test_a_row_without_a_target_is_not_scored():
    scores = Metric("ssim")([sample(photograph(), photograph()), sample(photograph())])
    assert scores[0] == 1
    assert math.isnan(scores[1])


@pytest.mark.parametrize("name", sorted(NO_SCORES))
def test_metrics_that_score_no_picture_are_refused(name):
    with pytest.raises(MetricError, match=f"'{name}' {NO_SCORES[name]}; a reward scores each picture alone"):
        Metric(name)


def test_an_unknown_metric_gets_the_nearest_names():
    with pytest.raises(MetricError, match=r"no metric 'ms-ssim' \(did you mean ms_ssim"):
        Metric("ms-ssim")


def test_metrics_that_draw_crops_draw_the_same_for_every_picture(cache):
    """WaDIQaM looks at 32 patches at random places; its weights are random here."""
    torch.manual_seed(1)
    weights = wadiqam_arch.WaDIQaM(metric_type="NR", pretrained=False).state_dict()
    url = wadiqam_arch.default_model_urls["wadiqam_nr_koniq"]
    torch.save({"params": weights}, cache / url.rpartition("/")[2])
    metric = Metric("wadiqam_nr")
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    samples = [sample(photograph()), sample(noisy(20))]
    scores = metric(samples)
    assert scores[0] != scores[1]
    assert metric(samples[::-1]) == scores[::-1]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])


@pytest.fixture
def served(monkeypatch, tmp_path):
    """NIQE's file with a made-up model of natural pictures, behind HTTP."""
    folder = tmp_path / "served"
    folder.mkdir()
    model = {"mu_prisparam": np.random.default_rng(0).random((1, 36)), "cov_prisparam": np.eye(36)}
    scipy.io.savemat(folder / "niqe_modelparameters.mat", model)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/niqe_modelparameters.mat"
        monkeypatch.setitem(niqe_arch.default_model_urls, "url", url)
        yield url
        server.shutdown()


def test_weights_are_fetched_once_with_a_line_on_stderr(served, cache, capsys):
    scores = Metric("niqe")([sample(photograph()), sample(noisy(20))])
    assert scores[0] != scores[1]
    assert (cache / "niqe_modelparameters.mat").is_file()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert served in shown.err
    again = Metric("niqe")
    assert served not in capsys.readouterr().err
    assert again([sample(photograph())]) == scores[:1]


def test_what_has_no_score_is_not_scored(served):
    """NIQE of one colour fails in its linear algebra."""
    (score,) = Metric("niqe")([sample(Image.new("RGB", (SIDE, SIDE), "gray"))])
    assert math.isnan(score)


def test_weights_that_cannot_be_fetched(monkeypatch):
    monkeypatch.setitem(niqe_arch.default_model_urls, "url", "http://127.0.0.1:9/niqe_modelparameters.mat")
    with pytest.raises(MetricError, match=r"'niqe' cannot be built \(URLError: .*refused"):
        Metric("niqe")


def test_a_module_that_a_metric_needs_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "clip", None)
    monkeypatch.delitem(sys.modules, "pyiqa.archs.clip_imports", raising=False)
    with pytest.raises(MetricError, match=r"'clipscore' needs the Python module 'clip'.*'openai-clip'"):
        Metric("clipscore")


def test_it_works_where_grpokit_is_not_installed():
    code = """
import sys
sys.modules["grpokit"] = None
from types import SimpleNamespace
from PIL import Image
from grpokit_pyiqa.scoring import Metric
picture = Image.effect_mandelbrot((64, 64), (-2, -1.5, 1, 1.5), 20)
sample = SimpleNamespace(output=picture, prompt=SimpleNamespace(text="a set", target=picture))
print(Metric("ssim")([sample]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[1.0]\n"


LOOK = """
from transformers.models.llama import configuration_llama, modeling_llama
parts = lambda: [
    configuration_llama.LlamaConfig,
    modeling_llama.LlamaAttention,
    modeling_llama.LlamaDecoderLayer,
    modeling_llama.LlamaModel.forward,
    modeling_llama.LlamaForCausalLM.forward,
]
before = parts()
from grpokit_pyiqa.scoring import Metric, MetricError
try:
    Metric("compare2score", device="cpu")
except MetricError as error:
    assert "cannot be built" in str(error), error
assert all(one is other for one, other in zip(before, parts(), strict=True)), parts()
"""


def test_a_language_model_beside_it_stays_as_it_is() -> None:
    """Also where a metric that puts its own layers into transformers cannot be built, as without its weights."""
    subprocess.run([sys.executable, "-c", LOOK], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
