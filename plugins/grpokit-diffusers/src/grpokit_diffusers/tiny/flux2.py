"""A tiny FLUX.2 [dev]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Pipeline, Flux2Transformer2DModel
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedTokenizerFast,
)

from grpokit_diffusers.tiny.parts import FLUX, LETTERS, SMALL, VAE

DEEP: Mapping[str, Any] = {  # of whose layers FLUX.2 reads the 27th, and of another kind the 30th
    **SMALL,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 31,
    "num_attention_heads": 2,
    "head_dim": 4,
}


def pipeline() -> Flux2Pipeline:
    """With random weights."""
    reader = Mistral3Config(
        text_config={"model_type": "mistral", **DEEP, "vocab_size": len(LETTERS) + 6},
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
        **parts(guidance_embeds=True),
        text_encoder=Mistral3ForConditionalGeneration(reader).eval(),
        tokenizer=pixtral_processor(),
    )


def parts(*, guidance_embeds: bool) -> dict[str, Any]:
    """What both sizes have: all but the text encoder."""
    vae = AutoencoderKLFlux2(**VAE)
    vae.bn.running_mean.normal_(std=0.2)
    vae.bn.running_var.uniform_(0.5, 1.5)
    return {
        "transformer": Flux2Transformer2DModel(
            **FLUX,
            joint_attention_dim=3 * DEEP["hidden_size"],
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=guidance_embeds,
        ).eval(),
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": vae.eval(),
    }


def pixtral_processor() -> Any:
    """Letters, and a template for a chat."""
    own = ["<s>", "</s>", "<pad>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    words = Tokenizer(models.BPE(vocab={text: token for token, text in enumerate([*own, *LETTERS])}, merges=[]))
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
