"""pickscore, hpsv2 and imagereward against their published formulas, computed apart from the package."""

import math

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision import transforms
from transformers import AutoTokenizer, CLIPImageProcessorPil

from grpokit import Prompt, RewardError, Sample, UsageError, create
from grpokit_preference.hpsv2 import HPSv2Reward
from grpokit_preference.imagereward import ImageRewardReward
from grpokit_preference.pickscore import PickScoreReward
from grpokit_preference.pictures import MEAN, STD, pixels, whole_pixels

CLASSES = {"pickscore": PickScoreReward, "hpsv2": HPSv2Reward, "imagereward": ImageRewardReward}
NAMES = tuple(CLASSES)


def noise(width, height, seed):
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


PICTURES = [noise(64, 64, 0), noise(94, 40, 1), noise(30, 75, 2), noise(32, 33, 3), noise(64, 64, 4)]
TEXTS = ['a sign that says "cat"', 'a sign that says "cat"', "two dogs", "a cat " * 30, "x"]


def sample(picture, text):
    return Sample(prompt=Prompt(text=text), output=picture, group=0)


SAMPLES = [sample(picture, text) for picture, text in zip(PICTURES, TEXTS, strict=True)]


def by_hand(tiny, name, picture, text):
    with torch.inference_mode():
        return float({"pickscore": pickscore, "hpsv2": hpsv2, "imagereward": image_reward}[name](tiny, picture, text))


def pickscore(tiny, picture, text):
    """As the model card has it: processor, features of length 1, exp(logit scale) times their product."""
    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    tokenizer = AutoTokenizer.from_pretrained(tiny.params["pickscore"]["tokenizer"])
    words = tokenizer(text, padding="max_length", truncation=True, max_length=24, return_tensors="pt")
    found = tiny.clip(**processor(picture, return_tensors="pt"), **words)
    image = found.image_embeds / found.image_embeds.norm(dim=-1, keepdim=True)
    words = found.text_embeds / found.text_embeds.norm(dim=-1, keepdim=True)
    return tiny.clip.logit_scale.exp() * (words @ image.T)[0, 0]


def hpsv2(tiny, picture, text):
    """As img_score.py has it: the product of the model's normalised features, of the whole picture."""
    found = tiny.open_clip(whole(picture, 32)[None], open_clip.get_tokenizer("tiny-hps")([text]))
    return (found["image_features"] @ found["text_features"].T)[0, 0]


def whole(picture, size):
    """As `image_transform` of the published package has it where `light_augmentation` is on."""
    x = transforms.functional.to_tensor(picture)
    if size != max(picture.size):
        sides = [round(side * (size / max(picture.size))) for side in x.shape[1:]]
        x = transforms.functional.resize(x, sides, transforms.InterpolationMode.BICUBIC, antialias=True)
    down, right = (size - side for side in x.shape[1:])
    x = transforms.functional.pad(x, [right // 2, down // 2, right - right // 2, down - down // 2])
    return transforms.functional.normalize(x, MEAN, STD)


def image_reward(tiny, picture, text):
    """As ImageReward.py, BLIP's vit.py and med.py have it, on the published names."""
    state = tiny.state

    def linear(name, x):
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name, x, eps):
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    def attention(q, k, v, mask=None):
        q, k, v = (x.unflatten(-1, (-1, 64)).transpose(0, 1) for x in (q, k, v))
        weights = q @ k.transpose(1, 2) / 8 + (0 if mask is None else mask)
        return (weights.softmax(-1) @ v).transpose(0, 1).flatten(1)

    prepare = transforms.Compose(
        [
            transforms.Resize(32, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    see = "blip.visual_encoder"
    patches = F.conv2d(
        prepare(picture)[None], state[f"{see}.patch_embed.proj.weight"], state[f"{see}.patch_embed.proj.bias"], stride=8
    )
    x = torch.cat([state[f"{see}.cls_token"][0], patches[0].flatten(1).T]) + state[f"{see}.pos_embed"][0]
    for i in range(2):
        block = f"{see}.blocks.{i}"
        q, k, v = linear(f"{block}.attn.qkv", norm(f"{block}.norm1", x, 1e-6)).chunk(3, -1)
        x = x + linear(f"{block}.attn.proj", attention(q, k, v))
        x = x + linear(f"{block}.mlp.fc2", F.gelu(linear(f"{block}.mlp.fc1", norm(f"{block}.norm2", x, 1e-6))))
    seen = norm(f"{see}.norm", x, 1e-6)
    tokenizer = AutoTokenizer.from_pretrained(tiny.params["imagereward"]["tokenizer"])
    words = tokenizer(text, padding="max_length", truncation=True, max_length=35, return_tensors="pt")
    mask = torch.where(words.attention_mask[0] == 1, 0.0, -1e4)
    read = "blip.text_encoder"
    x = state[f"{read}.embeddings.word_embeddings.weight"][words.input_ids[0]]
    x = norm(f"{read}.embeddings.LayerNorm", x + state[f"{read}.embeddings.position_embeddings.weight"][:35], 1e-12)
    for i in range(2):
        layer = f"{read}.encoder.layer.{i}"
        for name, other, hidden in (("attention", None, mask), ("crossattention", seen, None)):
            own = f"{layer}.{name}.self"
            source = x if other is None else other
            found = attention(
                linear(f"{own}.query", x), linear(f"{own}.key", source), linear(f"{own}.value", source), hidden
            )
            x = norm(f"{layer}.{name}.output.LayerNorm", linear(f"{layer}.{name}.output.dense", found) + x, 1e-12)
        wide = F.gelu(linear(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output.LayerNorm", linear(f"{layer}.output.dense", wide) + x, 1e-12)
    x = x[0]
    for place in (0, 2, 4, 6, 7):
        x = linear(f"mlp.layers.{place}", x)
    return (x[0] - 0.16717362830052426) / 1.0333394966054072


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_equal_to_the_published_formula(tiny, name, batch_size, device):
    wanted = [by_hand(tiny, name, s.output, s.prompt.text) for s in SAMPLES]
    scores = create("reward", name, {**tiny.params[name], "batch_size": batch_size, "device": device})(SAMPLES)
    assert np.ptp(wanted) > 0.01
    assert scores == pytest.approx(wanted, rel=1e-5 if device == "cpu" else 5e-5, abs=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_a_score_is_bit_for_bit_the_same_alone_and_among_others(tiny, name, dtype):
    reward = create("reward", name, {**tiny.params[name], "dtype": dtype})
    many = [sample(noise(40, 40, seed), f"number {seed}") for seed in range(13)]
    together = reward(many)
    assert [reward([one])[0] for one in many] == together
    assert reward(many[::-1])[::-1] == together


@pytest.mark.parametrize("name", NAMES)
def test_picture_and_prompt_both_count(tiny, name):
    reward = create("reward", name, tiny.params[name])
    a, other_picture, other_text = reward(
        [sample(PICTURES[0], "a cat"), sample(PICTURES[1], "a cat"), sample(PICTURES[0], "a dog")]
    )
    assert abs(a - other_picture) > 1e-3
    assert abs(a - other_text) > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_scored_is_nan_and_moves_no_other_row(tiny, name):
    reward = create("reward", name, tiny.params[name])
    gaps = [sample(None, "a cat"), SAMPLES[0], sample(PICTURES[0], "  \n"), SAMPLES[2], sample(None, "")]
    scores = reward(gaps)
    assert [math.isnan(x) for x in scores] == [True, False, True, False, True]
    assert [scores[1], scores[3]] == pytest.approx(reward([SAMPLES[0], SAMPLES[2]]), abs=1e-6)
    assert reward([]) == []
    with pytest.raises(RewardError, match=rf"PIL.Image.Image as the output of row 1 \(reward '{name}'\), got str"):
        reward([SAMPLES[0], sample("a text", "a cat")])


@pytest.mark.parametrize("name", NAMES)
def test_lower_precision_is_near_and_an_outer_autocast_changes_nothing(tiny, name):
    exact = create("reward", name, tiny.params[name])
    wanted = exact(SAMPLES)
    with torch.autocast("cpu", torch.bfloat16):
        assert exact(SAMPLES) == wanted
    near = create("reward", name, {**tiny.params[name], "dtype": "bfloat16"})(SAMPLES)
    assert near != wanted
    assert near == pytest.approx(wanted, abs=0.05 * max(map(abs, wanted)))


@pytest.mark.parametrize("size", [(33, 45), (45, 33), (32, 37), (50, 32), (7, 9)])
def test_pixels_are_those_of_the_libraries(size):
    """Odd remainders are cut off on different sides by the two."""
    picture = noise(*size, seed=5)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    prepare = open_clip.image_transform(32, is_train=False)
    assert torch.equal(pixels([picture], 32, odd="even")[0], prepare(picture))
    theirs = processor(picture, return_tensors="pt").pixel_values
    assert torch.allclose(pixels([picture], 32, odd="down"), theirs, atol=1e-6)
    assert torch.equal(whole_pixels([picture], 32)[0], whole(picture, 32))


def test_hpsv2_sees_the_sides_of_a_wide_picture_and_black_above_it(tiny):
    """Pictures that differ outside their middle get the same score where only the middle is looked at."""
    wide, other = noise(96, 32, 6), noise(96, 32, 6)
    other.paste("white", (0, 0, 30, 32))
    both = [sample(wide, "a cat"), sample(other, "a cat")]
    a, b = create("reward", "hpsv2", tiny.params["hpsv2"])(both)
    assert abs(a - b) > 1e-3
    a, b = create("reward", "pickscore", tiny.params["pickscore"])(both)
    assert a == b
    seen = whole_pixels([Image.new("RGB", (1, 100), "white")], 32)[0]  # as thin as it may get: one pixel is left
    black = (0 - torch.tensor(MEAN)) / torch.tensor(STD)
    assert [x for x in range(32) if not torch.allclose(seen[:, 5, x], black)] == [15]


def test_a_very_long_picture_is_cut_before_it_is_enlarged(monkeypatch):
    picture = noise(1000, 2, seed=5)
    wanted = pixels([picture.crop((436, 0, 564, 2))], 32, odd="even")
    sizes, resize = [], Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda x, size, *rest: sizes.append(size) or resize(x, size, *rest))
    assert torch.equal(pixels([picture], 32, odd="even"), wanted)
    assert sizes == [(64 * 32, 32)]


def test_scores_that_are_not_finite_stop_the_run(tiny, tmp_path):
    state = {**tiny.state, "mlp.layers.7.bias": torch.tensor([torch.nan])}
    torch.save(state, tmp_path / "broken.pt")
    reward = ImageRewardReward(**{**tiny.params["imagereward"], "weights": str(tmp_path / "broken.pt")})
    with pytest.raises(
        RewardError, match=r"row 1 \(reward 'imagereward'\) is nan in torch.float32. Use dtype: float32"
    ):
        reward([sample(None, "a"), SAMPLES[0]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dtype": "int8"}, r": dtype must be one of float32, bfloat16, float16, got 'int8'\.$"),
        ({"batch_size": 0}, r": batch_size must be at least 1, got 0\.$"),
        ({"device": "gpu"}, r": the device 'gpu' cannot be used here: .* Leave it out, or set cpu\.$"),
        ({"device": "meta"}, r": the device 'meta' cannot be used here: .* Leave it out, or set cpu\.$"),
    ],
)
def test_parameters_are_checked_before_weights_are_looked_for(name, changed, said):
    with pytest.raises(UsageError, match=f"^{name}{said}"):
        CLASSES[name](**changed)
