"""The least time that a machine needs for a job: FLOPs and bytes of each phase over its measured peaks.

The work counted is the least that each phase needs for its result: every prompt once per group, in generation and in
scoring; of a prompt's last layer only what completions look at; no pass for old log-probs; nothing recomputed. What
lies between matrix products (activations, losses, drawing) counts as nothing. The training pass is counted whole,
although decoding has computed the same hidden states. Nothing here imports torch, except to measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lm_job.job import Job

SPANS = {"cpu": (8, 16, 24, 32, 48, 64, 96, 128, 192, 256), "cuda": (1024,)}
"""MiB. What is read over and over comes in part from a CPU's cache, so each amount has a speed of its own."""

Peaks = Mapping[str, float]
"""What a machine does in a second: "flops", and for each of `SPANS`, as text, the bytes that it reads."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a phase must do.

    Attributes:
        flops: floating-point operations.
        bytes: to read or write.
        passes: in how many equal shares the bytes are touched, each share about the same memory.
    """

    flops: float
    bytes: float
    passes: int = 1

    def seconds(self, peaks: Peaks) -> float:
        """The least time: for the operations or for the bytes, whichever takes longer."""
        share = self.bytes / self.passes / 2**20
        spans = sorted(int(name) for name in peaks if name != "flops")
        span = max((span for span in spans if span <= share), default=spans[0])
        reading = max(peaks[str(larger)] for larger in spans if larger >= span)  # less memory is never slower
        return max(self.flops / peaks["flops"], self.bytes / reading)


def work(job: Job, lengths: Sequence[int]) -> dict[str, Work]:
    """Phase -> its work, for rows of these numbers of new tokens; the rows of a group follow each other."""
    size = 2 if job.device == "cuda" else 4  # bytes of a weight or an activation in a GEMM
    queries, keys, mlp = (job.hidden, job.hidden), (job.hidden, job.key_width), (job.hidden, job.mlp)
    kept, linears = [keys, keys], [queries, keys, keys, queries, mlp, mlp, mlp]  # what the cache keeps; a layer's
    layer, head = _weights(linears), job.hidden * job.vocab
    block = job.layers * layer
    adapter = job.layers * job.lora * _widths(linears)
    norms = job.hidden * (2 * job.layers + 1)
    trained = adapter or block + 2 * head + norms

    prompts, asked, drawn = job.prompts, job.prompt_tokens, sum(lengths)
    fed = drawn - len(lengths)  # a row's last token is drawn, and never read
    longest = [max(lengths[first : first + job.group]) for first in range(0, len(lengths), job.group)]  # per group

    # In the last layer, all tokens of a prompt but its last one give keys and values, and nothing else.
    halves = prompts * (asked - 1)
    wholes = prompts * asked * job.layers - halves
    prompt = 2.0 * (layer * wholes + _weights(kept) * halves)
    answers = 2.0 * (block * fed + head * drawn)
    look = 4 * job.hidden  # FLOPs of a query for each token that it looks at
    prompt_looks = look * prompts * ((job.layers - 1) * _series(1, asked) + asked)
    own = sum(_series(1, length - 1) for length in lengths)  # looks at tokens of the same row
    looks = look * job.layers * (fed * asked + own)
    scoring = prompt + prompt_looks + answers + looks

    weights = size * (block + head)
    column = size * 2 * job.key_width * job.layers  # bytes of a token in the cache
    # A step reads the prompt of each group once, and each row's own columns, the newest of which it writes.
    cache = column * (asked * sum(length - 1 for length in longest) + own)
    steps = max(lengths)  # the first one draws from what prefill gives, and needs the head only
    micro_batches = job.rows // job.micro
    if job.lora:  # no gradients of the base's weights, nor of what enters the first layer; passes with merged weights
        entering = 2.0 * _weights([queries, keys, keys]) * (prompts * asked + fed)
        products = 4.0 * job.lora * (_widths(linears) * (wholes + job.layers * fed) + _widths(kept) * halves)
        train = 2 * (prompt + answers) - entering + 3 * (prompt_looks + looks) + products
    else:
        train = 3 * scoring
    touched = micro_batches * (2 if job.lora else 3)  # weights are read forwards and backwards, gradients are written
    return {
        "prefill": Work(flops=prompt + prompt_looks, bytes=size * block + column * prompts * asked),
        "decode": Work(flops=answers + looks, bytes=size * (block * (steps - 1) + head * steps) + cache, passes=steps),
        "reference": Work(flops=scoring, bytes=weights * micro_batches, passes=micro_batches),
        "train": Work(flops=train, bytes=weights * touched, passes=touched),
        "optimizer": Work(flops=0.0, bytes=7.0 * 4 * trained, passes=2),  # AdamW reads 4 numbers, writes 3 of them
    }


def seconds(job: Job, lengths: Sequence[int], peaks: Peaks) -> dict[str, float]:
    """Phase -> the least seconds that it needs."""
    return {name: phase.seconds(peaks) for name, phase in work(job, lengths).items()}


def best(measurements: Iterable[Peaks]) -> Peaks:
    """The highest of each peak, over several measurements on a machine."""
    each = list(measurements)
    return {name: max(peaks[name] for peaks in each) for name in each[0]}


def measure(job: Job) -> dict[str, dict[str, float]]:
    """The machine's peaks now: "wall" per second, and "cpu" per second of CPU time."""
    import torch

    from grpokit_hf.cpu.products import linear

    cuda = job.device == "cuda"
    side = 8192 if cuda else 2048
    dtype = torch.bfloat16 if cuda else torch.float32
    a, b = (torch.randn(side, side, device=job.device, dtype=dtype) for _ in range(2))
    numbers = torch.ones(max(SPANS[job.device]) * 2**18, device=job.device)  # of 4 bytes
    repeats = 256 if cuda else 4  # a GPU raises its clock only after a while
    calls: list[tuple[str, float, int, Callable[[], Any]]] = [
        ("flops", 2.0 * side**3, repeats, lambda: a @ b),
        ("flops", 2.0 * side**3, repeats, lambda: linear(a, b)),  # a CPU's other library
    ]
    for span in SPANS[job.device]:  # as much in all for each, so that none is short beside a neighbour's time slice
        times = repeats * max(SPANS[job.device]) // span
        calls.append((str(span), span * 2.0**20, times, numbers[: span * 2**18].sum))
    highest: dict[str, dict[str, float]] = {"wall": {}, "cpu": {}}
    for name, amount, times, call in calls:
        for _ in range(times):
            for clock, used in _timed(call, cuda=cuda).items():
                highest[clock][name] = max(highest[clock].get(name, 0.0), amount / used)
    return highest


def _timed(call: Callable[[], Any], *, cuda: bool) -> dict[str, float]:
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


def _weights(linears: Iterable[tuple[int, int]]) -> int:
    """How many weights some linear layers have."""
    return sum(a * b for a, b in linears)


def _widths(linears: Iterable[tuple[int, int]]) -> int:
    """How many weights an adapter of rank 1 on them has."""
    return sum(a + b for a, b in linears)
