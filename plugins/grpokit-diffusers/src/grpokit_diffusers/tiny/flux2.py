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
_OWN = ["<s>", "</s>", "<pad>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]  # before the letters


def pipeline() -> Flux2Pipeline:
    """With random weights."""
    return Flux2Pipeline(
        **parts(guidance_embeds=True),
        text_encoder=Mistral3ForConditionalGeneration(mistral(DEEP)).eval(),
        tokenizer=pixtral_processor(),
    )


def parts(*, guidance_embeds: bool) -> dict[str, Any]:
    """What both sizes have: all but the text encoder."""
    return {
        "transformer": Flux2Transformer2DModel(
            **FLUX,
            joint_attention_dim=3 * DEEP["hidden_size"],
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=guidance_embeds,
        ).eval(),
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": vae(),
    }


def vae() -> AutoencoderKLFlux2:
    """One of four channels, with a scale for each number of a token."""
    model = AutoencoderKLFlux2(**VAE)
    model.bn.running_mean.normal_(std=0.2)
    model.bn.running_var.uniform_(0.5, 1.5)
    made: AutoencoderKLFlux2 = model.eval()
    return made


def mistral(sizes: Mapping[str, Any]) -> Mistral3Config:
    """A language model of some sizes that sees pictures."""
    return Mistral3Config(
        text_config={"model_type": "mistral", **sizes, "vocab_size": len(LETTERS) + len(_OWN)},
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


def mistral_tokenizer(**options: Any) -> PreTrainedTokenizerFast:
    """Letters and Mistral's own tokens."""
    words = Tokenizer(models.BPE(vocab={text: token for token, text in enumerate([*_OWN, *LETTERS])}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "additional_special_tokens": _OWN[3:]}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names, **options)


def pixtral_processor() -> Any:
    """Letters, and a template for a chat."""
    return PixtralProcessor(
        image_processor=PixtralImageProcessor(),
        tokenizer=mistral_tokenizer(),
        chat_template=(
            "{%- for message in messages -%}{{ message['role'] }}: "
            "{%- for part in message['content'] -%}{{ part['text'] }}{%- endfor -%}{%- endfor -%}"
        ),
    )
