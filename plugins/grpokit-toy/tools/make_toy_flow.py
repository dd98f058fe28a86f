"""Makes the start file of toy-flow: a flow that was taught another target than the one it will be asked for.

Run it once; the result is shipped. It is ordinary flow matching on points of a broad round blob, with prompts about
rings beside them that say nothing about the points, so the flow learns where points are likely and not to listen. It
is deterministic: the same seed, torch version and number of threads give the same file.

    python tools/make_toy_flow.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

from grpokit_toy import flow

BATCH, LEARNING_RATE, SPREAD = 256, 2e-3, 0.7


def pretrain(*, seed: int, steps: int) -> flow.Velocity:
    """`steps` batches of flow matching, the mean squared error of v against e - x0, with AdamW."""
    torch.manual_seed(seed)
    net = flow.Velocity()
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    low, high = flow.HUNDREDTHS[0] / 100, flow.HUNDREDTHS[-1] / 100
    for step in range(1, steps + 1):
        clean, noise = SPREAD * torch.randn(BATCH, flow.DIMS), torch.randn(BATCH, flow.DIMS)
        sigma, radius = torch.rand(BATCH), low + (high - low) * torch.rand(BATCH)
        x = (1 - sigma[:, None]) * clean + sigma[:, None] * noise
        loss = functional.mse_loss(net(x, sigma, radius), noise - clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == steps:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, help="batches of 256 points")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=flow.START_FILE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = pretrain(seed=options.seed, steps=options.steps)
    save_file({name: x.detach().contiguous() for name, x in net.state_dict().items()}, options.out)
    print(f"wrote {options.out}: {options.out.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
