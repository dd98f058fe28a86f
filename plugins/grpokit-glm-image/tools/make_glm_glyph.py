"""Makes glm-glyph: a GLM-Image of the real classes, taught on made-up words to paint well and to spell badly.

Run it once; the result is shipped. It draws the letters, teaches the autoencoder to keep their pictures, the diffusion
transformer to paint what visual tokens say, and the autoregressive half to write the tokens of a prompt's word. What
the last learns from has typos, so that GRPO has something to improve. The words that are quoted beside the
transformer's pictures have nothing to do with them: it must paint the tokens, not what the glyphs would tell it.

It takes five minutes on one free core, and is deterministic: the same seed, torch version and processor give the same
pipeline. It ends with what the reward `ocr` reads, so it needs grpokit-ocr too.

    python tools/make_glm_glyph.py

The start of glm-glyph-dit has another transformer, which learns from blurred pictures:

    python tools/make_glm_glyph.py --parts decoder --blur 5 --begin src/grpokit_glm_image/models/glyph --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from diffusers import AutoencoderKL, GlmImagePipeline, GlmImageTransformer2DModel
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor
from torch.nn import functional
from transformers import ByT5Tokenizer, GlmImageConfig, GlmImageForConditionalGeneration, T5Config, T5EncoderModel

from grpokit import Ask, Prompt, create
from grpokit.sampling import derive_seeds
from grpokit_glm_image.decoder import DecodeSettings
from grpokit_glm_image.glyph import TEMPLATES, letters, prompts
from grpokit_glm_image.glyph.words import ALPHABET, words
from grpokit_glm_image.grids import PIXELS
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.prompts import PromptEncoder
from grpokit_glm_image.tiny import IMAGE, SPARE, make_processor, make_scheduler, make_tokenizer
from grpokit_hf.tokens.fused_head import FusedHead
from grpokit_hf.tokens.linear_layers import Casts
from grpokit_hf.tokens.packed_attention import install
from grpokit_hf.tokens.packing import Completions, score
from grpokit_hf.tokens.ragged import padded

HERE = Path(__file__).parent.parent / "src/grpokit_glm_image"
HEIGHT, WIDTH = letters.SIZE
CHANNELS = 8  # of a latent
TEXT_DIM = 32
TYPOS = 0.35  # share of the letters that are exchanged in what the autoregressive half learns to write
CAPITALS = 44  # pixels, the height of a letter
PARTS = ["letters", "autoencoder", "decoder", "writer"]  # in the order in which they are made


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
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 6.0,  # the last section turns slowest: with 10000 eight frequencies see no columns
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 2, 4],
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


def pixels(codes: Tensor, blur: float = 0.0) -> Tensor:
    """Pictures [n, 3, h, w] in -1 to 1 of large grids, blurred by a Gaussian of so many pixels."""
    soft = ImageFilter.GaussianBlur(blur)
    pictures = np.stack([np.asarray(letters.picture(row.tolist()).filter(soft)) for row in codes])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def teach_autoencoder(pipe: GlmImagePipeline, *, steps: int, seed: int) -> None:
    """Learn to keep pictures, then measure the latents' mean and spread, which the pipeline's configuration holds."""
    vae, random = pipe.vae.train(), np.random.default_rng(seed)
    for name, parameter in vae.named_parameters():
        if name.endswith("conv2.weight"):  # residual blocks that begin as the identity learn faster
            torch.nn.init.zeros_(parameter)
    optimizer, schedule = one_cycle(vae, 6e-3, steps)
    for step in range(steps):
        left = int(random.integers(letters.COLUMNS - 1)) * PIXELS
        x = pixels(grids(8, random))[..., left : left + 2 * PIXELS]  # two letters teach as much as five
        latents = vae.encode(x).latent_dist.mode()
        noisy = latents + 0.05 * latents.detach().std() * torch.randn_like(latents)  # the decoder's latents are inexact
        drawn = vae.decode(noisy).sample
        loss = functional.l1_loss(drawn, x)
        take(loss + 4 * functional.mse_loss(drawn, x) + 1e-4 * latents.square().mean(), optimizer, schedule)
        tell("autoencoder", step, steps, loss)
    vae.eval()
    latents = encoded(vae, grids(256, random))
    vae.register_to_config(latents_mean=latents.mean((0, 2, 3)).tolist(), latents_std=latents.std((0, 2, 3)).tolist())


@torch.no_grad()
def encoded(vae: AutoencoderKL, codes: Tensor, blur: float = 0.0) -> Tensor:
    """The latents [n, C, h, w] of the pictures of large grids, blurred as by `pixels`."""
    return torch.cat([vae.encode(pixels(some, blur)).latent_dist.mode() for some in codes.split(64)])


def teach_decoder(pipe: GlmImagePipeline, *, steps: int, seed: int, blur: float, batch: int = 32) -> None:
    """Learn to paint: flow matching on latents, at the noise levels and times of the stock pipeline.

    The quoted words have nothing to do with the pictures, so the transformer learns to follow the tokens alone.
    """
    transformer, vae, random = pipe.transformer.train(), pipe.vae, np.random.default_rng(seed)
    mean, std = (torch.tensor(x)[:, None, None] for x in (vae.config.latents_mean, vae.config.latents_std))
    codes = grids(2000, random)
    pictures = (encoded(vae, codes, blur) - mean) / std
    prompts = quoted_words(pipe, 2000)
    optimizer, schedule = one_cycle(transformer, 3e-3, steps)
    shift = 0.25 + 0.75 * (HEIGHT * WIDTH / 256 / 256) ** 0.5
    for step in range(steps):
        rows = torch.from_numpy(random.integers(len(codes), size=batch))
        glyphs = prompts[int(random.integers(len(prompts)))]  # of one length: the transformer ignores a mask
        glyphs = glyphs[torch.from_numpy(random.integers(len(glyphs), size=batch))]
        clean = pictures[rows]
        t = torch.from_numpy(random.uniform(1, 1000, size=batch)).float()
        level = (shift / (shift + 1000 / t - 1))[:, None, None, None]
        noise = torch.randn_like(clean)
        grid = codes[rows].view(batch, letters.ROWS, letters.COLUMNS)
        prior = grid.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)
        blind = len(glyphs[0]) == 1 and random.random() < 0.5  # for guidance: no text and no tokens
        flow = transformer(
            hidden_states=(1 - level) * clean + level * noise,
            encoder_hidden_states=glyphs,
            prior_token_id=prior,
            prior_token_drop=torch.full_like(prior, blind, dtype=torch.bool),
            timestep=t - 1,
            target_size=torch.tensor([[float(HEIGHT), float(WIDTH)]]).expand(batch, -1),
            crop_coords=torch.zeros(batch, 2),
            return_dict=False,
        )[0]
        loss = functional.mse_loss(flow, noise - clean)
        take(loss, optimizer, schedule)
        tell("decoder", step, steps, loss)
    transformer.eval()


@torch.no_grad()
def quoted_words(pipe: GlmImagePipeline, count: int) -> list[Tensor]:
    """Glyphs [n, L, D] of made-up words of each length, and of no text at all."""
    texts = [f'"{word}"' for word in words("pretrain")[:count]]
    lengths = sorted({len(text) for text in texts})
    batches = [[""], *([text for text in texts if len(text) == length] for length in lengths)]
    return [pipe.encode_prompt(batch, do_classifier_free_guidance=False)[0] for batch in batches]


def teach_writer(pipe: GlmImagePipeline, *, steps: int, draft_steps: int, seed: int) -> None:
    """Learn to write, scored by the same code that training scores with.

    First one cell of the draft for each code, at its true position: spelling is learned there, in sequences of a sixth
    of the length. Then drafts and large grids as they are. Many letters of what it learns to write are others than the
    prompt's, the same in draft and large grid, so it spells badly in both alike.
    """
    writer, random = pipe.vision_language_encoder, np.random.default_rng(seed)
    decoder = writer.model.language_model
    install(decoder)
    encoder = PromptEncoder(pipe.processor, writer.config, size=letters.SIZE, edits=False, context=2048)
    taught = torch.nn.ModuleList([decoder, writer.lm_head])
    optimizer = torch.optim.AdamW(taught.parameters(), lr=3e-3, weight_decay=0.01)
    total = steps + draft_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 30, 3 * (1 - step / total) + 0.02)
    )
    known, grid = words("pretrain")[:8000], encoder.target.large
    cells = torch.arange(encoder.target.part("draft").stop).view(letters.DRAFT)
    first = cells[:: letters.DRAFT[0] // grid.rows, :: letters.DRAFT[1] // grid.columns].flatten()  # of each code
    others = torch.tensor(sorted({*cells.flatten().tolist()} - {*first.tolist()}))
    head, casts = FusedHead(), Casts()
    for step in range(total):
        batch, seen = (64, first) if step < steps else (16, torch.arange(encoder.target.count))
        chosen = [known[i] for i in random.integers(len(known), size=batch)]
        readings = [
            encoder.encode(Prompt(text=TEMPLATES[i % len(TEMPLATES)].format(word))) for i, word in enumerate(chosen)
        ]
        grids = [letters.word_codes(misspelt(word, random)) for word in chosen]
        tokens = torch.tensor([letters.draft_codes(codes) + codes for codes in grids])[:, seen]
        positions = [
            torch.cat([places[:, :length], places[:, length + seen[:-1]]], 1)
            for places, length in ((reading.positions, len(reading.tokens)) for reading in readings)
        ]
        completions = Completions(
            prompts=padded([reading.tokens for reading in readings]),
            prompt_lengths=[len(reading.tokens) for reading in readings],
            tokens=tokens,
            lengths=[tokens.shape[1]] * batch,
            groups=range(batch),
            positions=positions,
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
        parts = [slice(None)] if step < steps else [first, others, slice(-grid.count, None)]
        losses = [-logprobs[:, part].mean() for part in parts]
        take(torch.stack(losses).sum(), optimizer, schedule)
        tell("writer", step, total, *losses)
    decoder.set_attn_implementation("sdpa")


def misspelt(word: str, random: np.random.Generator) -> str:
    """A word with some of its letters exchanged for any others."""
    return "".join(ALPHABET[random.integers(len(ALPHABET))] if random.random() < TYPOS else letter for letter in word)


def one_cycle(model: torch.nn.Module, rate: float, steps: int) -> tuple[Any, Any]:
    """AdamW, and a learning rate that rises for a tenth of the steps and then falls to nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)


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


def save(pipe: GlmImagePipeline, folder: Path) -> None:
    """Write the pipeline in half precision, which keeps it small; its parts load as float32."""
    for model in (pipe.vision_language_encoder, pipe.text_encoder, pipe.transformer, pipe.vae):
        torch.nn.Module.to(model, torch.float16)
    pipe.save_pretrained(folder)
    for path in (*folder.glob("*/config.json"), folder / "model_index.json"):
        config = json.loads(path.read_text(encoding="utf-8").replace('"float16"', '"float32"'))
        config.pop("_name_or_path", None)  # where it lay here
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"wrote {folder}: {size / 1e6:.2f} MB")


def measure(folder: Path) -> None:
    """Print what OCR reads on held-out words: from true tokens, also beside a wrong prompt, and from the writer's."""
    decode = {"steps": 4, "guidance": 1.0}
    policy = GlmImageAR(str(folder), size=letters.SIZE, decode=decode, eval_decode=decode, eval_temperature=0)
    ocr, asked = create("reward", "ocr", {"threads": 1}), prompts("eval", 32)
    seeds = derive_seeds(0, stream="train", step=0, prompts=len(asked), group_size=1)
    drawn = {
        "samples": policy.rollout(asked, 1, seeds=seeds).samples,
        "greedy": policy.rollout(asked, 1, seeds=seeds, evaluate=True).samples,
    }
    grids = [letters.word_codes(prompt.meta["word"]) for prompt in asked]
    tokens = torch.tensor([letters.draft_codes(codes) + codes for codes in grids])
    for name, quoted in (("true tokens", asked), ("true tokens beside another prompt", [*asked[1:], asked[0]])):
        pictures = policy.decoder.pictures(
            tokens, quoted, seeds=seeds, settings=DecodeSettings.read(decode, key="decode"), target=policy.target
        )
        drawn[name] = [replace(sample, output=x) for sample, x in zip(drawn["samples"], pictures, strict=True)]
    for name, samples in drawn.items():
        print(f"ocr of {name}: {np.mean(ocr(samples)):.3f}")


def main() -> None:
    """Teach all parts, or those that are asked for, and save the pipeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS, help="what to make")
    parser.add_argument("--begin", type=Path, help="a pipeline whose other parts are taken")
    parser.add_argument("--autoencoder-steps", type=int, default=300)
    parser.add_argument("--decoder-steps", type=int, default=600)
    parser.add_argument("--blur", type=float, default=0.0, help="pixels, of the pictures that the decoder learns from")
    parser.add_argument("--writer-steps", type=int, default=500, help="on a cell of the draft for each code")
    parser.add_argument("--draft-steps", type=int, default=400, help="behind those, on whole drafts and large grids")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "models/glyph")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "letters" in options.parts:
        draw_letters(letters.LETTERS_FILE)
    pipe = untaught(options.seed)
    if options.begin is not None:
        begun = GlmImagePipeline.from_pretrained(options.begin)
        own = {"autoencoder": "vae", "decoder": "transformer", "writer": "vision_language_encoder"}
        taken = ["text_encoder", *(name for part, name in own.items() if part not in options.parts)]
        pipe.register_modules(**{name: getattr(begun, name) for name in taken})
    teach = {
        "autoencoder": lambda: teach_autoencoder(pipe, steps=options.autoencoder_steps, seed=options.seed),
        "decoder": lambda: teach_decoder(pipe, steps=options.decoder_steps, seed=options.seed, blur=options.blur),
        "writer": lambda: teach_writer(
            pipe, steps=options.writer_steps, draft_steps=options.draft_steps, seed=options.seed
        ),
    }
    for part in PARTS[1:]:
        if part in options.parts:
            torch.manual_seed(options.seed)
            teach[part]()
    save(pipe, options.out)
    measure(options.out)


if __name__ == "__main__":
    main()
