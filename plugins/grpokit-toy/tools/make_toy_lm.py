"""Makes the start file of toy-lm: a transformer stopped early in its pre-training.

Run it once; the result is shipped. The pre-training is ordinary next-token learning on correct solutions of the
`pretrain` problems, and is stopped while samples are still mediocre, so that GRPO has something to improve. It is
deterministic: the same seed, torch version and number of threads give the same file.

    python tools/make_toy_lm.py --steps N
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

from grpokit_toy import lm
from grpokit_toy.transformer import Transformer

BATCH, LEARNING_RATE, IGNORED = 64, 1e-3, -100


def pretrain(*, seed: int, steps: int) -> Transformer:
    """`steps` batches of next-token learning with AdamW at a constant learning rate."""
    problems = lm.sum_problems("pretrain")
    prompts = torch.tensor([lm.prompt_tokens(lm.question(*pair)) for pair in problems])
    tokens = torch.full((len(problems), lm.LENGTH), IGNORED)
    for row, pair in zip(tokens, problems, strict=True):
        written = lm.response_tokens(lm.solution(*pair))
        row[: len(written)] = torch.tensor(written)
    torch.manual_seed(seed)
    model = lm.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    step = 0
    while step < steps:
        for rows in torch.randperm(len(problems), generator=generator).split(BATCH)[: steps - step]:
            logits = model(prompts[rows], tokens[rows].clamp(min=0))
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[rows].flatten(), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0 or step == steps:
                print(f"step {step:5d}  loss {loss.item():.4f} nats per character", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, required=True, help="batches of 64 problems before stopping")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=lm.START_FILE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = pretrain(seed=options.seed, steps=options.steps)
    # half precision keeps it small and loads to the same fp32 numbers anywhere
    save_file({name: x.half().contiguous() for name, x in model.state_dict().items()}, options.out)
    print(f"wrote {options.out}: {options.out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
