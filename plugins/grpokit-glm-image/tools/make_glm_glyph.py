"""Makes glm-glyph: a GLM-Image of the real classes, taught on made-up words and stopped while it still spells badly.

Run it once; the result is shipped. It draws the letters, teaches the autoencoder to keep their pictures, the diffusion
transformer to paint what visual tokens say, and the autoregressive half to write the tokens of a prompt's word. The
last is stopped early, so that GRPO has something to improve. Half of the pictures that the transformer learns from show
another word than the prompt quotes: it must paint the tokens, not what the glyphs would tell it.

    python tools/make_glm_glyph.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from diffusers import AutoencoderKL, GlmImagePipeline, GlmImageTransformer2DModel
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional
from transformers import ByT5Tokenizer, GlmImageConfig, GlmImageForConditionalGeneration, T5Config, T5EncoderModel

from grpokit import Ask, Prompt
from grpokit.policies.fused_head import FusedHead
from grpokit.policies.linear_layers import Casts
from grpokit.policies.packed_attention import install
from grpokit.policies.packing import Completions, score
from grpokit.policies.ragged import padded
from grpokit_glm_image.glyph import TEMPLATES, letters
from grpokit_glm_image.glyph.words import ALPHABET, words
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.tiny import IMAGE, SPARE, make_processor, make_scheduler, make_tokenizer

HERE = Path(__file__).parent.parent / "src/grpokit_glm_image"
HEIGHT, WIDTH = letters.SIZE
CHANNELS = 4  # of a latent
TEXT_DIM = 32
CAPITALS = 44  # pixels, the height of a letter


def draw_letters(path: Path) -> None:
    """Draw the 26 letters side by side. I and J come from the monospaced face, whose I has serifs."""
    row = Image.new("L", (32 * len(ALPHABET), HEIGHT), 0)
    for index, letter in enumerate(ALPHABET):
        face = "DejaVuSansMono-Bold.ttf" if letter in "IJ" else "DejaVuSans-Bold.ttf"
        font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face), 52)
        left, top, right, bottom = font.getbbox(letter)
        ink = Image.new("L", (int(right - left), int(bottom - top)), 0)
        ImageDraw.Draw(ink).text((-left, -top), letter, font=font, fill=255)
        width = min(ink.width, 28)
        ink = ink.resize((width, CAPITALS), Image.Resampling.LANCZOS)
        row.paste(ink, (32 * index + (32 - width) // 2, (HEIGHT - CAPITALS) // 2))
    row.save(path, optimize=True)


def untaught(seed: int) -> GlmImagePipeline:
    """The pipeline with random weights."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(letters.CODES)
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    config = GlmImageConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "vision_vocab_size": letters.CODES + SPARE,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 3, 3],
            },
            "pad_token_id": tokenizer.pad_token_id,
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
        vq_config={"embed_dim": 16, "num_embeddings": letters.CODES, "latent_channels": 32},
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        image_start_token_id=start,
        image_end_token_id=end,
    )
    writer = GlmImageForConditionalGeneration(config).eval()
    writer.generation_config.update(
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        bos_token_id=start,
        eos_token_id=end,
        pad_token_id=tokenizer.pad_token_id,
        suppress_tokens=list(range(letters.CODES, letters.CODES + SPARE)),
    )
    return GlmImagePipeline(
        tokenizer=ByT5Tokenizer(),
        processor=make_processor(tokenizer, shortest_side=64),
        text_encoder=T5EncoderModel(
            T5Config(
                vocab_size=384,
                d_model=TEXT_DIM,
                d_kv=8,
                d_ff=48,
                num_layers=1,
                num_heads=2,
                feed_forward_proj="gated-gelu",
            )
        ).eval(),
        vision_language_encoder=writer,
        vae=AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(8, 16, 32, 32),
            layers_per_block=1,
            norm_num_groups=4,
            latent_channels=CHANNELS,
            latents_mean=[0.0] * CHANNELS,
            latents_std=[1.0] * CHANNELS,
            use_quant_conv=False,
            use_post_quant_conv=False,
            mid_block_add_attention=False,
        ).eval(),
        transformer=GlmImageTransformer2DModel(
            in_channels=CHANNELS,
            out_channels=CHANNELS,
            num_layers=3,
            attention_head_dim=32,
            num_attention_heads=4,
            text_embed_dim=TEXT_DIM,
            time_embed_dim=64,
            condition_dim=16,
            prior_vq_quantizer_codebook_size=letters.CODES,
        ).eval(),
        scheduler=make_scheduler(),
    )


def grids(count: int, random: np.random.Generator) -> Tensor:
    """Large grids [count, T]: made-up words, a quarter of them with halves of letters or grey cells in some places."""
    known = words("pretrain")
    codes = np.array([letters.word_codes(known[i]) for i in random.integers(len(known), size=count)])
    odd = (random.random(codes.shape) < 0.3) & (random.random((count, 1)) < 0.25)
    return torch.from_numpy(np.where(odd, random.integers(letters.CODES, size=codes.shape), codes))


def pixels(codes: Tensor) -> Tensor:
    """Pictures [n, 3, h, w] in -1 to 1 of large grids."""
    pictures = np.stack([np.asarray(letters.picture(row.tolist())) for row in codes])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def teach_autoencoder(pipe: GlmImagePipeline, *, steps: int, seed: int) -> None:
    """Learn to keep pictures, then measure the latents' mean and spread, which the pipeline's configuration holds."""
    vae, random = pipe.vae.train(), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        x = pixels(grids(8, random))
        latents = vae.encode(x).latent_dist.mode()
        noisy = latents + 0.05 * latents.detach().std() * torch.randn_like(latents)  # the decoder's latents are inexact
        loss = functional.l1_loss(vae.decode(noisy).sample, x)
        take(loss + 1e-4 * latents.square().mean(), optimizer, schedule)
        tell("autoencoder", step, steps, loss)
    vae.eval()
    with torch.no_grad():
        latents = vae.encode(pixels(grids(256, random))).latent_dist.mode()
    vae.register_to_config(latents_mean=latents.mean((0, 2, 3)).tolist(), latents_std=latents.std((0, 2, 3)).tolist())


def teach_decoder(pipe: GlmImagePipeline, *, steps: int, seed: int) -> None:
    """Learn to paint: flow matching on latents, at the noise levels and times of the stock pipeline."""
    transformer, vae, random = pipe.transformer.train(), pipe.vae, np.random.default_rng(seed)
    mean, std = (torch.tensor(x)[:, None, None] for x in (vae.config.latents_mean, vae.config.latents_std))
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    shift = 0.25 + 0.75 * (HEIGHT * WIDTH / 256 / 256) ** 0.5
    by_length: dict[int, list[str]] = {}
    for word in words("pretrain"):
        by_length.setdefault(len(word), []).append(word)
    for step in range(steps):
        count, glyphless = 64, random.random() < 0.15
        same = by_length[int(random.integers(3, 6))]  # prompts of one length: the transformer ignores a mask
        quoted = [same[i] for i in random.integers(len(same), size=count)]
        codes = grids(count, random)
        told = torch.from_numpy(random.random(count) < 0.5)
        codes[told] = torch.tensor([letters.word_codes(word) for word in quoted])[told]
        with torch.no_grad():
            clean = (vae.encode(pixels(codes)).latent_dist.mode() - mean) / std
            glyphs, _ = pipe.encode_prompt(
                [""] * count if glyphless else [f'"{word}"' for word in quoted], do_classifier_free_guidance=False
            )
        t = torch.from_numpy(random.uniform(1, 1000, size=count)).float()
        level = (shift / (shift + 1000 / t - 1))[:, None, None, None]
        noise = torch.randn_like(clean)
        prior = codes.view(count, letters.ROWS, letters.COLUMNS).repeat_interleave(2, 1).repeat_interleave(2, 2)
        prior = prior.flatten(1)
        flow = transformer(
            hidden_states=(1 - level) * clean + level * noise,
            encoder_hidden_states=glyphs,
            prior_token_id=prior,
            prior_token_drop=torch.full_like(prior, glyphless, dtype=torch.bool),
            timestep=t - 1,
            target_size=torch.tensor([[float(HEIGHT), float(WIDTH)]]).expand(count, -1),
            crop_coords=torch.zeros(count, 2),
            return_dict=False,
        )[0]
        loss = functional.mse_loss(flow, noise - clean)
        take(loss, optimizer, schedule)
        tell("decoder", step, steps, loss)
    transformer.eval()


def teach_writer(pipe: GlmImagePipeline, *, steps: int, seed: int, batch: int = 32) -> None:
    """Learn to write drafts and large grids, scored by the same code that training scores with."""
    writer, random = pipe.vision_language_encoder, np.random.default_rng(seed)
    decoder = writer.model.language_model
    install(decoder)
    encoder = PromptEncoder(pipe.processor, writer.config, size=letters.SIZE, edits=False, context=2048)
    parameters = [*decoder.parameters(), *writer.lm_head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    known, before = words("pretrain"), encoder.target.part("large").start
    head, casts = FusedHead(), Casts()
    for step in range(steps):
        chosen = [known[i] for i in random.integers(len(known), size=batch)]
        readings = [
            encoder.encode(Prompt(text=TEMPLATES[i % len(TEMPLATES)].format(word))) for i, word in enumerate(chosen)
        ]
        tokens = torch.tensor([letters.draft_codes(word) + letters.word_codes(word) for word in chosen])
        completions = Completions(
            prompts=padded([reading.tokens for reading in readings]),
            prompt_lengths=[len(reading.tokens) for reading in readings],
            tokens=tokens,
            lengths=[tokens.shape[1]] * batch,
            groups=range(batch),
            positions=[reading.positions for reading in readings],
        )
        logprobs = score(
            completions,
            0,
            width=tokens.shape[1],
            decoder=decoder,
            layer=writer.lm_head,
            head=head,
            casts=casts,
            ask=Ask(entropy="no"),
        ).logprobs
        draft, large = -logprobs[:, :before].mean(), -logprobs[:, before:].mean()
        take(draft + large, optimizer, schedule)
        tell("writer", step, steps, draft, large)
    decoder.set_attn_implementation("sdpa")


def take(loss: Tensor, optimizer: Any, schedule: Any) -> None:
    """One step of an optimizer."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    schedule.step()


def tell(what: str, step: int, steps: int, *losses: Tensor) -> None:
    """Print now and then."""
    if step % 50 == 0 or step == steps - 1:
        numbers = " ".join(f"{loss.item():.4f}" for loss in losses)
        print(f"{time.strftime('%H:%M:%S')} {what} {step:5d} {numbers}", flush=True)


def stored() -> Iterator[str]:
    """The parts that are taught, in their order."""
    yield from ("letters", "autoencoder", "decoder", "writer")


def main() -> None:
    """Make the parts that are asked for, and save the pipeline in half precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=list(stored()), choices=list(stored()))
    parser.add_argument("--autoencoder-steps", type=int, default=1500)
    parser.add_argument("--decoder-steps", type=int, default=3000, help="fewer leave its words blurred")
    parser.add_argument("--writer-steps", type=int, default=2000, help="more make it spell well")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--begin", type=Path, help="a pipeline whose other parts are taken")
    parser.add_argument("--out", type=Path, default=HERE / "models/glyph")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "letters" in options.parts:
        draw_letters(letters.LETTERS_FILE)
    pipe = untaught(options.seed) if options.begin is None else GlmImagePipeline.from_pretrained(options.begin)
    torch.manual_seed(options.seed)
    if "autoencoder" in options.parts:
        teach_autoencoder(pipe, steps=options.autoencoder_steps, seed=options.seed)
    if "decoder" in options.parts:
        teach_decoder(pipe, steps=options.decoder_steps, seed=options.seed)
    if "writer" in options.parts:
        teach_writer(pipe, steps=options.writer_steps, seed=options.seed)
    pipe.to(dtype=torch.float16, silence_dtype_warnings=True)
    pipe.save_pretrained(options.out)
    size = sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file())
    print(f"wrote {options.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
