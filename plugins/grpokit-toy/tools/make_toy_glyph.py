"""Makes the start file of toy-glyph: the codebook, and a transformer stopped early in its pre-training.

Run it once; the result is shipped. The pre-training is ordinary next-token learning on the correctly drawn words of
the `pretrain` split (made-up words), stopped while samples are still mediocre, so that GRPO has something to improve.
It is deterministic: the same seed and torch version give the same file on one thread of the same kind of processor.

    python tools/make_toy_glyph.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import save_file
from torch.nn import functional

from grpokit_toy import codebook as book
from grpokit_toy.data import glyph_words
from grpokit_toy.glyph import build, prompt_tokens
from grpokit_toy.transformer import PAD, Transformer

INK, PAPER = (30, 40, 90), (250, 240, 215)
CAPITALS = 22  # pixels, the height of a letter
BATCH, LEARNING_RATE = 64, 1e-3
SEED, STEPS = 1, 70  # a few more make it much better: samples score 0.45 in OCR here, 0.65 after 80


def letter_mask(letter: str) -> Image.Image:
    """How much ink each of 16 x 32 pixels has. I and J come from the monospaced face, whose I has serifs."""
    face = "DejaVuSansMono-Bold.ttf" if letter in "IJ" else "DejaVuSans-Bold.ttf"
    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face), 26)
    left, top, right, bottom = font.getbbox(letter)
    ink = Image.new("L", (int(right - left), int(bottom - top)), 0)
    ImageDraw.Draw(ink).text((-left, -top), letter, font=font, fill=255)
    width = min(ink.width, book.PATCH - 2)
    ink = ink.resize((width, CAPITALS), Image.Resampling.LANCZOS)
    cell = Image.new("L", (book.PATCH, book.ROWS * book.PATCH), 0)
    cell.paste(ink, ((cell.width - width) // 2, (cell.height - CAPITALS) // 2))
    return cell


def make_codebook() -> book.Codebook:
    """Cut all letters into patches and number the different ones; the empty patch is code 0."""
    empty = np.full((book.PATCH, book.PATCH, 3), PAPER, np.uint8)
    patches, numbers = [empty], {empty.tobytes(): 0}
    letters = np.zeros((len(book.ALPHABET), book.ROWS), np.int64)
    for i, letter in enumerate(book.ALPHABET):
        mask = letter_mask(letter)
        drawn = np.asarray(Image.composite(Image.new("RGB", mask.size, INK), Image.new("RGB", mask.size, PAPER), mask))
        for row, patch in enumerate(np.split(drawn, book.ROWS)):
            if patch.tobytes() not in numbers:
                numbers[patch.tobytes()] = len(patches)
                patches.append(patch)
            letters[i, row] = numbers[patch.tobytes()]
    return book.Codebook(patches=np.stack(patches), letters=letters)


def batches(codes: book.Codebook, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of prompts [b, L] and tokens [b, T], every word once per pass."""
    words = glyph_words("pretrain")
    prompts = torch.full((len(words), book.MAX_LETTERS + 2), PAD)
    for row, word in zip(prompts, words, strict=True):
        row[: len(word) + 2] = torch.tensor(prompt_tokens(word))
    tokens = torch.tensor([codes.tokens(word) for word in words])
    generator = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(words), generator=generator).split(BATCH):
            yield prompts[rows], tokens[rows]


def pretrain(codes: book.Codebook, *, seed: int, steps: int) -> Transformer:
    """`steps` batches of next-token learning with AdamW at a constant learning rate."""
    torch.manual_seed(seed)
    model = build(len(codes.patches))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    for step, (prompts, tokens) in zip(range(steps), batches(codes, seed), strict=False):
        loss = functional.cross_entropy(model(prompts, tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == steps - 1:
            print(f"step {step:5d}  loss {loss.item():.4f} nats per token", flush=True)
    return model


def save(codes: book.Codebook, model: Transformer, path: Path) -> None:
    """Codebook and weights in one file; half precision keeps it small and loads to the same fp32 numbers anywhere."""
    tensors = {name: x.half().contiguous() for name, x in model.state_dict().items()}
    tensors["codebook.patches"] = torch.from_numpy(codes.patches)
    tensors["codebook.letters"] = torch.from_numpy(codes.letters).to(torch.int32)
    save_file(tensors, path)


def main() -> None:
    """Build the codebook, pre-train, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="batches of 64 words before stopping")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=book.START_FILE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    codes = make_codebook()
    print(f"{len(codes.patches)} different patches")
    model = pretrain(codes, seed=options.seed, steps=options.steps)
    save(codes, model, options.out)
    print(f"wrote {options.out}: {options.out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
