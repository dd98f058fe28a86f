"""The parts of the benchmark, each with one table. A part builds its models one after the other."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from diffusers import GlmImagePipeline

from glm_image_job.job import Job
from glm_image_job.meter import Measured, Meter, bandwidth
from glm_image_job.model import build, bytes_per_token
from glm_image_job.training import QUICK, train
from grpokit import Prompt
from grpokit.errors import plural
from grpokit.sampling import derive_seeds
from grpokit_glm_image.policy import GlmImageAR
from grpokit_plan import Moment

Row = Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a part found.

    Attributes:
        note: how to read it.
        rows: the first is the head.
    """

    note: str
    rows: Sequence[Row]


def memory(job: Job) -> Table:
    """Peak memory of whole training steps: one prompt and all, with gradient checkpointing and without."""
    moments: dict[Moment, Sequence[str]] = {
        "rollout": ["rollout"],
        "decode": ["decode"],
        "score": ["score"],
        "train": ["train", "optimizer"],
    }
    head = ["prompts x group", "checkpointing", "micro-batch", *moments, "whole step", "reserved"]
    rows: list[Row] = [head]
    for checkpointing in (True, False):
        for prompts in job.prompt_counts:
            steps = train(job, prompts=prompts, checkpointing=checkpointing)
            label = [f"{prompts} x {job.group}", "on" if checkpointing else "off"]
            if steps is None:
                rows.append(_filled([*label, "out of memory"], head))
                continue
            parts = steps.plans["quick"].needs.parts
            expected = {
                moment: sum(part.bytes for part in parts if moment in part.moments) / 2**30 for moment in moments
            }
            cells = [_beside(steps.peak(*own), expected[moment]) for moment, own in moments.items()]
            cells.append(_beside(steps.peak(), max(expected.values())))
            rows.append([*label, _micro(steps.micro, job), *cells, f"{steps.reserved:.3g}"])
    note = (
        "GiB at the peak of each phase of a second step, and in brackets what `grpokit plan` expects. LoRA r "
        f"{job.rank}, mixed precision {job.mixed_precision}, offload {job.offload}. `reserved` is what torch's "
        "allocator holds at the end. CUDA's own context comes on top."
    )
    return Table(note=note, rows=rows)


def phases(job: Job) -> Table:
    """Seconds of each phase of a step with all prompts."""
    decodes = {
        "guided": {"steps": job.steps, "guidance": job.guidance},
        "plain": {"steps": job.steps, "guidance": 1.0},
    }
    works = ("score", "train", "optimizer")
    head = ["", "rollout", f"pictures, guidance {job.guidance:g}", "pictures, no guidance", *works, "other"]
    head += ["sum with guidance", "sum without"]
    steps = train(job, prompts=job.prompts, rounds=job.rounds, decodes=decodes)
    if steps is None:
        return Table(note="", rows=[head, _filled(["out of memory"], head)])
    rest = [steps.seconds(phase) for phase in (*works, "other")]
    rows = [head, ["measured", *_seconds(steps.seconds("rollout"), steps.pictures, rest)]]
    expected = {name: plan.seconds() for name, plan in steps.plans.items()}
    if expected["quick"]:  # this card is known
        rest = [expected["quick"][phase] for phase in ("reference", *works[1:])]
        pictures = {name: times["decode"] for name, times in expected.items()}
        rows.append(["plan", *_seconds(expected["quick"]["rollout"], pictures, [*rest, 0.0])])
    note = (
        f"Seconds of a step of {job.prompts} x {job.group} pictures; medians of {plural(job.rounds, 'step')} after "
        f"the first. Micro-batches of {_micro(steps.micro, job)}, gradient checkpointing, LoRA r {job.rank}, mixed "
        f"precision {job.mixed_precision}. `score` is the reference's pass. Pictures take {job.steps} steps of "
        "denoising: one group was decoded, times the number of prompts."
    )
    return Table(note=note, rows=rows)


def tokens(job: Job) -> Table:
    """Tokens per second of decoding, and which share of the memory's speed that is."""
    speed = bandwidth(cuda=not job.tiny)
    read, count, seconds = _drawn(job)
    rows: list[Row] = [["rows", "seconds", "ms per token", "tokens/s", "floor, ms per token", "share of floor"]]
    floor = read / speed
    for drawn, taken in seconds.items():
        step = taken / count
        speeds = [f"{taken:.3g}", f"{1e3 * step:.3g}", f"{drawn / step:,.0f}", f"{1e3 * floor:.3g}"]
        rows.append([str(drawn), *speeds, f"{floor / step:.1%}"])
    note = (
        f"{count:,} tokens a row, medians of {plural(job.rounds, 'rollout')} after the first; merging the adapter, "
        f"reading the prompts and capturing graphs included, pictures not. The floor reads {read / 1e9:.3g} GB of "
        f"weights for each token of all rows together, at the {speed / 1e9:,.0f} GB/s of a copy; keys and values are "
        "not in it."
    )
    return Table(note=note, rows=rows)


def loop(job: Job) -> Table:
    """All samples of a step together, against a loop over the stock pipeline."""
    looped, together = _both_ways(job)
    scale = job.rows / job.loop_samples
    rows: list[Row] = [["", "tokens, s", "pictures, s", "sum, s", "times"]]
    sums = []
    for label, measured, factor in (
        (f"{job.rows} samples together", together, 1.0),
        (f"loop over the stock pipeline, {job.loop_samples} measured, scaled to {job.rows}", looped, scale),
    ):
        written = factor * measured.seconds["rollout"]
        painted = factor * sum(measured.seconds.values()) - written
        sums.append(written + painted)
        rows.append([label, *(f"{x:.3g}" for x in (written, painted, sums[-1])), f"{sums[-1] / sums[0]:.1f}"])
    note = (
        f"Seconds for {job.prompts} prompts with {job.group} samples each; pictures in {job.steps} steps with guidance "
        f"{job.guidance:g}. The stock pipeline samples as the released model does (temperature 0.9, top-p 0.75)."
    )
    return Table(note=note, rows=rows)


def gap(job: Job) -> Table:
    """How far the rollout's log-probs are from those of the training forward pass."""
    steps = train(job, prompts=1, rounds=job.rounds)
    head = ["step", "mean", "signed mean", "largest", "largest ratio"]
    if steps is None:
        return Table(note="", rows=[head, _filled(["out of memory"], head)])
    rows: list[Row] = [head]
    for number, metrics in enumerate(steps.metrics, 1):
        mean, signed, most = (metrics[f"logprob_diff/{name}"] for name in ("mean", "signed_mean", "max"))
        rows.append([str(number), f"{mean:.1e}", f"{signed:+.1e}", f"{most:.1e}", f"{math.exp(most):.3f}"])
    note = (
        f"Differences in nats per token, before a step's update; {job.group} samples. Weights in bfloat16, mixed "
        f"precision {job.mixed_precision}. The adapter is zero in the first step. Rounding depends on the weights, and "
        "these are random."
    )
    return Table(note=note, rows=rows)


PARTS: Mapping[str, Callable[[Job], Table]] = {
    "memory": memory,
    "phases": phases,
    "tokens": tokens,
    "loop": loop,
    "gap": gap,
}


def _drawn(job: Job) -> tuple[int, int, Mapping[int, float]]:
    """Bytes of weights that a token needs, tokens of a row, and rows -> seconds to write their tokens."""
    pipeline, meter = build(job), Meter(cuda=not job.tiny)
    read = bytes_per_token(pipeline.vision_language_encoder)
    policy = _policy(job, pipeline, meter, decode=QUICK)
    seconds: dict[int, list[float]] = defaultdict(list)
    for place in range(job.rounds + 1):
        for prompts in job.prompt_counts:
            taken = _rollout(job, policy, meter, prompts=prompts).seconds["rollout"]
            if place:
                seconds[prompts * job.group].append(taken)
    return read, policy.target.count, {rows: statistics.median(times) for rows, times in seconds.items()}


def _both_ways(job: Job) -> tuple[Measured, Measured]:
    """A loop over the stock pipeline, and then, as the policy changes the model's layers, all samples together."""
    pipeline, meter = build(job), Meter(cuda=not job.tiny)
    looped = _looped(job, pipeline, meter)
    policy = _policy(job, pipeline, meter, decode={"steps": job.steps, "guidance": job.guidance})
    _rollout(job, policy, meter, prompts=1)
    return looped, _rollout(job, policy, meter, prompts=job.prompts)


def _looped(job: Job, pipeline: GlmImagePipeline, meter: Meter) -> Measured:
    """Samples one by one, as the stock pipeline draws them."""
    pipeline.set_progress_bar_config(disable=True)
    pipeline("a first picture", height=64, width=64, num_inference_steps=1)  # lets libraries set themselves up
    writer, (height, width) = pipeline.vision_language_encoder, job.pixels
    meter.watch(writer, "generate", "rollout")
    meter.start()
    for text in job.texts(job.loop_samples):
        pipeline(text, height=height, width=width, num_inference_steps=job.steps, guidance_scale=job.guidance)
    measured = meter.stop()
    del writer.generate  # the one that measures
    return measured


def _policy(job: Job, pipeline: GlmImagePipeline, meter: Meter, *, decode: Mapping[str, float]) -> GlmImageAR:
    lora = {"r": job.rank, "alpha": 2 * job.rank}
    policy = GlmImageAR(pipeline, size=job.pixels, lora=lora, decode=decode, offload=job.offload)
    meter.watch_policy(policy)
    return policy


def _rollout(job: Job, policy: GlmImageAR, meter: Meter, *, prompts: int) -> Measured:
    """Tokens and pictures of whole groups, as a trainer draws them."""
    seeds = derive_seeds(0, stream="train", step=0, prompts=prompts, group_size=job.group)
    asked = [Prompt(text=text) for text in job.texts(prompts)]
    autocast = torch.autocast(job.device, torch.bfloat16, enabled=job.mixed_precision == "bf16")
    meter.start()
    with policy.during("rollout"), torch.no_grad(), autocast:
        policy.rollout(asked, job.group, seeds=seeds)
    return meter.stop()


def _micro(rows: int, job: Job) -> str:
    return str(rows) if rows == job.micro else f"{rows} ({job.micro} did not fit)"


def _beside(measured: float, expected: float) -> str:
    """A measurement, and what was expected in its place."""
    return f"{measured:.3g} ({expected:.3g})"


def _seconds(rollout: float, pictures: Mapping[str, float], rest: Sequence[float]) -> list[str]:
    """Cells: the phases, and their sums with and without guidance."""
    base = rollout + sum(rest)
    sums = [base + pictures[name] for name in ("guided", "plain")]
    return [f"{x:.3g}" for x in (rollout, pictures["guided"], pictures["plain"], *rest, *sums)]


def _filled(cells: Iterable[str], head: Row) -> Row:
    """A row that ends early, as long as the head."""
    given = list(cells)
    return [*given, *[""] * (len(head) - len(given))]
