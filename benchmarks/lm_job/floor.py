"""The least time that a machine needs for a job: FLOPs and bytes of each phase over its measured peaks.

The work counted is the least that gives the job's result: every prompt once per group, in generation and in scoring;
no pass for old log-probs; nothing recomputed. So a contender may do more, and cannot do less. Nothing here imports
torch, except to measure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_job.job import Job


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a phase must do: floating-point operations, and bytes to read or write."""

    flops: float
    bytes: float = 0.0

    def seconds(self, peaks: Mapping[str, float]) -> float:
        """The least time with peaks of "flops" and "bytes" per second: of both, the one that takes longer."""
        return max(self.flops / peaks["flops"], self.bytes / peaks["bytes"])


def work(job: Job, lengths: Sequence[int]) -> dict[str, Work]:
    """Phase -> its work, for rows of these numbers of new tokens."""
    size = 2 if job.device == "cuda" else 4  # bytes of a weight or an activation in a GEMM
    linears = [
        (job.hidden, job.hidden),
        (job.hidden, job.key_width),
        (job.hidden, job.key_width),
        (job.hidden, job.hidden),
        *[(job.hidden, job.mlp)] * 3,
    ]
    block = job.layers * sum(a * b for a, b in linears)
    adapter = job.layers * sum(job.lora * (a + b) for a, b in linears)
    head = job.hidden * job.vocab
    norms = job.hidden * (2 * job.layers + 1)
    trained = adapter or block + 2 * head + norms

    drawn = sum(lengths)
    prompt = job.prompts * job.prompt_tokens
    fed = drawn - len(lengths)  # a row's last token is drawn, and never read
    prompt_context = job.prompts * _series(1, job.prompt_tokens)
    contexts = sum(_series(job.prompt_tokens + 1, job.prompt_tokens + length - 1) for length in lengths)
    attention = 4 * job.hidden * job.layers  # FLOPs of a query per token that it looks at
    prefill = 2.0 * block * prompt + attention * prompt_context
    decode = 2.0 * block * fed + 2.0 * head * drawn + attention * contexts
    scoring = prefill + decode
    weights = size * (block + head)
    cache = size * 2 * job.key_width * job.layers  # bytes of a token
    micro_batches = job.rows // job.micro
    train = 2 * scoring + 6.0 * adapter * (prompt + fed) if job.lora else 3 * scoring
    return {
        "prefill": Work(flops=prefill, bytes=size * block),
        "decode": Work(flops=decode, bytes=float(weights * max(lengths) + cache * contexts)),
        "reference": Work(flops=scoring, bytes=weights * micro_batches),
        "train": Work(flops=train, bytes=3 * weights * micro_batches),
        "optimizer": Work(flops=0.0, bytes=7.0 * 4 * trained),  # AdamW reads 4 numbers in fp32 and writes 3
    }


def seconds(job: Job, lengths: Sequence[int], peaks: Mapping[str, float]) -> dict[str, float]:
    """Phase -> the least seconds that it needs."""
    return {name: phase.seconds(peaks) for name, phase in work(job, lengths).items()}


def measure(job: Job) -> dict[str, dict[str, float]]:
    """The machine's peaks now: {"wall": {"flops": per second, "bytes": per second}, "cpu": per CPU second}."""
    import torch

    from grpokit.policies.products import linear

    cuda = job.device == "cuda"
    side, count = (8192, 2**28) if cuda else (2048, 2**26)
    dtype = torch.bfloat16 if cuda else torch.float32
    a, b = (torch.randn(side, side, device=job.device, dtype=dtype) for _ in range(2))
    numbers = torch.ones(count, device=job.device)
    gemm, read = 2.0 * side**3, 4.0 * count
    best: dict[str, dict[str, float]] = {"wall": {"flops": 0.0, "bytes": 0.0}, "cpu": {"flops": 0.0, "bytes": 0.0}}
    for _ in range(4):
        for name, amount, call in (
            ("flops", gemm, lambda: a @ b),
            ("flops", gemm, lambda: linear(a, b)),  # a CPU's other library
            ("bytes", read, numbers.sum),
        ):
            for clock, used in _timed(call, cuda=cuda).items():
                best[clock][name] = max(best[clock][name], amount / used)
    return best


def _timed(call: Any, *, cuda: bool) -> dict[str, float]:
    import torch

    if cuda:
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    if cuda:
        torch.cuda.synchronize()
    return {"wall": time.perf_counter() - wall, "cpu": max(1e-9, time.process_time() - cpu)}


def _series(first: int, last: int) -> int:
    """first + (first + 1) + ... + last; 0 if there is none."""
    return (first + last) * (last - first + 1) // 2 if last >= first else 0
