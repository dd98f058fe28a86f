"""The reward `pyiqa`: pictures as grpokit sees them, targets, messages, and a run that trains on it and resumes."""

import json
import subprocess
import sys

import pytest
import skimage.data
from PIL import Image

import grpokit
from grpokit import DataError, PluginError, Prompt, RewardError, Sample, UsageError
from grpokit_check import outcomes, reward_checks
from grpokit_pyiqa import unscorable
from grpokit_pyiqa.plugin import grpokit_rewards
from grpokit_pyiqa.reward import PyIQAReward

(SPEC,) = grpokit_rewards()


def photograph(name="astronaut", size=(96, 96)):
    return Image.fromarray(getattr(skimage.data, name)()).resize(size)


def sample(output, target=None):
    return Sample(prompt=Prompt(text="a picture", target=target), output=output, group=0)


@pytest.mark.parametrize("metric", ["psnr", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gmsd", "piqe"))])
def test_conformance(metric):
    params = {"metric": metric, "device": "cpu"}
    results = list(
        outcomes(reward_checks(PyIQAReward(**params), spec=SPEC, params=params, module="grpokit_pyiqa.plugin"))
    )
    ladders = [result.name for result in results if result.name.startswith("ladder-")]
    assert len(results) - len(ladders) >= 11
    assert [result for result in results if result.failed] == []


def test_transparent_parts_are_white():
    picture = photograph()
    clear = picture.copy()
    clear.putalpha(Image.linear_gradient("L").resize(picture.size))
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, clear).convert("RGB")
    reward = PyIQAReward(metric="psnr", device="cpu")
    assert reward([sample(clear, picture), sample(picture, clear)]) == reward(
        [sample(flat, picture), sample(picture, flat)]
    )


def test_wrong_pictures_are_refused():
    reward = PyIQAReward(metric="psnr", device="cpu")
    with pytest.raises(RewardError, match=r"the output of row 1 \(reward 'pyiqa'\), got str"):
        reward([sample(photograph(), photograph()), sample("a text", photograph())])
    with pytest.raises(DataError, match="as the target of row 0"):
        reward([sample(photograph(), "a text")])


def test_a_target_is_asked_for_where_the_metric_compares(monkeypatch):
    prompt = Prompt(text="a picture")
    assert "there is no target" in unscorable.target(prompt, metric="psnr")
    assert unscorable.target(prompt, metric="piqe") == ""
    monkeypatch.setitem(sys.modules, "pyiqa", None)  # it is in a capsule
    monkeypatch.delitem(sys.modules, "grpokit_pyiqa.scoring")
    assert unscorable.target(prompt, metric="psnr") == ""


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"metric": "nique"}, r"pyiqa has no metric 'nique' \(did you mean unique, niqe"),
        ({"metric": "fid"}, "'fid' compares sets of pictures"),
        ({"metric": "psnr", "device": "abacus"}, "the device 'abacus' cannot be used here"),
    ],
)
def test_wrong_parameters_are_refused(params, message):
    with pytest.raises(UsageError, match=message):
        grpokit.create("reward", "pyiqa", params)


def test_pictures_that_are_too_small():
    small = photograph(size=(64, 10))
    with pytest.raises(UsageError, match="'ssim' needs pictures of at least 11 x 11 pixels, got 64 x 10"):
        PyIQAReward(metric="ssim", device="cpu")([sample(small, small)])


def test_a_missing_dependency_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiqa", None)
    monkeypatch.delitem(sys.modules, "grpokit_pyiqa.reward")
    monkeypatch.delitem(sys.modules, "grpokit_pyiqa.scoring")
    with pytest.raises(PluginError, match=r"needs the Python module 'pyiqa'.*pip install 'grpokit\[pyiqa\]'"):
        grpokit.create("reward", "pyiqa", {"metric": "psnr"})


def test_announcing_the_reward_imports_nothing_heavy():
    code = """
import sys
import grpokit_pyiqa.plugin
assert [spec.name for spec in grpokit_pyiqa.plugin.grpokit_rewards()] == ["pyiqa"]
assert not {"numpy", "PIL", "pyiqa", "torch"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


CONFIG = """
policy: {use: toy-glyph}
data: {use: "grpokit_toy.data:glyph_prompts"}
rewards:
  - {use: pyiqa, metric: gmsd, device: cpu}
  - {use: pyiqa, name: looks, metric: piqe, device: cpu, weight: 0.01}
trainer: {steps: 3, prompts_per_step: 2, group_size: 4, learning_rate: 1e-3, device: cpu}
run: {dir: whole, threads: 1}
trackers: {}
"""


@pytest.mark.slow
def test_a_run_trains_on_two_metrics_and_resumes(call, tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert call("train", "c.yaml").code == 0
    assert call("train", "c.yaml", "run.dir=cut", "trainer.steps=1").code == 0
    assert call("train", "cut", "trainer.steps=3", "--resume").code == 0
    whole, cut = [rewards_of(tmp_path / name) for name in ("whole", "cut")]
    assert len(whole) == 3
    assert whole == cut
    assert -1 < whole[0]["rewards/pyiqa/mean"] < 0
    assert -100 < whole[0]["rewards/looks/mean"] < 0


def rewards_of(run):
    """The rewards in each line of a run's metrics."""
    steps = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    names = ("reward", "reward_std", "rewards/pyiqa/mean", "rewards/looks/mean", "loss")
    return [{name: step[name] for name in names} for step in steps]
