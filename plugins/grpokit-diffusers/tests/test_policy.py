"""diffusers-flow: the contract, its pictures against the stock pipelines, and what training changes."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.longcat_image import pipeline_longcat_image_edit
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from tiny_edits import EVERY, case, prompts_of

from grpokit import Prompt, RewardTerm, Rollout, UsageError
from grpokit.builtin.image_rewards import brightness
from grpokit.rewards.scoring import score_samples
from grpokit.sampling import derive_seeds, normals
from grpokit_check import outcomes, policy_checks
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import tiny_pipeline

SIZE = (32, 64)


def build(model: Any, **options: Any) -> DiffusersFlow:
    defaults: dict[str, Any] = {"size": SIZE, "steps": 4, "eval_steps": 3, "lora": {"r": 4}}
    return DiffusersFlow(model, **defaults | options)


def drawn(policy: DiffusersFlow, prompts: list[Prompt], *, group: int = 2, evaluate: bool = False) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=group)
    return policy.rollout(prompts, group, seeds=seeds, evaluate=evaluate)


STOCK: dict[str, list[dict[str, Any]]] = {
    "tiny-sd3": [{"guidance_scale": 1.0}, {"guidance_scale": 4.0}],
    "tiny-chroma": [{"guidance_scale": 1.0}, {"guidance_scale": 4.0}],
    "tiny-cogview4": [{"guidance_scale": 1.0}, {"guidance_scale": 5.0}],
    "tiny-ernie-image": [{"guidance_scale": 1.0}, {"guidance_scale": 4.0}],
    "tiny-flux": [{"guidance_scale": 2.0}],
    "tiny-flux-kontext": [{"guidance_scale": 3.5}],
    "tiny-flux2": [{"guidance_scale": 2.5}],
    "tiny-flux2-klein": [{"guidance_scale": 1.0}, {"guidance_scale": 4.0}],
    "tiny-krea2": [{"guidance_scale": 0.0}, {"guidance_scale": 2.0}],
    "tiny-longcat-image": [{"guidance_scale": scale, "enable_prompt_rewrite": False} for scale in (1.0, 4.5)],
    "tiny-longcat-image-edit": [{"guidance_scale": 1.0}, {"guidance_scale": 4.5}],
    "tiny-lumina2": [{"guidance_scale": 1.0}, {"guidance_scale": 4.0}],
    "tiny-qwen-image-21": [{"true_cfg_scale": 1.0}, {"true_cfg_scale": 4.0, "negative_prompt": " "}],
    "tiny-qwen-image": [{"true_cfg_scale": 1.0}, {"true_cfg_scale": 4.0, "negative_prompt": " "}],
    "tiny-qwen-image-edit": [{"true_cfg_scale": 1.0}, {"true_cfg_scale": 4.0, "negative_prompt": " "}],
    "tiny-qwen-image-edit-plus": [{"true_cfg_scale": 1.0}, {"true_cfg_scale": 4.0, "negative_prompt": " "}],
    "tiny-sana": [{"guidance_scale": 1.0}, {"guidance_scale": 4.5}],
    "tiny-z-image": [{"guidance_scale": 0.0}, {"guidance_scale": 2.0}],
}
CASES = [case(model, call) for model, calls in STOCK.items() for call in calls]


def as_large_as_the_result(fitted: Callable[[int, float], Any], area: int, ratio: float) -> Any:
    """The size of a source, that a stock pipeline gives 1024 x 1024 pixels or so."""
    return fitted(math.prod(SIZE) if area == 1024**2 else area, ratio)


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_picture_with_numbers_that_are_not_finite_is_none(evaluate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a single one is infinite; the others of its pass stay, and no reward is asked about it."""
    policy, prompts = build("tiny-sd3"), [Prompt(text="a cat"), Prompt(text="three dogs")]
    before = drawn(policy, prompts, group=3, evaluate=evaluate).samples
    vae = policy.pipeline.vae
    decode = vae.decode

    def overflows(latents: torch.Tensor, *, return_dict: bool) -> tuple[torch.Tensor]:
        (pixels,) = decode(latents, return_dict=return_dict)
        pixels[1, 2, 3, 4] = math.inf
        return (pixels,)

    monkeypatch.setattr(vae, "decode", overflows)
    with pytest.warns(UserWarning, match=r"AutoencoderKL in float32 gave numbers that are not finite"):
        samples = drawn(policy, prompts, group=3, evaluate=evaluate).samples
    assert [sample.output is None for sample in samples] == [False, True, False] * 2
    assert all(one.output in (None, other.output) for one, other in zip(samples, before, strict=True))
    matrix = score_samples([RewardTerm(name="brightness", reward=brightness)], samples).matrix
    assert matrix[:, 0].isnan().tolist() == [False, True, False] * 2
    monkeypatch.setattr(policy.family, "velocity", lambda latents, *_, **__: latents * math.nan)
    with pytest.warns(UserWarning, match=r"SD3Transformer2DModel in float32 gave numbers that are not finite"):
        drawn(policy, prompts[:1], group=3, evaluate=evaluate)


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # ERNIE-Image's pipeline gives numpy a tensor
@pytest.mark.parametrize(("model", "call"), CASES, ids=str)
def test_the_ode_is_that_of_the_stock_pipeline(
    model: str, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same noise: equal latents, and pictures that are equal to a level of 255."""
    stock = tiny_pipeline(model)
    stock.set_progress_bar_config(disable=True)
    size = SIZE
    if "flux2" in model or model == "tiny-sana":  # which look at sources as they are, or take multiples of 32 alone
        size = (64, 96)
    guidance = call.get("true_cfg_scale", call.get("guidance_scale"))
    policy = build(tiny_pipeline(model), size=size, eval_guidance=guidance)
    family: Any = policy.family
    latents = []
    pictures = family.pictures
    monkeypatch.setattr(family, "pictures", lambda x, size: latents.append(x) or pictures(x, size))
    for module in (pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus, pipeline_longcat_image_edit):
        small = partial(as_large_as_the_result, module.calculate_dimensions)
        monkeypatch.setattr(module, "calculate_dimensions", small)
    prompts = prompts_of(model)
    rollout = drawn(policy, prompts, evaluate=True)
    seeds = derive_seeds(1, stream="train", step=0, prompts=2, group_size=2)
    shape = family.latent_shape(size)
    for row in range(4):
        ours, prompt = latents[row // 2][row % 2], prompts[row // 2]
        noise = normals(seeds.row[row : row + 1], int(np.prod(shape)), start=2**40).float().view(1, *shape)
        given = {"prompt": prompt.text, "latents": noise, "height": size[0], "width": size[1], **call}
        if model == "tiny-sana":
            stock.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
            given |= {"use_resolution_binning": False, "sigmas": np.linspace(1, 1 / 3, 3)}
        if model == "tiny-longcat-image-edit":
            given["image"] = family.prepared(prompt.image, (given.pop("height"), given.pop("width")))
        elif model == "tiny-flux-kontext":
            given |= {"image": family.prepared(prompt.image, size), "max_area": math.prod(size), "_auto_resize": False}
        elif prompt.images:
            given["image"] = list(prompt.images) if len(prompt.images) > 1 else prompt.image
        if model == "tiny-qwen-image-21":
            given["output_resolution"] = math.sqrt(math.prod(size))  # the side of a square source
        if "flux2" in model:
            given["latents"] = noise.mT.unflatten(2, family.grid(size))
        if model == "tiny-flux2-klein":  # whose latents are given back as the autoencoder reads them
            mean, std = family.scale(ours)
            ours = family.unpacked(ours[None] * std + mean, size)[0]
        theirs = stock(**given, num_inference_steps=3, output_type="latent").images
        assert float((ours - theirs[0]).abs().max()) <= 1e-5 * float(theirs.abs().max())
        picture = np.asarray(stock(**given, num_inference_steps=3).images[0], dtype=int)
        assert np.abs(np.asarray(rollout.samples[row].output, dtype=int) - picture).max() <= 1


@pytest.mark.parametrize("model", EVERY)
def test_ratios_are_one_and_rows_stand_alone(model: str) -> None:
    """Log-probs right after a rollout are the rollout's; a prompt alone, and a row alone, have the same ones."""
    prompts = prompts_of(model)
    policy = build(model, guidance=2.0)
    rollout = drawn(policy, prompts)
    again = policy.logprobs(rollout, slice(0, 4)).logprobs.detach()
    assert float((again - rollout.old.logprobs).abs().max()) < 1e-4
    one = policy.logprobs(rollout.select(torch.tensor([3])), slice(0, 4)).logprobs.detach()
    assert float((one - again[3:]).abs().max()) < 1e-4


@pytest.mark.parametrize("model", STOCK)
def test_the_adapter_reaches_the_transformer_and_nothing_else(model: str) -> None:
    """All trained parameters are the adapter's, each gets a gradient, and the stock pipeline holds what trains."""
    policy = build(model)
    rollout = drawn(policy, prompts_of(model))
    trained = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    policy.logprobs(rollout, slice(0, 1)).logprobs.sum().backward()
    slopes = {name: p.grad for name, p in trained.items() if "lora_B" in name}  # those of lora_A begin as zero
    assert all(slope is not None and bool(slope.any()) for slope in slopes.values())
    assert len({name.rpartition(".lora_B")[0].rpartition("attn")[2] for name in slopes}) >= 4
    inside = dict(policy.pipeline.transformer.named_parameters())
    assert all(any(p is own for own in inside.values()) for p in trained.values())
    for part in ("vae", "text_encoder"):
        assert not any(p.requires_grad for p in getattr(policy.pipeline, part).parameters())


OF_SOURCES = {"ratio-is-one", "scored-is-sampled", "batch-size", "slices", "gaussian", "gradient", "reference"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            {"model": "tiny-sd3", "guidance": 2.0, "window": {"width": 2}, "steps": 3, "eval_steps": 2},
            lambda name: True,
        ),
        (
            {"model": "tiny-flux", "matching": {"times": 2}, "steps": 2, "eval_steps": 2},
            {*OF_SOURCES, "target"}.__contains__,
        ),
        (
            {"model": "tiny-flux-kontext", "sampler": "cps", "gradient_checkpointing": True, "steps": 2},
            OF_SOURCES.__contains__,
        ),
    ],
    ids=["a window", "copies", "source pictures"],
)
def test_contract(options: dict[str, Any], wanted: Callable[[str], bool]) -> None:
    prompts = prompts_of(options["model"])
    checks = policy_checks(lambda: build(**options), prompts, makes="image", module="grpokit_diffusers.plugin")
    found = list(outcomes(check for check in checks if wanted(check.name)))
    assert len(found) >= len(OF_SOURCES)
    assert not [outcome for outcome in found if outcome.state == "failed"]


def test_compiled_blocks_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"needs a C\+\+ compiler"):
        DiffusersFlow("tiny-sd3", size=(32, 32), steps=2, compiled=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns of itself while it compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.parametrize("model", ["tiny-sd3", "tiny-flux2-klein"])
def test_compiled_blocks_paint_and_score_as_plain_ones(model: str) -> None:
    plain, compiled = (DiffusersFlow(model, size=(32, 32), steps=2, compiled=each) for each in (False, True))
    seeds = derive_seeds(0, stream="train", step=0, prompts=1, group_size=2)
    prompts = prompts_of(model, ["a cat"])
    expected, rollout = (policy.rollout(prompts, 2, seeds=seeds) for policy in (plain, compiled))
    latents = [x.trace.per_row["latents"] for x in (rollout, expected)]
    torch.testing.assert_close(*latents, rtol=0, atol=1e-5)
    for steps in compiled.slices(rollout):
        decisions = compiled.logprobs(rollout, steps)
        torch.testing.assert_close(decisions.logprobs.detach(), rollout.old.logprobs[:, steps], rtol=0, atol=1e-6)
        decisions.logprobs.sum().backward()
    gradients = [p.grad for p in compiled.modules()["transformer"].parameters() if p.grad is not None]
    assert any(bool(gradient.any()) for gradient in gradients)
    with compiled.reference():
        assert torch.isfinite(compiled.logprobs(rollout, slice(0, 1)).logprobs).all()
