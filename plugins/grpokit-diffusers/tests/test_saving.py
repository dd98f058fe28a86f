"""An exported LoRA has the names that ComfyUI's loader looks for.

The layers are those of `model_lora_keys_unet` in its comfy/lora.py, which takes them with "transformer." in front: from
`mmdit_to_diffusers`, `flux_to_diffusers` (for Chroma and LongCat-Image, too), `z_image_to_diffusers` and
`krea2_to_diffusers` in comfy/utils.py, and for Qwen-Image and ERNIE-Image from their own models,
comfy/ldm/qwen_image/model.py and comfy/ldm/ernie/model.py. The ends are those of `LoRAAdapter.load` in
comfy/weight_adapter/lora.py. These files are of ComfyUI's commits 17358c8f73b5, 09708eae709a, 01f4512bf804,
6f98b150e065, 7b30bf37b09a and b3be02d6e766.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from grpokit_diffusers.policy import DiffusersFlow
from grpokit_diffusers.tiny import PIPELINES

QKV = "to_q|to_k|to_v|add_q_proj|add_k_proj|add_v_proj|to_out.0|to_add_out"
TIME = "time_text_embed.timestep_embedder.linear_[12]"
TEXT = "time_text_embed.text_embedder.linear_[12]"
FEED = "net.0.proj|net.2"
MMDIT = rf"transformer_blocks.\d+.(attn.({QKV})|(ff|ff_context).({FEED})|(norm1|norm1_context).linear)"
FLUX = (
    rf"{MMDIT}|single_transformer_blocks.\d+.(attn.to_[qkv]|proj_mlp|proj_out|norm.linear)|{TIME}|{TEXT}|"
    "time_text_embed.guidance_embedder.linear_[12]|x_embedder|context_embedder|norm_out.linear|proj_out"
)
FLUX2 = (
    rf"transformer_blocks.\d+.(attn.({QKV})|(ff|ff_context).linear_(in|out))|"
    r"single_transformer_blocks.\d+.attn.(to_qkv_mlp_proj|to_out)|x_embedder|context_embedder|norm_out.linear|proj_out"
)
QWEN_IMAGE = (
    rf"transformer_blocks.\d+.(attn.({QKV})|(img_mlp|txt_mlp).({FEED})|(img_mod|txt_mod).1)|{TIME}|"
    "img_in|txt_in|norm_out.linear|proj_out"
)
LAYERS = {
    "tiny-sd3": f"{MMDIT}|{TIME}|{TEXT}|context_embedder|norm_out.linear|proj_out",
    "tiny-chroma": FLUX,
    "tiny-ernie-image": (
        r"layers.\d+.(self_attention.(to_q|to_k|to_v|to_out.0)|mlp.(gate_proj|up_proj|linear_fc2))|"
        "text_proj|time_embedding.linear_[12]|adaLN_modulation.1|final_norm.linear|final_linear"
    ),
    "tiny-flux": FLUX,
    "tiny-flux-kontext": FLUX,
    "tiny-flux2": FLUX2,
    "tiny-flux2-klein": FLUX2,
    "tiny-krea2": (
        r"(transformer_blocks|text_fusion.(layerwise|refiner)_blocks).\d+."
        r"(attn.(to_q|to_k|to_v|to_gate|to_out.0)|ff.(gate|up|down))|"
        "img_in|(time_embed|txt_in).linear_[12]|time_mod_proj|text_fusion.projector|final_layer.linear"
    ),
    "tiny-longcat-image": FLUX,
    "tiny-longcat-image-edit": FLUX,
    "tiny-qwen-image": QWEN_IMAGE,
    "tiny-qwen-image-edit": QWEN_IMAGE,
    "tiny-qwen-image-edit-plus": QWEN_IMAGE,
    "tiny-sana": ".+",  # of which ComfyUI knows no layer
    "tiny-z-image": (
        r"(layers|context_refiner|noise_refiner).\d+."
        "(attention.(to_q|to_k|to_v|to_out.0)|feed_forward.w[123]|adaLN_modulation.0)|"
        "all_final_layer.2-1.(linear|adaLN_modulation.1)|all_x_embedder.2-1|cap_embedder.1|t_embedder.mlp.[02]"
    ),
}
SHARED = {
    "tiny-chroma": "distilled_guidance_layer",
    "tiny-flux2": "time_guidance_embed|(double|single)_stream_modulation",
    "tiny-flux2-klein": "time_guidance_embed|(double|single)_stream_modulation",
    "tiny-longcat-image": "time_embed",
    "tiny-longcat-image-edit": "time_embed",
}
"""Layers outside of the blocks that ComfyUI has no names for; "all-linear" alone changes them."""
UNKNOWN = ("tiny-cogview4", "tiny-lumina2", "tiny-qwen-image-21")
"""Pipelines of which ComfyUI has no table of layers in the names of diffusers, or none that has been read."""


def test_all_families_are_known() -> None:
    assert {*LAYERS, *UNKNOWN} == set(PIPELINES)


@pytest.mark.parametrize("targets", [None, "all-linear"])
@pytest.mark.parametrize("model", PIPELINES)
def test_names_and_scale(model: str, targets: str | None, tmp_path: Path) -> None:
    """No file has an `alpha`, so ComfyUI adds the product of the two factors as it is: the scale must be in it."""
    policy = DiffusersFlow(model, size=(32, 32), lora={"r": 2, "alpha": 6} | ({"targets": targets} if targets else {}))
    with torch.no_grad():
        for name, p in policy.model.named_parameters():
            if "lora_B" in name:
                p.add_(0.1)
    policy.export(tmp_path)
    tensors = load_file(tmp_path / "pytorch_lora_weights.safetensors")
    known = re.compile(rf"transformer\.({LAYERS.get(model, '.+')})\.lora_[AB]\.weight")
    shared = re.compile(rf"transformer\.({SHARED[model]})") if targets and model in SHARED else re.compile("(?!)")
    assert [name for name in tensors if not known.fullmatch(name) and not shared.match(name)] == []
    for name, module in policy.model.base_model.model.named_modules():
        if f"transformer.{name}.lora_A.weight" in tensors:
            added = tensors[f"transformer.{name}.lora_B.weight"] @ tensors[f"transformer.{name}.lora_A.weight"]
            torch.testing.assert_close(added, module.get_delta_weight("default"))
