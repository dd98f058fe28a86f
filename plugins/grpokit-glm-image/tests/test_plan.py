"""The plan of glm-image-ar, against the released model's counts, public timings and numbers computed by hand."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from grpokit import Ask, Prompt, UsageError
from grpokit.sampling import derive_seeds
from grpokit_glm_image import skeleton
from grpokit_glm_image.grids import target_of
from grpokit_glm_image.plan import plan, vae_flop
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.settings import PipelineSettings
from grpokit_glm_image.tiny import tiny_pipeline
from grpokit_hf.plan.diffusion import forward_flop
from grpokit_hf.tokens import packed_attention
from grpokit_plan import Job, Needs
from grpokit_plan.cards import by_name
from grpokit_plan.estimate import Estimate

GIB = 2**30
DEFAULTS = {p.name: p.default for p in inspect.signature(GlmImageAR).parameters.values()}
JOB = Job(prompts=4, group_size=8, micro_batch_size=4, rollout_rows=32, reference=True)
R64 = {"lora": {"r": 64}, "gradient_checkpointing": True}
SMALL = {"lora": {"r": 8, "targets": ["q_proj"]}}  # is put around the model in less time
PLANS: dict[str, Needs] = {}


def needs(job: Job = JOB, **parameters: Any) -> Needs:
    """The plan, made once for each job and settings: it takes seconds to put an adapter around the released model."""
    settings = {**DEFAULTS, **R64, **parameters}
    key = f"{job} {settings}"
    if key not in PLANS:
        PLANS[key] = plan(settings, job)
    return PLANS[key]


def gib(plan: Needs, name: str, moment: str = "train") -> float:
    return sum(part.bytes for part in plan.parts if part.name == name and moment in part.moments) / GIB


def seconds(**parameters: Any) -> Mapping[str, float]:
    return Estimate(card=by_name("H100"), needs=needs(**parameters)).seconds()


def count(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def test_the_released_model_has_its_weights() -> None:
    parts = skeleton.released()
    ar = parts.ar
    assert [count(x) for x in (ar, ar.model.language_model, ar.lm_head, ar.model.visual, ar.model.vqmodel)] == [
        10_114_245_632,
        8_847_155_200,
        67_633_152,
        1_159_607_808,
        39_849_472,
    ]
    assert [count(x) for x in (parts.transformer, parts.vae, parts.text_encoder)] == [
        6_926_882_880,
        406_100_643,
        217_657_472,
    ]
    assert all(p.device.type == "meta" for p in ar.parameters())


@pytest.mark.slow
def test_memory_of_the_released_model() -> None:
    edits, text, small = needs(edits=True, **SMALL), needs(), needs(**SMALL)
    assert gib(edits, "weights") + gib(edits, "decoder") == pytest.approx(32.9, abs=0.02)
    assert gib(text, "weights") + gib(text, "decoder") == pytest.approx(30.7, abs=0.05)  # without the vision tower
    parts = ("adapter", "optimizer", "gradients")
    assert sum(gib(text, name) for name in parts) == pytest.approx(2.84, abs=0.005)
    assert gib(text, "adapter") * GIB / 4 == pytest.approx(190.4e6, rel=0.001)
    assert gib(small, "adapter") * GIB / 4 == 40 * 8 * (4096 + 4096)
    assert gib(text, "cache", "rollout") == pytest.approx(40 * 1024 * (4 * 100 + 32 * 1280) / GIB)
    assert gib(text, "activations") == pytest.approx(4 * (0.42 + 0.25), rel=0.25)  # a micro-batch of four pictures
    assert gib(text, "activations", "decode") == pytest.approx(4.8e9 / GIB, rel=0.05)
    assert gib(text, "weights for drawing", "rollout") == pytest.approx(15.2, abs=0.05)
    assert gib(needs(merge_adapter=False, **SMALL), "weights for drawing", "rollout") == 0
    full = needs(lora=None)
    sixteen = (
        sum(gib(full, name) for name in ("optimizer", "gradients")) + gib(full, "weights") + gib(full, "reference")
    )
    assert sixteen == pytest.approx(8_914_788_352 * 20 / GIB, rel=0.001)  # with a copy for the reference


def test_flop_of_the_diffusion_transformer() -> None:
    transformer = skeleton.released().transformer
    tera = [forward_flop(transformer, picture=tokens) / 1e12 for tokens in (32**2, 64**2, 128**2)]
    assert tera == pytest.approx([13.1, 58, 330], rel=0.02)
    assert forward_flop(transformer, picture=4096, more=4096) - forward_flop(
        transformer, picture=4096
    ) == pytest.approx(8.25e12, rel=0.01)


def test_flop_as_torch_counts_them() -> None:
    pipeline = tiny_pipeline()
    transformer, (rows, columns) = pipeline.transformer, (8, 12)
    tokens = rows * columns
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        transformer(
            hidden_states=torch.zeros(1, transformer.config.in_channels, 2 * rows, 2 * columns),
            encoder_hidden_states=torch.zeros(1, 1, transformer.config.text_embed_dim),
            prior_token_id=torch.zeros(1, tokens, dtype=torch.int64),
            prior_token_drop=torch.zeros(1, tokens, dtype=torch.bool),
            timestep=torch.zeros(1),
            target_size=torch.zeros(1, 2),
            crop_coords=torch.zeros(1, 2),
        )
    assert forward_flop(transformer, picture=tokens) == pytest.approx(counter.get_total_flops(), rel=0.03)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        pipeline.vae.decode(torch.zeros(1, pipeline.vae.config.latent_channels, 8, 12))
    assert vae_flop(pipeline.vae.to("meta"), 64, 96) == counter.get_total_flops()


@pytest.mark.slow
def test_seconds_of_a_step_of_32_pictures() -> None:
    times = seconds()
    assert sum(times.values()) == pytest.approx(214, rel=0.05)  # 20 steps in training, unless set
    # A token: 7.4 ms of reading, 40 layers of 47 kernels of 2.5 microseconds, and 50 of 5 microseconds in its draw.
    assert times["rollout"] == pytest.approx(1280 * (0.0074 + 0.0047 + 0.00025), abs=0.1)
    assert times["reference"] == pytest.approx(1.7, abs=0.15)
    assert times["train"] == pytest.approx(5, abs=0.2)
    for decode, total in (({"steps": 50}, 492), ({"steps": 10}, 121), ({"steps": 10, "guidance": 1.0}, 75)):
        assert sum(seconds(decode=decode, **SMALL).values()) == pytest.approx(total, rel=0.05)


def test_a_picture_of_50_steps_with_guidance() -> None:
    for size, expected in ((512, 3.3), (1024, 14.5), (2048, 82.6)):
        assert seconds(size=(size, size), decode={"steps": 50}, **SMALL)["decode"] / 32 == pytest.approx(
            expected, rel=0.04
        )


@pytest.mark.slow
def test_smaller_decodes() -> None:
    whole, draft = seconds(**SMALL), seconds(decode={"tokens": "draft"}, train_tokens="draft", **SMALL)
    small = seconds(decode={"size": [512, 512]}, **SMALL)
    assert draft["decode"] == pytest.approx(small["decode"])  # a draft of 16 x 16 tokens is 512 x 512 pixels
    assert small["decode"] < whole["decode"] / 4
    assert draft["train"] < 0.3 * whole["train"]
    edits = seconds(edits=True, **SMALL)
    assert edits["decode"] > 1.1 * whole["decode"]  # attention looks at the source pictures


def test_offload_leaves_one_half_on_the_gpu() -> None:
    plan = needs(offload="idle", **SMALL)
    assert gib(plan, "weights", "decode") == 0 < gib(plan, "weights", "rollout")
    assert gib(plan, "decoder", "train") == 0 < gib(plan, "decoder", "decode")


def test_too_little_memory_has_a_remedy() -> None:
    estimate = Estimate(card=by_name("RTX 4090"), needs=needs(**SMALL))
    assert not estimate.fits
    assert any(remedy.words == ("policy.offload=idle",) for remedy in estimate.needs.remedies)


def test_offload_leaves_weights_that_train_on_the_gpu() -> None:
    plan = needs(offload="idle", lora=None, model="tiny", size=(64, 64))
    ar = skeleton.skeleton_of(PipelineSettings("tiny", size=(64, 64))).ar
    trained = 4 * (count(ar.model.language_model) + count(ar.lm_head)) / GIB
    assert gib(plan, "weights", "decode") == pytest.approx(trained) == gib(plan, "weights", "train")


def test_a_part_of_a_group_is_decoded_with_less_memory() -> None:
    given = {"model": "tiny", "size": (64, 64), **SMALL}
    whole, part = needs(**given), needs(replace(JOB, rollout_rows=2), **given)
    assert gib(part, "activations", "decode") < gib(whole, "activations", "decode")


@pytest.mark.parametrize(("dtype", "named"), [("fp32", True), ("float32", True), ("bf16", False), ("auto", False)])
def test_16_bits_are_a_remedy_for_float32(dtype: str, named: bool) -> None:
    remedies = needs(dtype=dtype, model="tiny", size=(64, 64), **SMALL).remedies
    assert any(remedy.words == ("policy.dtype=bfloat16",) for remedy in remedies) == named


def kept(layers: int, lora: Mapping[str, Any] | None, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes that scoring two pictures keeps for its backward pass, weights aside, and tokens of the prompt."""
    pipeline = tiny_pipeline()
    config = pipeline.vision_language_encoder.config
    config.text_config.num_hidden_layers = layers
    pipeline.vision_language_encoder = type(pipeline.vision_language_encoder)(config).to(dtype)
    policy = GlmImageAR(pipeline, size=(64, 64), lora=lora, decode={"steps": 1, "guidance": 1.0})
    prompt = Prompt(text="abcd")
    seeds = derive_seeds(0, stream="train", step=0, prompts=1, group_size=2)
    rollout = policy.rollout([prompt], 2, seeds=seeds)
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    alive: list[torch.Tensor] = []  # else an address could be another tensor's later
    with policy.during("train"), saved_tensors_hooks(lambda x: alive.append(x) or x, lambda x: x):
        policy.logprobs(rollout, slice(0, rollout.mask.shape[1]), ask=Ask(entropy="value"))
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in alive}
    tokens = int(rollout.trace.per_group["prompt_length"][0])
    return sum(size for place, size in storages.items() if place not in weights), tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lora", "dtype", "within"),
    [(None, "float32", 0.02), ({"r": 4}, "bfloat16", 0.1)],
)
def test_activations_of_a_layer(
    monkeypatch: pytest.MonkeyPatch, lora: Mapping[str, Any] | None, dtype: str, within: float
) -> None:
    monkeypatch.setattr(packed_attention, "spare_rows", lambda count, like: 0)  # that round sizes up on some CPUs
    (three, prompt), (two, _) = (kept(layers, lora, getattr(torch, dtype)) for layers in (3, 2))
    job = Job(prompts=1, group_size=2, micro_batch_size=2, rollout_rows=2, prompt_tokens=prompt)
    plan = needs(job, model="tiny", size=(64, 64), lora=lora, dtype=dtype, gradient_checkpointing=False)
    assert gib(plan, "activations") * GIB / 2 == pytest.approx(three - two, rel=within)  # the tiny model has two layers


@pytest.mark.parametrize("size", [(64, 64), (256, 256), (1024, 1152), (1152, 768), (2048, 512)])
def test_grids_are_the_processors(size: tuple[int, int]) -> None:
    target = target_of(*size, edits=False)
    *large, rows, columns = tiny_pipeline().processor._get_target_shape(*size)[-4:]
    assert target.draft is not None
    assert (target.draft.rows, target.draft.columns) == (rows, columns)
    assert [target.large.rows, target.large.columns] == large
    assert target_of(*size, edits=True).draft is None


def test_a_folder_needs_no_weights(tmp_path: Path) -> None:
    tiny_pipeline().save_pretrained(tmp_path)
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    job = Job(prompts=1, group_size=2, micro_batch_size=2, rollout_rows=2)
    folder, tiny = (needs(job, model=model, size=(64, 96)) for model in (str(tmp_path), "tiny"))
    assert folder.parts == tiny.parts
    (tmp_path / "vae" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"is incomplete: it has no 'vae/config.json'"):
        needs(model=str(tmp_path), size=(64, 96))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"model": "no/such-pipeline"}, "'no/such-pipeline' is not a folder here and not in the Hugging Face cache"),
        ({"model": 3}, "model must be a hub id, a folder or 'tiny'"),
        ({"model": "tiny", "size": (4096, 4096)}, "such a picture has 16,640 visual tokens, and the model reads"),
        ({"size": (100, 64)}, "size must be height and width in pixels"),
        ({"lora": None, "dtype": "bfloat16"}, "Weights that train must be float32"),
        ({"decode": {"step": 3}}, "decode has no key 'step'"),
        ({"eval_decode": {"step": 3}}, "eval_decode has no key 'step'"),
        ({"decode": {"size": [32, 64]}}, "decode: size is 32 x 64, and the large grid's picture has the shape of 1024"),
        ({"dtype": "float16"}, "float16' makes black pictures"),
        ({"temperature": 0}, "temperature must be above 0 for training samples"),
        ({"edits": True, "train_tokens": "draft"}, "train_tokens is 'draft', and an edit has none"),
        ({"lora": {"targets": ["qkv2"]}}, "lora: targets: no linear layer"),
    ],
)
def test_bad_settings(parameters: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        needs(**parameters)


def test_the_shipped_sizes_name_their_source() -> None:
    sizes = json.loads((Path(skeleton.__file__).parent / "released.json").read_text())
    assert "zai-org/GLM-Image" in sizes["source"]
    assert any("ship with grpokit" in line for line in needs(**SMALL).assumptions)
    assert not any("ship with grpokit" in line for line in needs(model="tiny", size=(64, 64)).assumptions)


def test_teachers_cost_their_adapters(tmp_path: Path) -> None:
    """Ranks 2 and 3 together are five fourths of one of rank 4."""
    teachers = {}
    for rank in (2, 3):
        teachers[f"r{rank}"] = folder = tmp_path / str(rank)
        folder.mkdir()
        GlmImageAR("tiny", size=(64, 96), lora={"r": rank}).export(folder)
    taught = needs(model="tiny", size=[64, 96], lora={"r": 4}, teachers=teachers)
    assert gib(taught, "reference") == pytest.approx(5 / 4 * gib(taught, "adapter"))
    assert gib(taught, "reference") > 0
