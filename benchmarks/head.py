"""The memory that a language model's last layer needs: `FusedHead` against log-softmax on all logits.

    python benchmarks/head.py                   # printed
    python benchmarks/head.py --write           # and written into docs/benchmarks.md
    python benchmarks/head.py --device cuda

Log-probs and entropies of the same tokens, forward and backward, each way in a process of its own. Counted is the peak
beyond the hidden states and the weight: logits, what autograd keeps, and the gradients. Afterwards loss and gradients
are compared with those of log-softmax.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from lm_job import tables
from lm_job.clock import Memory
from torch import Tensor

from grpokit_hf.tokens.fused_head import FusedHead

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
WAYS = ("log-softmax", "fused")
VOCABULARIES = (16_512, 65_536, 151_936)
AGREEMENT = {"cpu": 1e-5, "cuda": 2e-2}  # fp32, and products in bf16


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What is computed.

    Attributes:
        tokens: N.
        hidden: H.
        vocab: V.
        device: "cpu" computes in fp32, "cuda" in bf16.
    """

    tokens: int = 2048
    hidden: int = 256
    vocab: int = VOCABULARIES[0]
    device: str = "cpu"

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Hidden states [N, H] and weight [V, H] with gradient, targets [N], and the loss's slope [N]."""
        torch.manual_seed(0)
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        hidden, weight = (torch.randn(n, self.hidden) for n in (self.tokens, self.vocab))
        targets, slope = torch.randint(self.vocab, (self.tokens,)), torch.randn(self.tokens) / self.tokens
        learnt = [x.to(self.device, dtype).requires_grad_() for x in (hidden, weight * self.hidden**-0.5)]
        return learnt[0], learnt[1], targets.to(self.device), slope.to(self.device)


def main() -> None:
    """Print the table, and perhaps write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, help="default: 2,048, on a GPU 8,192")
    parser.add_argument("--hidden", type=int, help="default: 256, on a GPU 1,536")
    parser.add_argument("--vocab", type=int, nargs="+", default=VOCABULARIES)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    parser.add_argument("--worker", nargs=2, metavar=("WAY", "LAYER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        way, layer = given.worker
        print(json.dumps(measured(way, Layer(**json.loads(layer)))))
        return
    if min(*given.vocab, given.tokens or 1, given.hidden or 1) < 1:
        parser.error("sizes are whole numbers of at least 1")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU, and torch finds none; leave it out for the CPU")
    tokens, hidden = (8192, 1536) if given.device == "cuda" else (2048, 256)
    sizes = {"tokens": given.tokens or tokens, "hidden": given.hidden or hidden, "device": given.device}
    text = markdown([Layer(vocab=vocab, **sizes) for vocab in given.vocab])
    print(text)
    if given.write:
        tables.write(PAGE, f"head {given.device}", text)


def compute(way: str, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and its gradients by the hidden states and the weight."""
    hidden, weight, targets, slope = layer.tensors()
    if way == "log-softmax":
        logits = (hidden @ weight.t()).float()  # [N, V]
        each = logits.log_softmax(-1)
        logprobs = each.gather(-1, targets[:, None])[:, 0]
        with torch.no_grad():
            torch.stack([-(row.exp() * row).sum() for row in each])  # the entropies, row by row
    else:
        logprobs, _ = FusedHead()(hidden, targets, weight, entropy="value")
    loss = (logprobs * slope).sum()
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


def measured(way: str, layer: Layer) -> dict[str, float]:
    """The peak in MiB, and the largest relative error against log-softmax: of the loss and of each gradient."""
    compute(way, replace(layer, vocab=min(layer.vocab, 1024)))  # libraries take their buffers, once
    inputs = sum(x.numel() * x.element_size() for x in layer.tensors()) / 2**20
    memory = Memory(cuda=layer.device == "cuda")
    memory.reset()
    ours = compute(way, layer)
    peak = memory.growth() - inputs
    theirs = ours if way == "log-softmax" else compute("log-softmax", layer)
    error = max(float((a - b).float().norm() / b.float().norm()) for a, b in zip(ours, theirs, strict=True))
    return {"peak": peak, "error": error}


def apart(way: str, layer: Layer) -> dict[str, float]:
    """`measured` in a process of its own.

    Raises:
        SystemExit: it failed, or the result is not that of log-softmax.
    """
    command = [sys.executable, __file__, "--worker", way, json.dumps(asdict(layer))]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(f"head.py: {way} with a vocabulary of {layer.vocab:,} failed:\n{process.stderr.strip()}")
    found: dict[str, float] = json.loads(process.stdout)
    if not found["error"] <= AGREEMENT[layer.device]:
        raise SystemExit(f"head.py: {way} differs from log-softmax by {found['error']:.1e} at {layer.vocab:,} tokens.")
    return found


def markdown(layers: Sequence[Layer]) -> str:
    """A row per vocabulary: MiB of the logits, and of each way's peak."""
    first = layers[0]
    what = torch.cuda.get_device_name() + ", bf16" if first.device == "cuda" else "CPU, fp32"
    rows: list[Sequence[str]] = [["vocabulary", "the logits", *WAYS, "fused / log-softmax"]]
    rows.append(["---:"] * len(rows[0]))
    for layer in layers:
        peaks: Mapping[str, float] = {way: apart(way, layer)["peak"] for way in WAYS}
        logits = layer.tokens * layer.vocab * 4 / 2**20
        share = peaks["fused"] / peaks["log-softmax"]
        rows.append([f"{layer.vocab:,}", *(f"{x:,.0f}" for x in (logits, *peaks.values())), f"{share:.2f}"])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    head = f"{first.tokens:,} tokens, hidden size {first.hidden:,}; {what}; torch {torch.__version__}; MiB."
    return "\n".join([head, "", *lines])


if __name__ == "__main__":
    main()
