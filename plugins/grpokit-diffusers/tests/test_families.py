"""What families do beside the transformer's call: sources of edits, packing, texts that are kept, folders."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_edits import EVERY, SOURCES, noise, prompts_of

from grpokit import Prompt, UsageError
from grpokit.sampling import derive_seeds
from grpokit_diffusers.pipeline import prepare
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.settings import DiffusersSettings
from grpokit_diffusers.tiny import PIPELINES, tiny_pipeline


def build(model: Any, **options: Any) -> DiffusersFlow:
    return DiffusersFlow(model, **{"size": (32, 32), "steps": 2, "eval_steps": 2, "lora": {"r": 2}} | options)


def pictures(policy: DiffusersFlow, prompts: list[Prompt]) -> np.ndarray:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=2)
    samples = policy.rollout(prompts, 2, seeds=seeds, evaluate=True).samples
    return np.stack([np.asarray(sample.output, dtype=int) for sample in samples])


@pytest.mark.parametrize(
    ("model", "sides", "size", "expected"),
    [
        ("tiny-flux-kontext", (20, 40), (1024, 1024), (720, 1456)),  # of shape 0.5: 720 / 1456 is nearest
        ("tiny-flux-kontext", (300, 200), (1024, 1024), (1248, 832)),
        ("tiny-flux-kontext", (20, 40), (512, 512), (360, 728)),
        ("tiny-flux-kontext", (100, 100), (32, 48), (36, 36)),  # 39.2, down to a multiple of 4
        ("tiny-flux2-klein", (300, 203), (1024, 1024), (300, 200)),
        ("tiny-flux2-klein", (3000, 2000), (1024, 1024), (1252, 836)),  # 1254.1 x 836.1
        ("tiny-flux2-klein", (3000, 2000), (2048, 2048), (1252, 836)),
        ("tiny-flux2-klein", (3000, 2000), (512, 512), (624, 416)),  # 627.1 x 418.0
        ("tiny-longcat-image-edit", (300, 200), (512, 384), (384, 512)),  # of the result's shape
        ("tiny-qwen-image-21", (300, 200), (1024, 1024), (1248, 832)),
        ("tiny-qwen-image-edit", (300, 200), (1024, 1024), (1248, 832)),  # 1254.1 x 836.1, to multiples of 32
        ("tiny-qwen-image-edit", (300, 200), (2048, 2048), (1248, 832)),
        ("tiny-qwen-image-edit-plus", (3000, 2000), (512, 512), (640, 416)),
    ],
)
def test_the_size_of_a_source(
    model: str, sides: tuple[int, int], size: tuple[int, int], expected: tuple[int, int]
) -> None:
    family: Any = build(model).family
    assert family.prepared(Image.new("RGB", sides), size).size == expected


@pytest.mark.parametrize("model", SOURCES)
def test_sources_are_seen_as_the_stock_pipeline_sees_them(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a result of its own size, to the bit: one that it makes smaller, and one that it may make larger."""
    family: Any = build(model).family
    pipeline, pictures = family.pipeline, [noise(1500, 901), noise(300, 211)][: SOURCES[model]]
    seen: list[torch.Tensor] = []
    read: list[torch.Tensor] = []

    def encode(x: torch.Tensor) -> Any:
        seen.append(x)
        sides = [side // pipeline.vae_scale_factor for side in x.shape[-2:]]
        channels = pipeline.vae.config.get("latent_channels", 4)
        latents = torch.zeros(1, channels, *x.shape[2:-2], *sides)
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: latents))

    monkeypatch.setattr(pipeline.vae, "encode", encode)
    forward = pipeline.text_encoder.forward
    pixels = {"pixel_values": torch.zeros(0)}
    monkeypatch.setattr(
        pipeline.text_encoder, "forward", lambda *x, **y: read.append((pixels | y)["pixel_values"]) or forward(*x, **y)
    )
    size = (800, 1328) if "longcat" in model else (1024, 1024)  # that of LongCat-Image-Edit's result of this picture
    family.condition(Prompt(text="cat", images=pictures), size, {})
    ours = [*seen, *read]
    seen.clear()
    read.clear()
    monkeypatch.setattr(pipeline.scheduler, "set_timesteps", lambda sigmas, **_: 1 / 0)
    negative = {"negative_prompt": " ", "true_cfg_scale": 4.0} if "qwen" in model else {}
    with pytest.raises(ZeroDivisionError):
        pipeline(image=pictures if len(pictures) > 1 else pictures[0], prompt="cat", **negative)
    assert len(seen) == len(pictures)
    assert all(x.numel() for x in read) == ("qwen" in model or "longcat" in model)
    assert all(torch.equal(x, y) for x, y in zip(ours, [*seen, *read], strict=True))


@pytest.mark.parametrize("model", SOURCES)
def test_a_source_is_seen_and_belongs_to_its_prompt(model: str) -> None:
    """Another source gives another picture, one more or none too, and the other prompt of the batch keeps its own."""
    policy = build(model)
    first, second = noise(64, 64), noise(65, 64)
    images = [[first], [second], [first, second], [second, first]] if SOURCES[model] > 1 else [[first], [second]]
    images += [] if policy.family.needs_source else [[]]
    other = Prompt(text="brighter", images=[second])
    found = [pictures(policy, [Prompt(text="brighter", images=each), other]) for each in images]
    assert all((x[:2] != y[:2]).any() for x, y in itertools.combinations(found, 2))
    assert all((x[2:] == found[0][2:]).all() for x in found)


@pytest.mark.parametrize("model", SOURCES)
def test_a_source_is_looked_at_for_each_size(model: str) -> None:
    """A policy that has trained at one size evaluates at another as a new one does."""
    prompts = [Prompt(text="brighter", image=noise(64, 64))]
    used, new = (build(model, eval_size=(64, 64)) for _ in range(2))
    used.rollout(prompts, 2, seeds=derive_seeds(0, stream="train", step=0, prompts=1, group_size=2))
    assert (pictures(used, prompts) == pictures(new, prompts)).all()


def test_what_does_not_fit_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text that was not needed for longest goes first."""
    monkeypatch.setattr("grpokit_diffusers.family.KEPT", 2 * 512 * 24 * 4)
    policy = build("tiny-flux2-klein")
    made: list[str] = []
    encode = policy.pipeline.encode_prompt
    monkeypatch.setattr(policy.pipeline, "encode_prompt", lambda text, **_: made.append(text) or encode(text))
    for text in ("a", "b", "a", "c", "a", "b"):
        policy.family.kept(policy.family.encoded, text)
    assert made == ["a", "b", "c", "b"]


@pytest.mark.parametrize("model", PIPELINES)
def test_how_many_pictures_a_prompt_may_bring(model: str) -> None:
    policy, most = build(model), SOURCES.get(model, 0)
    policy.check(prompts_of(model))
    many = Prompt(text="a cat", images=[noise(64, 64)] * (most + 1))
    says = "1 source picture, and .*Pipeline reads only text"
    if most:
        says = rf"Pipeline reads at most {most} pictures? with a prompt; 'a cat' brings {most + 1}\."
    with pytest.raises(UsageError, match=says):
        policy.check([many])


@pytest.mark.parametrize(("sides", "says"), [((63, 90), "too small: 63×90"), ((64, 520), "too extreme")])
def test_sources_that_flux2_refuses(sides: tuple[int, int], says: str) -> None:
    with pytest.raises(UsageError, match=f"source picture of 'a cat' cannot be used: .*{says}"):
        build("tiny-flux2-klein").check([Prompt(text="a cat", image=noise(*sides))])


@pytest.mark.parametrize("model", ["tiny-longcat-image-edit", "tiny-qwen-image-edit", "tiny-qwen-image-edit-plus"])
def test_a_prompt_without_a_picture_to_edit_is_refused(model: str) -> None:
    with pytest.raises(UsageError, match=r"edits a picture, and 'a cat' brings none\. .*data\.columns\.image=source"):
        build(model).check([Prompt(text="a cat")])


@pytest.mark.parametrize("distilled", [False, True])
def test_a_distilled_model_has_no_guidance(distilled: bool, tmp_path: Path) -> None:
    """A second pass is neither taken nor planned."""
    pipeline = tiny_pipeline("tiny-flux2-klein")
    pipeline.register_to_config(is_distilled=distilled)
    pipeline.save_pretrained(tmp_path)
    plain, guided = (build(str(tmp_path), eval_guidance=guidance) for guidance in (1.0, 4.0))
    assert (pictures(plain, prompts_of("")) == pictures(guided, prompts_of(""))).all() == distilled
    (tmp_path / "whole").mkdir()
    plain.export(tmp_path / "whole", merge=True)
    assert json.loads((tmp_path / "whole" / "model_index.json").read_text())["is_distilled"] == distilled
    family = prepare(DiffusersSettings(str(tmp_path))).skeleton()
    assert (family is not None and family.negative is None) == distilled


@pytest.mark.parametrize("model", PIPELINES)
def test_tokens_of_the_pipelines_own_are_refused(model: str) -> None:
    policy = build(model)
    policy.check(prompts_of(model, ["a < b, \U0001f600 <unknown>"]))  # T5's tokenizer has no such letter
    components = policy.pipeline.components
    tokenizer = components.get("tokenizer") or components["processor"]
    end = getattr(tokenizer, "tokenizer", tokenizer).all_special_tokens[0]
    with pytest.raises(UsageError, match=f"has '{re.escape(end)}' in its text, which is a token of the model's own"):
        policy.check(prompts_of(model, [f"a cat {end} a dog"]))


@pytest.mark.parametrize("model", [name for name in PIPELINES if "qwen-image-" not in name])
def test_the_longest_text_is_read_whole(model: str) -> None:
    """Its last letter changes what the transformer reads, and one letter more is refused."""
    family: Any = build(model).family
    longest = "x" * (family.longest_text - family.text_length("x") + 1)
    (prompt,) = prompts_of(model, [longest])
    one, other = (family.read(text, prompt, (32, 32)) for text in (longest, longest[:-1] + "y"))
    assert not all(map(torch.equal, one, other))
    family.check([prompt])
    with pytest.raises(UsageError, match=rf"has {family.longest_text + 1:,} tokens .* most {family.longest_text:,}\."):
        family.check(prompts_of(model, [longest + "x"]))


def test_without_t5_a_text_is_as_long_as_clip_reads() -> None:
    pipeline = tiny_pipeline("tiny-sd3")
    pipeline.register_modules(text_encoder_3=None, tokenizer_3=None)
    with pytest.raises(UsageError, match=r"has 78 tokens .* reads at most 77"):
        build(pipeline).check([Prompt(text="x" * 76)])


def test_a_distilled_krea2_has_one_shift_for_all_sizes() -> None:
    """By hand: e^1.15 / (e^1.15 + 1 / t - 1) at t = 1, 1/2."""
    pipeline = tiny_pipeline("tiny-krea2")
    pipeline.register_to_config(is_distilled=True)
    family = build(pipeline).family
    for size in ((32, 32), (64, 96)):
        torch.testing.assert_close(family.schedule(2, size).sigmas.tolist(), [1.0, 0.759511, 0.0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("model", EVERY)
def test_checkpointed_blocks_get_all_that_others_get(model: str) -> None:
    """A mask that is left out changes the log-probs of training alone: ratios then do not start at 1."""
    policy, prompts = build(model, guidance=2.0), prompts_of(model)
    rollout = policy.rollout(
        prompts, 2, seeds=derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=2)
    )
    weights = torch.arange(1.0, 5.0)[:, None]
    trained = [weight for weight in policy.model.parameters() if weight.requires_grad]

    def gradients() -> tuple[torch.Tensor, ...]:
        logprobs = policy.logprobs(rollout, slice(None)).logprobs
        torch.testing.assert_close(logprobs, rollout.old.logprobs, atol=1e-6, rtol=0)
        return torch.autograd.grad((logprobs * weights).sum(), trained)

    plain = gradients()
    policy.family.transformer.enable_gradient_checkpointing()
    torch.testing.assert_close(gradients(), plain, atol=1e-6, rtol=1e-4)


def test_packing_and_unpacking() -> None:
    family: Any = build("tiny-flux", size=(16, 24)).family
    latents = torch.randn(2, 4, 8, 12)
    packed = family.packed(latents)
    assert packed.shape == (2, *family.latent_shape((16, 24)))
    assert torch.equal(packed, family.pipeline._pack_latents(latents, 2, 4, 8, 12))
    assert torch.equal(family.unpacked(packed, (16, 24)), latents)


def test_a_text_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build("tiny-sd3")
    texts = []
    encode = policy.pipeline.encode_prompt
    monkeypatch.setattr(
        policy.pipeline,
        "encode_prompt",
        lambda text, *rest, **options: texts.append(text) or encode(text, *rest, **options),
    )
    for _ in range(2):
        pictures(policy, [Prompt(text="cat"), Prompt(text="dog")])
    assert sorted(texts) == ["", "cat", "dog"]


@pytest.mark.parametrize("model", EVERY)
def test_a_pipeline_from_a_folder_and_its_adapter(model: str, tmp_path: Path) -> None:
    """A saved pipeline draws the pictures of the object, and a saved adapter those of the trained policy.

    To one level of 255: weights that lie elsewhere in memory are multiplied in another order.
    """
    pipeline = tiny_pipeline(model)
    pipeline.save_pretrained(tmp_path / "model")
    prompts = prompts_of(model, ["a cat"])
    policy, again = build(pipeline), build(str(tmp_path / "model"))
    before = pictures(policy, prompts)
    assert np.abs(pictures(again, prompts) - before).max() <= 1
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.2)
    after = pictures(policy, prompts)
    assert np.abs(after - before).max() > 3
    again.load_state_dict(policy.state_dict())
    assert np.abs(pictures(again, prompts) - after).max() <= 1


def test_full_training_has_no_adapter_and_a_frozen_reference() -> None:
    policy = build("tiny-z-image", lora=None)
    assert all(p.requires_grad for p in policy.family.transformer.parameters())
    assert not any(p.requires_grad for p in policy.pipeline.text_encoder.parameters())


@pytest.mark.parametrize("merge", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("model", EVERY)
def test_a_stock_pipeline_has_what_was_exported(model: str, merge: bool, tmp_path: Path) -> None:
    """Its own loader adds the adapter, or the whole pipeline is read; both draw what the policy draws."""
    policy, prompts = build(model), prompts_of(model)
    plain = pictures(policy, prompts)
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if ".lora_B." in name:
                p.add_(0.2)
    trained = pictures(policy, prompts)
    facts = policy.export(tmp_path, merge=merge)
    assert ("load_lora_" in facts["usage"]) == (not merge)
    pipeline = type(policy.pipeline).from_pretrained(tmp_path) if merge else tiny_pipeline(model)
    if not merge:
        assert [file.name for file in tmp_path.iterdir()] == ["pytorch_lora_weights.safetensors"]
        if "load_lora_weights" in facts["usage"]:
            pipeline.load_lora_weights(tmp_path)
        else:  # LongCat-Image's pipelines have no loader, and their transformer has
            pipeline.transformer.load_lora_adapter(tmp_path, use_safetensors=True)
        pipeline.transformer.fuse_lora()
        pipeline.transformer.unload_lora()
    stock = pictures(build(pipeline, lora=None), prompts)
    assert np.abs(stock - trained).max() <= 1
    assert np.abs(plain - trained).max() > 5
    modes = {file.stat().st_mode for file in tmp_path.rglob("*") if file.is_file()}
    (tmp_path / "plain").touch()
    assert modes == {(tmp_path / "plain").stat().st_mode}
