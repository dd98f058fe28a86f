"""Tiny random pipelines of the real classes, made without any file or network.

They draw nothing recognisable, but all of their parts work. Tests run on them, and so does `model: tiny-sd3`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    ChromaPipeline,
    ChromaTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    Flux2Transformer2DModel,
    FluxKontextPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
    Krea2Pipeline,
    Krea2Transformer2DModel,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3VLConfig,
    Qwen3VLModel,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

_LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())  # a letter for each byte, so any text has tokens
_WIDTH = 32
_QWEN = ["<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]  # behind the letters
_SMALL: Mapping[str, Any] = {
    "vocab_size": len(_LETTERS) + len(_QWEN),
    "hidden_size": _WIDTH,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": len(_LETTERS),
    "eos_token_id": len(_LETTERS),
    "pad_token_id": len(_LETTERS),
}
_MROPE: Mapping[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
}
_EYES = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": _WIDTH}
_FLUX = {
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
}
_VAE: Mapping[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": (8, 8),
    "layers_per_block": 1,
    "norm_num_groups": 1,
    "latent_channels": 4,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "mid_block_add_attention": False,
}
_DEEP: Mapping[str, Any] = {  # of whose layers FLUX.2 reads the 27th, and of another kind the 30th
    **_SMALL,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 31,
    "num_attention_heads": 2,
    "head_dim": 4,
}


def tiny_pipeline(name: str, *, seed: int = 0) -> Any:
    """A pipeline with random weights, on the CPU in float32; the global random state stays as it is.

    Args:
        name: one of `PIPELINES`.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reset a GPU's random state, too
        return PIPELINES[name]()


def _sd3() -> StableDiffusion3Pipeline:
    return StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=32,
            patch_size=2,
            in_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=_WIDTH,
            caption_projection_dim=_WIDTH,
            pooled_projection_dim=2 * _WIDTH,
            out_channels=4,
            pos_embed_max_size=16,
        ).eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(),
        text_encoder=_clip(CLIPTextModelWithProjection, _WIDTH // 2),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_clip(CLIPTextModelWithProjection, _WIDTH // 2),
        tokenizer_2=_clip_tokenizer(),
        text_encoder_3=_t5(),
        tokenizer_3=_t5_tokenizer(),
    )


def _flux(kind: Any = FluxPipeline) -> Any:
    return kind(
        transformer=FluxTransformer2DModel(
            **_FLUX,
            joint_attention_dim=_WIDTH,
            pooled_projection_dim=_WIDTH // 2,
            guidance_embeds=True,
            axes_dims_rope=(4, 4, 8),
        ).eval(),
        scheduler=_shifting(),
        vae=_vae(),
        text_encoder=_clip(CLIPTextModel, _WIDTH // 2),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=_t5(),
        tokenizer_2=_t5_tokenizer(),
    )


def _flux_kontext() -> FluxKontextPipeline:
    pipeline: FluxKontextPipeline = _flux(FluxKontextPipeline)
    return pipeline


def _chroma() -> ChromaPipeline:
    return ChromaPipeline(
        transformer=ChromaTransformer2DModel(
            **_FLUX,
            joint_attention_dim=_WIDTH,
            axes_dims_rope=(4, 4, 8),
            approximator_num_channels=8,
            approximator_hidden_dim=16,
            approximator_layers=1,
        ).eval(),
        scheduler=_shifting(),
        vae=_vae(),
        text_encoder=_t5(),
        tokenizer=_t5_tokenizer(),
    )


def _flux2() -> Flux2Pipeline:
    reader = Mistral3Config(
        text_config={"model_type": "mistral", **_DEEP, "vocab_size": len(_LETTERS) + 6},
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 4,
        },
        image_token_index=3,
    )
    return Flux2Pipeline(
        **_flux2_parts(guidance_embeds=True),
        text_encoder=Mistral3ForConditionalGeneration(reader).eval(),
        tokenizer=_pixtral_processor(),
    )


def _flux2_klein() -> Flux2KleinPipeline:
    return Flux2KleinPipeline(
        **_flux2_parts(guidance_embeds=False),
        text_encoder=Qwen3ForCausalLM(Qwen3Config(**_DEEP)).eval(),
        tokenizer=_qwen_tokenizer(),
    )


def _flux2_parts(*, guidance_embeds: bool) -> dict[str, Any]:
    vae = AutoencoderKLFlux2(**_VAE)
    vae.bn.running_mean.normal_(std=0.2)
    vae.bn.running_var.uniform_(0.5, 1.5)
    return {
        "transformer": Flux2Transformer2DModel(
            **_FLUX,
            joint_attention_dim=3 * _DEEP["hidden_size"],
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=guidance_embeds,
        ).eval(),
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": vae.eval(),
    }


def _krea2() -> Krea2Pipeline:
    transformer = Krea2Transformer2DModel(
        in_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        timestep_embed_dim=16,
        text_hidden_dim=_WIDTH,
        num_text_layers=2,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 4, 8),
    ).eval()
    reader = Qwen3VLConfig(
        text_config={**_SMALL, **_MROPE, "head_dim": 8},
        vision_config={**_EYES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    )
    return Krea2Pipeline(
        transformer=transformer,
        scheduler=_shifting(),
        vae=_qwen_vae(),
        text_encoder=Qwen3VLModel(reader).eval(),
        tokenizer=_qwen_tokenizer(),
        text_encoder_select_layers=(1, 2),
    )


def _qwen_image(kind: Any = QwenImagePipeline, *, zero_cond_t: bool = False, **more: Any) -> Any:
    reader = Qwen2_5_VLConfig(
        text_config={**_SMALL, **_MROPE},
        vision_config=_EYES,
        vision_start_token_id=_mark("<|vision_start|>"),
        vision_end_token_id=_mark("<|vision_end|>"),
        image_token_id=_mark("<|image_pad|>"),
        video_token_id=_mark("<|video_pad|>"),
    )
    return kind(
        transformer=QwenImageTransformer2DModel(
            in_channels=16,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=_WIDTH,
            axes_dims_rope=(8, 4, 4),
            zero_cond_t=zero_cond_t,
        ).eval(),
        scheduler=_shifting(shift_terminal=0.02),
        vae=_qwen_vae(),
        text_encoder=Qwen2_5_VLForConditionalGeneration(reader).eval(),
        tokenizer=_qwen_tokenizer(),
        **more,
    )


def _qwen_image_edit() -> QwenImageEditPipeline:
    pipeline: QwenImageEditPipeline = _qwen_image(QwenImageEditPipeline, processor=_qwen_processor())
    return pipeline


def _qwen_image_edit_plus() -> QwenImageEditPlusPipeline:
    """As of 2511, whose sources are at time 0."""
    pipeline: QwenImageEditPlusPipeline = _qwen_image(
        QwenImageEditPlusPipeline, zero_cond_t=True, processor=_qwen_processor()
    )
    return pipeline


def _z_image() -> ZImagePipeline:
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=_WIDTH,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=_WIDTH,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 64, 64],
    ).eval()
    with torch.no_grad():
        for padding in (transformer.x_pad_token, transformer.cap_pad_token):
            padding.normal_(std=0.02)  # of which the class says no value
    return ZImagePipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(),
        text_encoder=Qwen3Model(Qwen3Config(**_SMALL, head_dim=8)).eval(),
        tokenizer=_qwen_tokenizer(),
    )


def _shifting(**options: Any) -> FlowMatchEulerDiscreteScheduler:
    """A scheduler whose noise levels follow from the number of tokens."""
    scheduler: FlowMatchEulerDiscreteScheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=16,
        max_image_seq_len=64,
        **options,
    )
    return scheduler


def _vae() -> AutoencoderKL:
    vae: AutoencoderKL = AutoencoderKL(**_VAE, scaling_factor=1.5, shift_factor=0.06).eval()
    return vae


def _qwen_vae() -> AutoencoderKLQwenImage:
    vae: AutoencoderKLQwenImage = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.2, -0.1, 0.1, -0.2],
        latents_std=[1.2, 0.8, 1.1, 0.9],
    ).eval()
    return vae


def _clip(kind: Any, width: int) -> Any:
    config = CLIPTextConfig(
        vocab_size=2 * len(_LETTERS) + 2,
        hidden_size=width,
        projection_dim=_WIDTH,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=2 * len(_LETTERS),
        eos_token_id=2 * len(_LETTERS) + 1,
        pad_token_id=2 * len(_LETTERS) + 1,
    )
    return kind(config).eval()


def _clip_tokenizer() -> CLIPTokenizer:
    texts = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={text: token for token, text in enumerate(texts)}, merges=[], model_max_length=77)


def _t5() -> T5EncoderModel:
    config = T5Config(
        vocab_size=512, d_model=_WIDTH, d_kv=8, d_ff=37, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"
    )
    encoder: T5EncoderModel = T5EncoderModel(config).eval()
    return encoder


def _t5_tokenizer() -> T5Tokenizer:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *_LETTERS]
    return T5Tokenizer(vocab=[(piece, -float(place)) for place, piece in enumerate(pieces)], model_max_length=512)


def _qwen_tokenizer() -> Any:  # a type that all pipelines accept: some say AutoTokenizer, which is of no tokenizer
    vocab = {text: token for token, text in enumerate([*_LETTERS, *_QWEN])}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[], model_max_length=2048, additional_special_tokens=_QWEN[1:])
    tokenizer.chat_template = (
        "{%- for message in messages -%}{{ message['role'] }}: {{ message['content'] }}\n{%- endfor -%}assistant: "
    )
    return tokenizer


def _mark(text: str) -> int:
    """The id of one of Qwen's own tokens."""
    return len(_LETTERS) + _QWEN.index(text)


def _qwen_processor() -> Qwen2VLProcessor:
    """It makes pictures of at most four tokens."""
    pixels: Mapping[str, Any] = {"min_pixels": 28 * 28, "max_pixels": 56 * 56}
    return Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pixels),
        tokenizer=_qwen_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(**pixels),
    )


def _pixtral_processor() -> Any:  # likewise
    own = ["<s>", "</s>", "<pad>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    words = Tokenizer(models.BPE(vocab={text: token for token, text in enumerate([*own, *_LETTERS])}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "additional_special_tokens": own[3:]}
    return PixtralProcessor(
        image_processor=PixtralImageProcessor(),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=words, **names),
        chat_template=(
            "{%- for message in messages -%}{{ message['role'] }}: "
            "{%- for part in message['content'] -%}{{ part['text'] }}{%- endfor -%}{%- endfor -%}"
        ),
    )


PIPELINES: Mapping[str, Callable[[], Any]] = {
    "tiny-chroma": _chroma,
    "tiny-flux": _flux,
    "tiny-flux-kontext": _flux_kontext,
    "tiny-flux2": _flux2,
    "tiny-flux2-klein": _flux2_klein,
    "tiny-krea2": _krea2,
    "tiny-qwen-image": _qwen_image,
    "tiny-qwen-image-edit": _qwen_image_edit,
    "tiny-qwen-image-edit-plus": _qwen_image_edit_plus,
    "tiny-sd3": _sd3,
    "tiny-z-image": _z_image,
}
"""What `model` may name -> how it is made."""
