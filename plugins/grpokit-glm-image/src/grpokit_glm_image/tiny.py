"""A tiny GLM-Image with random weights, made of the real classes without any file or network.

It is about 1 MB and draws nothing recognisable, but all of its parts work: text to image, image to image, adapters,
saving and loading. Tests run on it, and `python -m grpokit_glm_image.tiny FOLDER` writes it for anybody to try.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImagePipeline, GlmImageTransformer2DModel
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    ByT5Tokenizer,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    GlmImageProcessor,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)
from transformers.models.glm_image.image_processing_pil_glm_image import GlmImageImageProcessorPil

from grpokit_hf.models.bars import progress_bars

CODES = 64
SPARE = 16  # visual ids behind the codes: start and end of an image, and some that mean nothing
IMAGE = "<|image|>"
TEXT_DIM = 32
LATENT_CHANNELS = 4


def tiny_pipeline(*, seed: int = 0) -> GlmImagePipeline:
    """A GLM-Image with 64 codes and random weights, on the CPU in float32; the global random state stays as it is.

    Its random choices are peaked, so wrong positions change log-probs by whole nats. The brightness of its pictures
    depends on the visual tokens. The processor is the real one: a draft grid has about 256 tokens at every size.

    Args:
        seed: of the weights.
    """
    tokenizer = make_tokenizer(CODES)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reset a GPU's random state, too
        pipeline = GlmImagePipeline(
            tokenizer=ByT5Tokenizer(),
            processor=make_processor(tokenizer, shortest_side=64),
            text_encoder=_text_encoder(),
            vision_language_encoder=_autoregressive_model(tokenizer),
            vae=_vae(),
            transformer=_transformer(),
            scheduler=make_scheduler(),
        )
    _let_tokens_show(pipeline)
    return pipeline


def make_tokenizer(codes: int, *, spare: int = SPARE) -> PreTrainedTokenizerFast:
    """A tokenizer laid out like the released one: visual codes, start and end of an image, then text.

    Text is read byte by byte, so any prompt has tokens.

    Args:
        codes: the size of the codebook; visual ids are 0 to codes - 1, and those of `spare`.
        spare: visual ids behind the codes, at least 2.
    """
    visual = [_visual(code) for code in range(codes + spare)]
    marks = {"pad_token": "<|endoftext|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>", "image_token": IMAGE}
    texts = [*visual, *sorted(pre_tokenizers.ByteLevel.alphabet()), *marks.values()]
    tokenizer = Tokenizer(models.BPE(vocab={text: token for token, text in enumerate(texts)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [*visual, *marks.values()]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_visual(codes),  # the processor ends a prompt with it
        eos_token=_visual(codes + 1),
        pad_token=marks.pop("pad_token"),
        padding_side="left",
        extra_special_tokens=marks,  # which the processor reads as attributes
    )


def make_processor(tokenizer: PreTrainedTokenizerFast, *, shortest_side: int) -> GlmImageProcessor:
    """The processor of GLM-Image around a tokenizer.

    Like the released one it writes no role markers around the text. A source picture stands between the marks of an
    image's start and end.

    Args:
        tokenizer: such as `make_tokenizer` returns.
        shortest_side: source pictures are enlarged until no side is shorter, in pixels; 512 in the released model.
    """
    template = (
        "{%- for message in messages -%}{%- for part in message['content'] -%}"
        "{%- if part['type'] == 'image' -%}" + tokenizer.bos_token + IMAGE + tokenizer.eos_token + "{%- else -%}"
        "{{ part['text'] }}{%- endif -%}{%- endfor -%}{%- endfor -%}"
    )
    pictures = GlmImageImageProcessorPil(  # the defaults of the class fit no GLM-Image
        patch_size=16,
        temporal_patch_size=1,
        merge_size=1,
        size={"shortest_edge": shortest_side**2, "longest_edge": 2048**2},
    )
    return GlmImageProcessor(image_processor=pictures, tokenizer=tokenizer, chat_template=template)


def make_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """The released model's scheduler, whose noise levels follow from the number of pixels."""
    scheduler: FlowMatchEulerDiscreteScheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.25,
        max_shift=0.75,
        base_image_seq_len=256,
        max_image_seq_len=4096,
        time_shift_type="linear",
    )
    return scheduler


def _visual(code: int) -> str:
    return f"<|dit_token_{code}|>"


def _autoregressive_model(tokenizer: PreTrainedTokenizerFast) -> GlmImageForConditionalGeneration:
    start, end, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
    image = tokenizer.convert_tokens_to_ids(IMAGE)
    assert isinstance(image, int)  # as of one token
    config = GlmImageConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "vision_vocab_size": CODES + SPARE,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 8192,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],  # sums to half of the rotated part of a head
            },
            "initializer_range": 0.25,  # with the usual 0.02 all choices would be nearly uniform
            "pad_token_id": pad,
            "eos_token_id": end,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 48,
            "patch_size": 16,
            "image_size": 256,
            "spatial_merge_size": 1,
        },
        vq_config={"embed_dim": 16, "num_embeddings": CODES, "latent_channels": 32},
        image_token_id=image,
        image_start_token_id=start,
        image_end_token_id=end,
    )
    model: GlmImageForConditionalGeneration = GlmImageForConditionalGeneration(config).eval()
    model.generation_config.update(
        do_sample=True,
        temperature=0.9,
        top_p=0.75,
        top_k=0,  # transformers would take 50
        bos_token_id=start,
        eos_token_id=end,
        pad_token_id=pad,
        suppress_tokens=list(range(CODES, CODES + SPARE)),  # random weights would end an image in its middle
    )
    return model


def _text_encoder() -> T5EncoderModel:
    config = T5Config(
        vocab_size=384, d_model=TEXT_DIM, d_kv=8, d_ff=48, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu"
    )
    encoder: T5EncoderModel = T5EncoderModel(config).eval()
    return encoder


def _transformer() -> GlmImageTransformer2DModel:
    transformer: GlmImageTransformer2DModel = GlmImageTransformer2DModel(
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        text_embed_dim=TEXT_DIM,
        time_embed_dim=32,
        condition_dim=8,
        prior_vq_quantizer_codebook_size=CODES,
    ).eval()
    return transformer


def _vae() -> AutoencoderKL:
    vae: AutoencoderKL = AutoencoderKL(
        # four blocks make a latent of 8 x 8 pixels, and the transformer reads 2 x 2 of these
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=1,  # several would level the channels, and with them the brightness
        latent_channels=LATENT_CHANNELS,
        latents_mean=[0.2, -0.1, 0.1, -0.2],
        latents_std=[1.2, 0.8, 1.1, 0.9],
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    ).eval()
    return vae


@torch.no_grad()
def _let_tokens_show(pipeline: GlmImagePipeline) -> None:
    """Scale some weights so that the visual tokens, and not the noise, decide how bright a picture is."""
    pipeline.transformer.prior_projector.net[-1].weight.mul_(4)
    pipeline.transformer.proj_out.weight.mul_(12)
    last = pipeline.vae.decoder.conv_out.weight  # [3, channels, 3, 3]
    last.add_(5 * last.mean((0, 2, 3), keepdim=True))


def main() -> None:
    """Write the tiny pipeline to a folder."""
    parser = argparse.ArgumentParser(prog="python -m grpokit_glm_image.tiny", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where to write it; must not exist, or be empty")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        parser.error(f"'{folder}' exists and is not an empty folder. Name another one.")
    with progress_bars("write the tiny pipeline"):
        tiny_pipeline(seed=arguments.seed).save_pretrained(folder)
    print(f"Wrote {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
