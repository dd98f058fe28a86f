"""The plan of diffusers-flow: measured activations, counted FLOP, and FLUX.1 by hand."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_edits import EVERY
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from grpokit import UsageError
from grpokit_diffusers.family import PipelineFamily, Told
from grpokit_diffusers.known import family_of
from grpokit_diffusers.plan import plan
from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import tiny_pipeline
from grpokit_hf.diffusion.adapters import add_adapter
from grpokit_hf.models.adapters import AdapterSettings
from grpokit_hf.plan.diffusion import KEPT, forward_flop, layers_of
from grpokit_plan import Job, Needs

GIB = 2**30
DEFAULTS = {p.name: p.default for p in inspect.signature(DiffusersFlow).parameters.values()}
WIDTH, TEXT, SIZE = 128, 32, (64, 64)
HEADS = {"num_attention_heads": 4, "attention_head_dim": 32}
SD3 = {**HEADS, "caption_projection_dim": WIDTH, "qk_norm": "rms_norm"}
FLUX = {**HEADS, "axes_dims_rope": (8, 8, 16)}
FLUX2 = {**HEADS, "axes_dims_rope": (8, 8, 8, 8)}
ERNIE = {"hidden_size": WIDTH, "num_attention_heads": 4, "ffn_hidden_size": 384, "rope_axes_dim": (8, 12, 12)}
SANA = {**HEADS, "num_cross_attention_heads": 4, "cross_attention_head_dim": 32, "cross_attention_dim": WIDTH}
KREA2 = {**HEADS, "num_key_value_heads": 1, "intermediate_size": 341, "axes_dims_rope": (8, 12, 12)}
COGVIEW4 = {**HEADS, "time_embed_dim": 64, "rope_axes_dim": (8, 8)}
LUMINA2 = {"hidden_size": WIDTH, "num_attention_heads": 4, "num_kv_heads": 1, "axes_dim_rope": (16, 8, 8)}
QWEN21 = {**HEADS, "axes_dims_rope": (16, 8, 8)}
LAYERS: list[tuple[str, str, dict[str, Any], str]] = [  # its pipeline, with which settings, and which one counts them
    ("JointTransformerBlock", "tiny-sd3", SD3, "num_layers"),
    ("JointTransformerBlock x 2", "tiny-sd3", {**SD3, "dual_attention_layers": (0, 1, 2, 3)}, "num_layers"),
    ("ChromaTransformerBlock", "tiny-chroma", FLUX, "num_layers"),
    ("ChromaSingleTransformerBlock", "tiny-chroma", FLUX, "num_single_layers"),
    ("CogView4TransformerBlock", "tiny-cogview4", COGVIEW4, "num_layers"),
    ("FluxTransformerBlock", "tiny-flux", FLUX, "num_layers"),
    ("FluxSingleTransformerBlock", "tiny-flux", FLUX, "num_single_layers"),
    ("Flux2TransformerBlock", "tiny-flux2", FLUX2, "num_layers"),
    ("Flux2SingleTransformerBlock", "tiny-flux2", FLUX2, "num_single_layers"),
    ("ErnieImageSharedAdaLNBlock", "tiny-ernie-image", ERNIE, "num_layers"),
    ("Krea2TransformerBlock", "tiny-krea2", KREA2, "num_layers"),
    ("LongCatImageTransformerBlock", "tiny-longcat-image", FLUX, "num_layers"),
    ("LongCatImageSingleTransformerBlock", "tiny-longcat-image", FLUX, "num_single_layers"),
    ("Lumina2TransformerBlock", "tiny-lumina2", LUMINA2, "num_layers"),
    ("QwenImage21TransformerBlock", "tiny-qwen-image-21", QWEN21, "num_layers"),
    ("QwenImageTransformerBlock", "tiny-qwen-image", {**HEADS, "axes_dims_rope": (16, 8, 8)}, "num_layers"),
    ("SanaTransformerBlock x 2", "tiny-sana", SANA, "num_layers"),
    (
        "ZImageTransformerBlock",
        "tiny-z-image",
        {"dim": WIDTH, "n_heads": 4, "n_kv_heads": 4, "axes_dims": [16, 8, 8]},
        "n_layers",
    ),
]


def needs(job: dict[str, Any] | None = None, **parameters: Any) -> Needs:
    sizes: dict[str, Any] = {"prompts": 8, "group_size": 8, "micro_batch_size": 8, "rollout_rows": 64}
    return plan({**DEFAULTS, "size": [64, 64], "window": {"width": 2}, **parameters}, Job(**sizes | (job or {})))


def part(found: Needs, name: str, moment: str = "train") -> float:
    return sum(part.bytes for part in found.parts if part.name == name and moment in part.moments)


def flop(found: Needs, phase: str) -> float:
    return sum(work.flop * work.times for work in found.works if work.phase == phase)


def family(name: str, **settings: Any) -> PipelineFamily:
    """The family of a tiny pipeline whose transformer has other sizes."""
    pipeline = tiny_pipeline(name)
    config = {key: value for key, value in pipeline.transformer.config.items() if key != "_use_default_values"}
    pipeline.transformer = type(pipeline.transformer).from_config({**config, **settings})
    for x in pipeline.transformer.parameters():
        x.data.nan_to_num_()
    return family_of(type(pipeline).__name__, type(pipeline.scheduler).__name__, model=name)(pipeline)


def velocity(own: PipelineFamily) -> None:
    """One pass for a picture and a text of 32 tokens."""
    dtype, config = own.transformer.dtype, own.transformer.config
    width = config.get("joint_attention_dim") or config.get("text_in_dim", 32)
    told: tuple[torch.Tensor, ...] = (torch.ones(1, TEXT, width, dtype=dtype),)
    if "num_text_layers" in config:
        seen = torch.ones(1, TEXT, dtype=torch.bool)
        told = (torch.ones(1, TEXT, config.num_text_layers, config.text_hidden_dim, dtype=dtype), seen)
    if "approximator_layers" in config or "caption_channels" in config:
        told = (*told, torch.ones(1, TEXT, dtype=dtype))
    if "axes_dim_rope" in config:
        told = (*told, torch.ones(1, TEXT, dtype=torch.long))
    if "causal_condition" in config:
        told = (*told, torch.zeros(1, TEXT, dtype=torch.bool))
    if "pooled_projection_dim" in config:
        told = (*told, torch.ones(1, config.pooled_projection_dim, dtype=dtype))
    condition = Told(text=told, negative=told, size=SIZE)
    latents = torch.zeros(1, *own.latent_shape(SIZE))
    own.velocity(latents, torch.tensor(500.0), condition, guidance=own.guidance)


def kept(name: str, dtype: torch.dtype, *, lora: bool, **settings: Any) -> float:
    """Bytes that a pass keeps for its backward pass, weights aside, for a token and a unit of width."""
    own = family(name, **settings)
    torch.nn.Module.to(own.transformer, dtype)
    for path, module in own.transformer.named_modules():
        if path.rpartition(".")[2] in (own.transformer._keep_in_fp32_modules or ()):
            module.float()
    if lora:
        own.transformer.requires_grad_(False)
        add_adapter(own.transformer, AdapterSettings(r=1), own.lora_targets)
    weights = {p.untyped_storage().data_ptr() for p in own.transformer.parameters()}
    storages: dict[int, Any] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        velocity(own)
    streams = {layer.stream for layer in layers_of(own.transformer)}
    tokens = own.tokens(SIZE) + (TEXT if "both" in streams else 0)
    return sum(storage.nbytes() for storage in storages.values()) / tokens / WIDTH


@pytest.mark.parametrize(
    ("dtype", "trains"), [(torch.float32, "lora"), (torch.float32, "full"), (torch.bfloat16, "lora")], ids=str
)
@pytest.mark.parametrize(("kind", "name", "settings", "count"), LAYERS, ids=[each[0] for each in LAYERS])
def test_what_a_layer_keeps(
    kind: str, name: str, settings: dict[str, Any], count: str, dtype: torch.dtype, trains: str
) -> None:
    four, two = (kept(name, dtype, lora=trains == "lora", **settings, **{count: layers}) for layers in (4, 2))
    number = "fp32" if dtype == torch.float32 else "bf16"
    assert (four - two) / 2 == pytest.approx(KEPT[kind][number, trains], rel=0.02)


@pytest.mark.parametrize(("kind", "name", "settings", "count"), LAYERS, ids=[each[0] for each in LAYERS])
def test_flop_as_torch_counts_them(kind: str, name: str, settings: dict[str, Any], count: str) -> None:
    own = family(name, **settings, **{count: 4})
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        velocity(own)
    own_flop = forward_flop(own.transformer, picture=own.tokens(SIZE), text=TEXT)
    assert own_flop == pytest.approx(counter.get_total_flops(), rel=0.015)


@pytest.fixture
def flux(tmp_path: Path) -> str:
    """A folder without weights, whose transformer has the sizes of FLUX.1 [dev]."""
    tiny_pipeline("tiny-flux").save_pretrained(tmp_path)
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    config = tmp_path / "transformer" / "config.json"
    sizes = {
        "num_layers": 19,
        "num_single_layers": 38,
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "joint_attention_dim": 4096,
        "pooled_projection_dim": 768,
        "axes_dims_rope": [16, 56, 56],
    }
    config.write_text(json.dumps(json.loads(config.read_text()) | sizes))
    return str(tmp_path)


@pytest.mark.slow
def test_flux_by_hand(flux: str) -> None:
    """11.9 B weights; 57 layers of width 3,072, with 12 squares of it for a token; 1,024 of a picture, 512 of a text.

    Windows begin 1.5 steps behind the noise on average; these steps are taken once for a group.
    """
    found = needs(model=flux, size=[128, 128], lora={"r": 32, "targets": ["to_q"]})
    tokens, width = 1024 + 512, 3072
    assert part(found, "weights") == pytest.approx(2 * 11.9e9, rel=0.005)
    assert part(found, "adapter") == 57 * 4 * 32 * 2 * width
    assert part(found, "activations") == (19 * 43 + 38 * 39) * width * 8 * tokens
    a_pass = 57 * (2 * 12 * width**2 * tokens + 4 * width * tokens**2)
    assert flop(found, "rollout") == pytest.approx((8 * 1.5 + 64 * 8.5) * a_pass, rel=0.01)
    assert flop(found, "train") == pytest.approx(64 * 2 * 2 * a_pass, rel=0.01)
    checkpointed = needs(model=flux, size=[128, 128], gradient_checkpointing=True)
    assert part(checkpointed, "activations") == (2 * 57 + 43) * width * 8 * tokens
    rounded = needs(model=flux, size=[128, 128], quantization="4bit")
    blocks = 19 * (12 + 12 + 12) + 38 * (12 + 3)  # squares of the width, with those of the modulations
    rest = 5 * width**2 + (4096 + 768 + 2 * 256) * width  # what leads into the blocks and out of them
    assert part(rounded, "weights") == pytest.approx(0.516 * blocks * width**2 + 2 * rest, rel=0.005)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("lora", [None, {"r": 4}])
def test_weights_to_the_byte(name: str, lora: dict[str, Any] | None) -> None:
    policy = DiffusersFlow(name, size=[32, 32], lora=lora, dtype="float32")
    pipeline, trained = policy.pipeline, [p for p in policy.model.parameters() if p.requires_grad]
    found = needs(model=name, size=[32, 32], lora=lora, dtype="float32")
    own = sum(p.nbytes for p in trained) if lora else 0
    assert part(found, "weights") == sum(p.nbytes for p in pipeline.transformer.parameters()) - own
    assert part(found, "adapter") == own
    assert part(found, "optimizer") == 2 * sum(p.nbytes for p in trained)
    assert part(found, "autoencoder") == sum(p.nbytes for p in pipeline.vae.parameters())
    encoders = [module for key, module in pipeline.components.items() if key.startswith("text_encoder")]
    assert part(found, "text encoders") == sum(p.nbytes for module in encoders for p in module.parameters()) > 0


@pytest.mark.parametrize("name", EVERY)
def test_a_folder_needs_no_weights(name: str, tmp_path: Path) -> None:
    tiny_pipeline(name).save_pretrained(tmp_path)
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    assert needs(model=str(tmp_path)).parts == needs(model=name).parts


@pytest.mark.parametrize(("name", "guidance", "calls"), [("sd3", 1.5, 2), ("z-image", 0.5, 2), ("flux", 5.0, 1)])
def test_guidance_takes_a_second_pass_where_the_transformer_reads_no_number(
    name: str, guidance: float, calls: int
) -> None:
    usual, guided = needs(model=f"tiny-{name}"), needs(model=f"tiny-{name}", guidance=guidance)
    for phase in ("rollout", "train"):
        assert flop(guided, phase) == pytest.approx(calls * flop(usual, phase))
    assert part(guided, "activations") == calls * part(usual, "activations")


def test_whole_groups_take_a_pass_more() -> None:
    usual, ahead = (needs({"whole_groups": whole}, model="tiny-sd3", lora={"r": 4}) for whole in (False, True))
    assert flop(ahead, "train") == pytest.approx(1.5 * flop(usual, "train"))  # of an adapter, backward is two


def test_tokens_of_texts() -> None:
    """Qwen-Image reads as many as the text has, and for edits 188 of a picture beside it; SD3 always 333."""
    edits = 200 / (2 * 64 + 100 + 188)
    for name, grows in (("qwen-image", 200 / (64 + 100)), ("qwen-image-edit-plus", edits), ("sd3", 0)):
        short, long = (needs({"prompt_tokens": count}, model=f"tiny-{name}") for count in (None, 300))
        assert part(long, "activations") / part(short, "activations") - 1 == pytest.approx(grows)


def test_a_source_counts_where_prompts_bring_one() -> None:
    """A pipeline for edits that draws without a source, too, is planned without one for lines of text alone."""
    for name, may in (("flux2-klein", True), ("qwen-image-21", True), ("qwen-image-edit", False), ("z-image", False)):
        with_source, without = (needs({"pictures": pictures}, model=f"tiny-{name}") for pictures in (True, False))
        said = [any("brings a picture" in line for line in each.assumptions) for each in (with_source, without)]
        assert said == [name != "z-image", name == "qwen-image-edit"]
        assert (flop(with_source, "train") > flop(without, "train")) == may


def test_bad_settings() -> None:
    with pytest.raises(UsageError, match="quantization '4bit' is for frozen weights"):
        needs(model="tiny-sd3", lora=None, quantization="4bit")
    with pytest.raises(UsageError, match="size must be height and width"):
        needs(model="tiny-sd3", size=[62, 64])
    with pytest.raises(UsageError, match="rows must be at least 1"):
        needs(model="tiny-sd3", rows=0)


def test_teachers_and_averages_cost_their_adapters(tmp_path: Path) -> None:
    """Ranks 2 and 3 together are five fourths of one of rank 4, and each average is one more adapter."""

    def memory(**options: Any) -> dict[str, float]:
        found = needs({"reference": True}, model="tiny-sd3", lora={"r": 4}, **options)
        return {part.name: part.bytes for part in found.parts if part.name in ("adapter", "reference", "average")}

    teachers = {}
    for rank in (2, 3):
        teachers[f"r{rank}"] = folder = tmp_path / str(rank)
        folder.mkdir()
        DiffusersFlow("tiny-sd3", size=(64, 64), lora={"r": rank}).export(folder)
    plain, taught = memory(), memory(teachers=teachers)
    both = memory(ema={"decay": 0.9}, old_ema={"decay": 0.5})
    assert plain["reference"] == plain["average"] == 0
    assert taught["reference"] == 5 / 4 * plain["adapter"] > 0
    assert both["average"] == 2 * plain["adapter"]
