"""The plan of glm-image-dit: measured activations, and the released model by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import GlmImageTransformer2DModel

from grpokit import UsageError
from grpokit_glm_image.dit import GlmImageDiT
from grpokit_glm_image.dit_plan import plan
from grpokit_glm_image.painter import Painter
from grpokit_hf.diffusion.adapters import add_adapter
from grpokit_hf.models.adapters import AdapterSettings
from grpokit_hf.plan import diffusion
from grpokit_plan import Job, Needs

GIB = 2**30
KEPT = diffusion.KEPT["GlmImageTransformerBlock"]
DEFAULTS: dict[str, Any] = {
    "model": "zai-org/GLM-Image",
    "size": [512, 512],
    "edits": False,
    "steps": 10,
    "guidance": 1.0,
    "sampler": "flow-sde",
    "noise": None,
    "window": {"width": 2},
    "matching": None,
    "step_weight": "none",
    "shared_noise": True,
    "eval_steps": 50,
    "eval_guidance": 1.5,
    "eval_size": None,
    "lora": {"r": 32, "targets": ["to_q"]},
    "ema": None,
    "reference_ema": None,
    "gradient_checkpointing": False,
    "rows": None,
    "token_sets": 1,
    "temperature": 0.9,
    "top_p": 0.75,
    "dtype": "auto",
    "quantization": None,
    "offload": "none",
    "revision": None,
    "local_files_only": True,
}


PLANS: dict[str, Needs] = {}


def needs(job: dict[str, Any] | None = None, **parameters: Any) -> Needs:
    """The plan, made once for each job and settings: it takes a while to build the released model."""
    sizes: dict[str, Any] = {"prompts": 8, "group_size": 8, "micro_batch_size": 8, "rollout_rows": 64, "updates": 1}
    settings, whole = DEFAULTS | parameters, Job(**sizes | (job or {}))
    key = f"{whole} {settings}"
    if key not in PLANS:
        PLANS[key] = plan(settings, whole)
    return PLANS[key]


def part(found: Needs, name: str, moment: str) -> float:
    return sum(part.bytes for part in found.parts if part.name == name and moment in part.moments) / GIB


def seconds(found: Needs, phase: str) -> float:
    """At 40 % of the 989 TFLOP/s of an H100."""
    return sum(work.flop * work.times for work in found.works if work.phase == phase) / (0.4 * 989e12)


def kept(layers: int, dtype: torch.dtype, *, lora: bool, checkpointing: bool = False) -> float:
    """Bytes that a forward pass keeps for its backward pass, weights aside."""
    width, side = 64, 16
    model = GlmImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=layers,
        attention_head_dim=32,
        num_attention_heads=2,
        text_embed_dim=16,
        time_embed_dim=16,
        condition_dim=16,
        prior_vq_quantizer_codebook_size=8,
    )
    torch.nn.Module.to(model, dtype)
    if lora:
        model.requires_grad_(False)
        add_adapter(model, AdapterSettings(r=1), Painter.lora_targets)
    if checkpointing:
        model.enable_gradient_checkpointing()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, Any] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage
        return x

    tokens = (side // 2) ** 2
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(
            hidden_states=torch.ones(1, 4, side, side, dtype=dtype),
            encoder_hidden_states=torch.ones(1, 1, 16, dtype=dtype),
            prior_token_id=torch.zeros(1, tokens, dtype=torch.long),
            prior_token_drop=torch.zeros(1, tokens, dtype=torch.bool),
            timestep=torch.zeros(1),
            target_size=torch.ones(1, 2, dtype=dtype),
            crop_coords=torch.ones(1, 2, dtype=dtype),
        )
        total = sum(storage.nbytes() for storage in storages.values())
    return total / tokens / width


@pytest.mark.parametrize(
    ("dtype", "lora", "expected"),
    [
        (torch.float32, True, KEPT["fp32", "lora"]),
        (torch.float32, False, KEPT["fp32", "full"]),
        (torch.bfloat16, True, KEPT["bf16", "lora"]),
    ],
    ids=str,
)
def test_what_a_layer_keeps(dtype: torch.dtype, lora: bool, expected: float) -> None:
    """Small widths have relatively more of what does not grow with the width, hence the tolerance."""
    a_layer = (kept(4, dtype, lora=lora) - kept(2, dtype, lora=lora)) / 2
    assert a_layer == pytest.approx(expected, rel=0.12)
    assert kept(4, dtype, lora=lora, checkpointing=True) - kept(2, dtype, lora=lora, checkpointing=True) == (
        pytest.approx(2 * dtype.itemsize, rel=0.1)
    )


def test_the_released_model_by_hand() -> None:
    """6.93 B weights in bf16; 1,024 tokens of width 4,096 in 30 layers for 8 pictures; 13.1 TFLOP a pass."""
    found = needs()
    assert part(found, "weights", "train") == pytest.approx(2 * 6.927e9 / GIB, rel=0.01)
    assert part(found, "writing half", "train") == pytest.approx(16.6, abs=0.1)
    assert part(found, "activations", "train") == pytest.approx(41 * 4096 * 30 * 8 * 1024 / GIB, rel=0.001)
    a_pass = 13.1e12 / (0.4 * 989e12)
    # Windows begin 1.5 steps behind the noise on average; these steps are taken once for a group.
    assert seconds(found, "decode") == pytest.approx((8 * 1.5 + 64 * 8.5) * a_pass, rel=0.02)
    assert seconds(found, "train") == pytest.approx(64 * 2 * 2 * a_pass, rel=0.02)


@pytest.mark.parametrize(
    ("options", "job", "name", "ratio"),
    [
        ({"gradient_checkpointing": True}, {}, "train", 1.5),
        ({}, {"passes": 2, "updates": 2}, "train", 2.0),
        ({"window": {"width": 4}}, {}, "train", 2.0),
        ({"window": None, "matching": {"times": 4}}, {}, "train", 2.0),
        # 10 steps and 4 copies of each sample, where else 1.5 steps are taken once for a group of 8
        ({"window": None, "matching": {"times": 4}}, {}, "decode", 14 / (10 - 1.5 * 7 / 8)),
    ],
    ids=str,
)
def test_time_of_training(options: dict[str, Any], job: dict[str, Any], name: str, ratio: float) -> None:
    assert seconds(needs(job, **options), name) / seconds(needs(), name) == pytest.approx(ratio)


@pytest.mark.slow
def test_passes_that_are_made_once_for_a_rollout() -> None:
    """The reference's, whose means serve all updates; the old log-probs', which mixed precision needs as well."""
    twice = {"passes": 2, "updates": 2, "reference": True}
    once = 64 * 2 * 13.1e12 / (0.4 * 989e12)
    assert seconds(needs(twice), "reference") == pytest.approx(once, rel=0.02)
    assert seconds(needs(twice, dtype="float32"), "old") == 0
    assert seconds(needs(twice | {"mixed_precision": "bf16"}, dtype="float32"), "old") == pytest.approx(once, rel=0.02)


@pytest.mark.slow
def test_memory_of_training() -> None:
    usual = part(needs(), "activations", "train")
    guided = needs(guidance=1.5)
    assert part(guided, "activations", "train") == pytest.approx(2 * usual)
    assert seconds(guided, "train") == pytest.approx(2 * seconds(needs(), "train"))
    assert part(needs(gradient_checkpointing=True), "activations", "train") == pytest.approx(
        usual / 30 + usual * 2 / 41
    )
    full = needs(lora=None)
    assert part(full, "optimizer", "train") == pytest.approx(8 * 6.927e9 / GIB, rel=0.01)
    assert part(needs({"reference": True}, lora=None), "reference", "score") > 25
    assert part(needs({"reference": True}), "reference", "score") == 0
    moving = needs({"reference": True}, reference_ema={"decay": 0})
    assert part(moving, "reference", "score") == part(moving, "adapter", "score") > 0


def test_edits() -> None:
    """1,024 tokens of a source go through the layers once for a pass of 8 pictures, whose attention sees them."""
    usual, edits = needs(), needs(edits=True)
    assert part(edits, "writing half", "train") - part(usual, "writing half", "train") == pytest.approx(2.2, abs=0.1)
    assert part(edits, "activations", "train") == pytest.approx(9 / 8 * part(usual, "activations", "train"))
    checkpointed = part(needs(edits=True, gradient_checkpointing=True), "activations", "train")
    kept = 30 * 4096 * 1024 * (9 + 2) * 2 + 41 * 4096 * 9 * 1024
    assert checkpointed == pytest.approx(kept / GIB)
    attention = 30 * 4 * 4096 * 1024 * 1024
    a_pass = 13.1e12
    assert seconds(edits, "train") / seconds(usual, "train") == pytest.approx(
        (9 * a_pass + 8 * attention) / (8 * a_pass), rel=0.005
    )


def test_offload_leaves_one_half_on_the_gpu() -> None:
    """While tokens are written, the transformer's place is free; 8 prompts of 100 tokens, each with 512 to write."""
    usual, idle = needs(), needs(offload="idle")
    for name in ("weights", "autoencoder"):
        assert part(idle, name, "rollout") == 0 < part(idle, name, "decode") == part(usual, name, "rollout")
    assert part(idle, "writing half", "train") == 0 < part(idle, "writing half", "rollout")
    assert part(idle, "cache", "rollout") == pytest.approx(40 * 2 * 256 * 2 * 8 * 612 / GIB)
    assert part(idle, "adapter", "rollout") == part(usual, "adapter", "rollout") > 0
    words = [[remedy.words for remedy in each.remedies] for each in (usual, idle)]
    assert ("policy.offload=idle",) in words[0]
    assert ("policy.offload=idle",) not in words[1]


def test_offload_leaves_weights_that_train_on_the_gpu() -> None:
    found = needs(offload="idle", lora=None, model="tiny", size=[64, 64])
    assert part(found, "weights", "rollout") == part(found, "weights", "train") > 0


def test_an_adapter_that_was_trained_before(tmp_path: Path) -> None:
    """It has its own rank, and the reference is a copy of it."""
    GlmImageDiT("tiny", size=(64, 64), lora={"r": 3}).export(tmp_path)
    own, other = (
        needs({"reference": True}, model="tiny", size=[64, 64], lora=lora) for lora in ({"adapter": tmp_path}, {"r": 3})
    )
    assert part(own, "optimizer", "train") == part(other, "optimizer", "train") > 0
    assert part(own, "reference", "score") == part(other, "adapter", "score") > 0


def test_refusals_are_those_of_the_policy() -> None:
    with pytest.raises(UsageError, match="only 10 steps of the schedule"):
        needs(window={"width": 11})
    with pytest.raises(UsageError, match="rows must be"):
        needs(rows=0)
    with pytest.raises(UsageError, match="multiples of 32"):
        needs(size=[512, 500])
    with pytest.raises(UsageError, match="eval_size is 1024 x 512"):
        needs(eval_size=[1024, 512])
