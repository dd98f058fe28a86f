"""aesthetic and clip-score: an independent computation, sizes and modes, one model for both, parameters."""

import builtins
import gc
import itertools
import logging
import math
import subprocess
import sys
import threading
import warnings

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

import grpokit
from grpokit import PluginError, Prompt, RewardError, Sample, UsageError
from grpokit_clip import tower
from grpokit_clip.reward import AestheticReward, ClipScoreReward

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""OpenAI's, as in the repository of CLIP."""


def sample(output: object, text: str = "a picture", group: int = 0) -> Sample:
    return Sample(prompt=Prompt(text=text), output=output, group=group)


def picture(seed: int, width: int = 48, height: int = 40) -> Image.Image:
    """Coloured blots: smooth, with edges, and unlike those of another seed."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def prepared(image: Image.Image, mean=MEAN, std=STD) -> torch.Tensor:
    """CLIP's preprocessing by hand for 32 pixels: the shorter side to 32, the middle, mean and deviation."""
    width, height = image.size
    short = min(width, height)
    size = (32, int(32 * height / short)) if width == short else (int(32 * width / short), 32)
    image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - 32) / 2.0), round((size[1] - 32) / 2.0)
    pixels = np.asarray(image.crop((left, top, left + 32, top + 32)), dtype=np.float64) / 255
    return torch.from_numpy(((pixels - mean) / std).transpose(2, 0, 1)[None]).float()


def by_hand(tiny, x: torch.Tensor, text: str) -> tuple[float, float]:
    """Aesthetic and clip-score of one prepared picture [1, 3, 32, 32], by the library's model and torch's layers."""
    tokens = open_clip.tokenize([text], context_length=16)
    image = torch.nn.functional.normalize(tiny.model.encode_image(x), dim=-1)
    words = torch.nn.functional.normalize(tiny.model.encode_text(tokens), dim=-1)
    return float(tiny.predictor(image)), float(image @ words.T)


@pytest.fixture
def params(tiny):
    return {"model": "tiny-clip", "pretrained": None, "weights_path": tiny.torch_file, "device": "cpu"}


@pytest.fixture
def aesthetic(params, tiny):
    return AestheticReward(**params, head_path=tiny.head)


@pytest.fixture
def clip_score(params):
    return ClipScoreReward(**params)


@pytest.fixture
def passes(aesthetic):
    """How many pictures each call of the image tower had, as a list that grows."""
    counts: list[int] = []
    hook = aesthetic.tower.model.visual.register_forward_pre_hook(lambda _, x: counts.append(len(x[0])))
    yield counts
    hook.remove()


SIZES = [(32, 32), (48, 40), (40, 49), (200, 31), (31, 200), (7, 5), (1, 1), (500, 333), (33, 64)]


@pytest.mark.parametrize("form", ["torch_file", "safetensors_file"])
def test_scores_are_those_of_an_independent_computation(form, params, tiny, device):
    params.update(weights_path=getattr(tiny, form), device=device)
    pictures = [picture(i, *size) for i, size in enumerate(SIZES)]
    texts = [f"{i} apples, and a red bird" for i in range(len(pictures))]
    wanted = [by_hand(tiny, prepared(image), text) for image, text in zip(pictures, texts, strict=True)]
    samples = [sample(image, text) for image, text in zip(pictures, texts, strict=True)]
    liked = AestheticReward(**params, head_path=tiny.head, batch_size=4)(samples)
    fits = ClipScoreReward(**params, batch_size=4)(samples)
    assert liked == pytest.approx([a for a, _ in wanted], abs=1e-5)
    assert fits == pytest.approx([c for _, c in wanted], abs=1e-5)
    for scores in (liked, fits):  # so that one score for all would be seen
        assert min(b - a for a, b in itertools.pairwise(sorted(scores))) > 1e-4


def test_a_folder_brings_its_own_model_and_preprocessing(tiny):
    for size in ((48, 40), (20, 64), (32, 32)):
        image = picture(3, *size)
        pixels = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float64) / 255
        x = torch.from_numpy(((pixels - tiny.prepared["mean"]) / tiny.prepared["std"]).transpose(2, 0, 1)[None]).float()
        liked, fits = by_hand(tiny, x, "a cat")
        got = AestheticReward(weights_path=tiny.folder, head_path=tiny.safe_head, device="cpu")([sample(image)])
        assert got == pytest.approx([liked], abs=1e-5)
        assert ClipScoreReward(weights_path=tiny.folder, device="cpu")([sample(image, "a cat")]) == pytest.approx(
            [fits], abs=1e-5
        )


def test_pictures_of_all_modes(tiny, aesthetic, clip_score):
    rgb = picture(4)
    alpha = Image.linear_gradient("L").resize(rgb.size)
    share = np.asarray(alpha, dtype=np.float64)[..., None] / 255
    on_white = Image.fromarray(np.round(np.asarray(rgb) * share + 255 * (1 - share)).astype(np.uint8))
    seen = {
        "L": (rgb.convert("L"), Image.merge("RGB", [rgb.convert("L")] * 3)),
        "P": (rgb.quantize(16), rgb.quantize(16).convert("RGB")),
        "1": (rgb.convert("1"), Image.merge("RGB", [rgb.convert("1").convert("L")] * 3)),
        "CMYK": (rgb.convert("CMYK"), rgb.convert("CMYK").convert("RGB")),
        "RGBA": (Image.merge("RGBA", [*rgb.split(), alpha]), on_white),
    }
    for mode, (image, rgb_by_hand) in seen.items():
        assert image.mode == mode
        digits = 2e-3 if mode == "RGBA" else 1e-5  # Pillow's own rounding where it blends
        liked, fits = by_hand(tiny, prepared(rgb_by_hand), "a picture")
        assert aesthetic([sample(image)]) == pytest.approx([liked], abs=digits), mode
        assert clip_score([sample(image)]) == pytest.approx([fits], abs=digits), mode


def test_the_activation_and_preprocessing_are_those_of_the_named_weights(monkeypatch, params, tiny):
    """open_clip builds ViT-L-14 with another activation than OpenAI's weights want, and only warns."""
    assert open_clip.get_pretrained_cfg("ViT-L-14", "openai")["quick_gelu"]
    assert not open_clip.get_model_config("ViT-L-14").get("quick_gelu", False)
    named = {"hf_hub": "nobody/tiny/", "mean": (0.5,) * 3, "std": (0.5,) * 3, "quick_gelu": True}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-clip", {"quick": named})
    params["pretrained"] = "quick"
    quick = open_clip.create_model("tiny-clip", pretrained=tiny.torch_file, force_quick_gelu=True).eval()
    x = prepared(picture(1), (0.5,) * 3, (0.5,) * 3)
    with torch.no_grad():
        image = torch.nn.functional.normalize(quick.encode_image(x), dim=-1)
        words = torch.nn.functional.normalize(quick.encode_text(open_clip.tokenize(["cat"], context_length=16)), dim=-1)
    (got,) = ClipScoreReward(**params)([sample(picture(1), "cat")])
    assert got == pytest.approx(float(image @ words.T), abs=1e-5)
    assert abs(got - by_hand(tiny, x, "cat")[1]) > 1e-4


def test_the_second_reward_runs_no_image_tower(aesthetic, clip_score, passes):
    samples = [sample(picture(i), f"number {i}", group=i // 2) for i in range(20)]
    assert aesthetic.tower is clip_score.tower
    liked = aesthetic(samples)
    assert passes == [16, 4]
    fits = clip_score(samples)
    assert aesthetic(samples) == liked
    assert passes == [16, 4]
    new = sample(picture(99))
    clip_score([new, new, sample(picture(99))])  # one content
    assert passes == [16, 4, 1]
    aesthetic.tower._images.clear()
    assert clip_score(samples) == fits
    assert passes == [16, 4, 1, 16, 4]


def test_scores_do_not_depend_on_earlier_calls(clip_score, passes):
    """Not by the last bit: a resumed run starts with an empty cache."""
    samples = [sample(picture(i), f"number {i}") for i in range(9)]
    first = clip_score(samples)
    clip_score.tower._images.clear()
    clip_score.tower._texts.clear()
    for row in (7, 2, 4):
        clip_score([samples[row]])
    del passes[:]
    assert clip_score(samples) == first
    assert passes == [9]


def test_two_rewards_at_once_run_the_image_tower_once(aesthetic, clip_score, passes, params, tiny):
    samples = [sample(picture(i), f"number {i}") for i in range(12)]
    alone = ClipScoreReward(**{**params, "weights_path": tiny.safetensors_file})
    got = {}
    threads = [
        threading.Thread(target=lambda name=name, reward=reward: got.update({name: reward(samples)}))
        for name, reward in (("aesthetic", aesthetic), ("clip-score", clip_score))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passes == [12]
    assert got["aesthetic"] == aesthetic(samples)
    assert got["clip-score"] == alone(samples)


def test_other_parameters_take_another_model_and_the_last_reward_frees_it(params, tiny, clip_score):
    other = ClipScoreReward(**{**params, "dtype": "bfloat16"})
    copy = ClipScoreReward(**{**params, "weights_path": tiny.safetensors_file})
    assert len({id(reward.tower) for reward in (clip_score, other, copy)}) == 3
    assert ClipScoreReward(**params, batch_size=3, scale=2.5).tower is clip_score.tower
    assert len(tower._towers) == 3
    del other, copy
    gc.collect()
    assert list(tower._towers.values()) == [clip_score.tower]


def test_a_file_that_was_replaced_is_read_again(params, tiny, tmp_path):
    weights = torch.load(tiny.torch_file)
    torch.save(weights, tmp_path / "mine.pt")
    params["weights_path"] = str(tmp_path / "mine.pt")
    first = ClipScoreReward(**params)
    before = first([sample(picture(1))])
    weights["visual.proj"] = -weights["visual.proj"]
    torch.save({**weights, "logit_scale": torch.tensor(1.0)}, tmp_path / "mine.pt")
    second = ClipScoreReward(**params)
    assert second([sample(picture(1))]) == pytest.approx([-before[0]], abs=1e-6)
    assert first([sample(picture(1))]) == before


def test_no_more_embeddings_are_kept_than_agreed(monkeypatch, aesthetic, clip_score, passes):
    monkeypatch.setattr(tower, "KEPT", 5)
    samples = [sample(picture(i), f"number {i}") for i in range(9)]
    liked, fits = aesthetic(samples), clip_score(samples)
    assert not aesthetic.tower._images  # one batch of 9
    assert not clip_score.tower._texts
    for start in (0, 3, 6):
        aesthetic(samples[start : start + 3])
    assert [len(batch) for batch in aesthetic.tower._images.values()] == [3]
    del passes[:]
    assert aesthetic(samples[6:]) == pytest.approx(liked[6:], abs=1e-6)  # the latest are there
    assert passes == []
    assert clip_score(samples) == fits
    assert aesthetic(samples[:1]) == pytest.approx(liked[:1], abs=1e-6)
    assert clip_score(samples) == pytest.approx(fits, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_batches_and_order_do_not_matter(params, tiny, batch_size):
    sizes = [(48, 40), (64, 33), (48, 40), (40, 48), (12, 90)]
    batch = [sample(picture(i, *size), f"number {i}") for i, size in enumerate(sizes)]
    for reward in (
        AestheticReward(**params, head_path=tiny.head, batch_size=batch_size),
        ClipScoreReward(**params, batch_size=batch_size),
    ):
        alone = []
        for one in batch:
            reward.tower._images.clear()
            reward.tower._texts.clear()
            alone += reward([one])
        for rows in (batch, batch[::-1]):
            reward.tower._images.clear()
            reward.tower._texts.clear()
            assert reward(rows) == pytest.approx(alone if rows is batch else alone[::-1], abs=1e-6)
        assert len({round(x, 4) for x in alone}) == 5
        assert reward([]) == []


def test_a_very_long_picture_is_cut_to_its_middle(tiny, clip_score):
    for size in ((4, 1024), (1024, 4)):
        image = picture(5, *size)
        wanted = by_hand(tiny, prepared(image), "a picture")[1]
        assert clip_score([sample(image)]) == pytest.approx([wanted], abs=1e-5)
        assert max(clip_score.tower._middle(image).size) == 256


def test_scale(params, tiny, aesthetic, clip_score):
    rows = [sample(picture(i), "a cat") for i in range(3)]
    liked = AestheticReward(**params, head_path=tiny.head, scale=0.1)(rows)
    assert liked == pytest.approx([0.1 * x for x in aesthetic(rows)], abs=1e-12)
    assert ClipScoreReward(**params, scale=100)(rows) == pytest.approx([100 * x for x in clip_score(rows)], abs=1e-12)


def test_a_prompt_beyond_the_context_is_cut_and_said_once(clip_score, tiny):
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "red", "blue", "cat", "dog"]
    assert len(words) == 14  # all that fits beside the marks of start and end in this context of 16
    image = picture(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (whole,) = clip_score([sample(image, " ".join(words))])
    with pytest.warns(UserWarning, match=r"reads the first 14 tokens of a prompt; 'one two .*\.\.\.' has 15\. What"):
        (cut,) = clip_score([sample(image, " ".join([*words, "tree"]))])
    assert cut == whole == pytest.approx(by_hand(tiny, prepared(image), " ".join(words))[1], abs=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip_score([sample(image, " ".join([*words, "house"]))])
        assert clip_score([sample(image, " ".join(words[:13]))])[0] != whole


@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 0.05), ("float16", 0.005)])
def test_other_precisions(params, tiny, clip_score, dtype, digits):
    other = ClipScoreReward(**params, dtype=dtype)
    assert getattr(torch, dtype) in {p.dtype for p in other.tower.model.parameters()}
    rows = [sample(picture(i), f"number {i}") for i in range(4)]
    assert other(rows) == pytest.approx(clip_score(rows), abs=digits)
    assert other(rows) != clip_score(rows)
    assert len(AestheticReward(**params, head_path=tiny.head, dtype=dtype)(rows)) == 4


def test_an_autocast_around_the_call_changes_nothing(clip_score):
    rows = [sample(picture(1), "a cat")]
    plain = clip_score(rows)
    clip_score.tower._images.clear()
    clip_score.tower._texts.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert clip_score(rows) == plain


def test_inputs_are_left_alone(aesthetic):
    output = picture(1, 30, 30).convert("RGBA")
    before = output.tobytes()
    aesthetic([sample(output)])
    assert (output.tobytes(), output.mode, output.size) == (before, "RGBA", (30, 30))


def test_building_leaves_random_states_and_logging_alone(monkeypatch, params, tiny):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    AestheticReward(**params, head_path=tiny.head)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert root.handlers == []


def test_nothing_of_the_model_can_be_trained(clip_score):
    assert not any(p.requires_grad for p in clip_score.tower.model.parameters())
    assert not any(module.training for module in clip_score.tower.model.modules())


@pytest.mark.parametrize(("output", "named"), [("text", "str"), (None, "NoneType"), (np.zeros((8, 8, 3)), "ndarray")])
def test_an_output_of_the_wrong_type_is_refused(aesthetic, clip_score, output, named):
    for name, reward in (("aesthetic", aesthetic), ("clip-score", clip_score)):
        with pytest.raises(RewardError, match=rf"as the output of row 1 \(reward '{name}'\), got {named}"):
            reward([sample(picture(1)), sample(output)])


def test_numbers_that_are_not_finite_stop_the_run(params, tiny, tmp_path):
    state = torch.load(tiny.torch_file)
    state["visual.proj"][0, 0] = torch.inf
    torch.save(state, tmp_path / "inf.pt")
    params["weights_path"] = str(tmp_path / "inf.pt")
    said = r"^The CLIP model 'tiny-clip' gave numbers that are not finite for the output of row 0 \(reward 'clip-score'"
    with pytest.raises(RewardError, match=said + r"\) in torch\.float32\. Use dtype: float32, or check its weights\.$"):
        ClipScoreReward(**params)([sample(picture(1))])


@pytest.mark.parametrize("name", ["aesthetic", "clip-score"])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dtype": "float64"}, "dtype must be one of float32, bfloat16, float16, got 'float64'."),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0."),
        ({"scale": 0.0}, "scale must be a number above 0, got 0.0."),
        ({"scale": math.inf}, "scale must be a number above 0, got inf."),
    ],
)
def test_wrong_parameters_are_refused(params, tiny, name, changed, said):
    with pytest.raises(UsageError) as refused:
        build(name, {**params, **changed}, tiny)
    assert str(refused.value) == f"{name}: {said}"


def build(name, params, tiny):
    if name == "aesthetic":
        return AestheticReward(**params, head_path=tiny.head)
    return ClipScoreReward(**params)


@pytest.mark.parametrize("name", ["aesthetic", "clip-score"])
def test_a_device_that_is_not_there_is_refused(params, tiny, name):
    with pytest.raises(UsageError, match=rf"^{name}: the device 'abacus' cannot be used here: .*Leave it out, or set"):
        build(name, {**params, "device": "abacus"}, tiny)


def test_the_registry_builds_them(params, tiny, aesthetic, clip_score):
    rows = [sample(picture(1), "a cat")]
    assert grpokit.create("reward", "aesthetic", {**params, "head_path": tiny.head})(rows) == aesthetic(rows)
    assert grpokit.create("reward", "clip-score", params)(rows) == clip_score(rows)
    with pytest.raises(PluginError, match="dtype must be 'float32' or 'bfloat16' or 'float16', got 'half'"):
        grpokit.create("reward", "clip-score", {"dtype": "half"})
    with pytest.raises(PluginError, match=r"has no parameter 'head_pth'.*\(did you mean 'head_path'\?\)"):
        grpokit.create("reward", "aesthetic", {"head_pth": "x"})


def forget(monkeypatch):
    for module in ("reward", "tower", "loading", "weights", "head"):
        monkeypatch.delitem(sys.modules, f"grpokit_clip.{module}")
        monkeypatch.delattr(f"grpokit_clip.{module}")


@pytest.mark.parametrize("name", ["aesthetic", "clip-score"])
def test_a_missing_dependency_names_the_install_command(monkeypatch, name):
    forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(PluginError, match=r"needs the Python module 'open_clip'.*pip install 'grpokit\[clip\]'"):
        grpokit.create("reward", name)


def test_a_torchvision_for_another_torch_is_explained(monkeypatch):
    real = builtins.__import__

    def importing(module, *rest, **more):
        if module == "open_clip":
            raise RuntimeError("operator torchvision::nms does not exist")
        return real(module, *rest, **more)

    forget(monkeypatch)
    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(PluginError, match=r"install the build of torchvision that matches your torch"):
        grpokit.create("reward", "clip-score")


def test_announcing_the_rewards_imports_nothing_heavy():
    code = """
import sys
import grpokit_clip.plugin
specs = {spec.name: (spec.range, spec.accepts, spec.install) for spec in grpokit_clip.plugin.grpokit_rewards()}
said = ((None, None), {"image"}, "pip install 'grpokit[clip]'")
assert specs == {"aesthetic": said, "clip-score": said}
assert not {"numpy", "PIL", "open_clip", "torch", "torchvision", "huggingface_hub"} & set(sys.modules), sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
