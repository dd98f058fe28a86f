"""Whole training steps of GLM-Image, measured phase by phase."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glm_image_job.job import Job
from glm_image_job.meter import Measured, Meter
from glm_image_job.model import build
from glm_image_job.planned import planned
from grpokit import RunError, Sample, StepReport, Trainer
from grpokit.objectives import GRPO
from grpokit.sampling import derive_seeds
from grpokit_glm_image.decoder import DecodeSettings
from grpokit_glm_image.policy import GlmImageAR
from grpokit_plan.estimate import Estimate

QUICK = {"steps": 1, "guidance": 1.0}
"""For pictures whose time is not asked for. They take as much memory as with more steps."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What training steps took.

    Attributes:
        counted: the steps after the first one.
        micro: rows of a micro-batch; fewer than wanted where memory forced that.
        metrics: the trainer's, of each step from the first one on.
        pictures: name -> seconds to decode all pictures of a step with these settings.
        plans: name -> what was expected of a step with these settings.
    """

    counted: Sequence[Measured]
    micro: int
    metrics: Sequence[Mapping[str, float]]
    pictures: Mapping[str, float]
    plans: Mapping[str, Estimate]

    def seconds(self, phase: str) -> float:
        """The median of a phase's seconds."""
        return statistics.median(step.seconds.get(phase, 0.0) for step in self.counted)

    def peak(self, *phases: str) -> float:
        """GiB at the peak of some phases, or of all."""
        return max(step.peaks.get(phase, 0.0) for step in self.counted for phase in phases or step.peaks)

    @property
    def reserved(self) -> float:
        """GiB that torch's allocator holds in the end."""
        return max(step.reserved for step in self.counted)


def train(
    job: Job,
    *,
    prompts: int,
    checkpointing: bool = True,
    rounds: int = 1,
    decodes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Steps | None:
    """Take some steps with a new model, which is gone afterwards; None where memory ran out.

    Args:
        job: the sizes.
        prompts: per step.
        checkpointing: of gradients.
        rounds: steps after the first one.
        decodes: name -> settings with which pictures are decoded, too.
    """
    try:
        return _train(job, prompts, checkpointing, rounds, {"quick": QUICK, **(decodes or {})})
    except torch.OutOfMemoryError:
        return None
    except RunError as error:
        if not str(error).startswith("Out of memory"):
            raise
        return None


def _train(job: Job, prompts: int, checkpointing: bool, rounds: int, decodes: Mapping[str, Mapping[str, Any]]) -> Steps:
    meter = Meter(cuda=not job.tiny)
    options: dict[str, Any] = {
        "size": job.pixels,
        "lora": {"r": job.rank, "alpha": 2 * job.rank},
        "gradient_checkpointing": checkpointing,
        "offload": job.offload,
    }
    policy = GlmImageAR(build(job), decode=QUICK, **options)
    meter.watch_policy(policy)
    trainer = Trainer(
        policy,
        [every_other],
        job.texts(prompts),
        objective=GRPO(kl_coef=0.01),
        prompts_per_step=prompts,
        group_size=job.group,
        micro_batch_size=job.micro,
        learning_rate=1e-4,
        mixed_precision=job.mixed_precision,
        device=job.device,
        max_logprob_diff=1e6,  # the gap is measured, and random weights need not keep within the usual limit
        progress=False,
    )
    meter.watch(trainer.updates, "make", "optimizer")
    reports, counted = [trainer.step()], []
    for _ in range(rounds):
        meter.start()
        reports.append(trainer.step())
        counted.append(meter.stop())

    pictures = {}
    for name, decode in decodes.items():
        meter.start()
        _decode(policy, reports[-1], job, decode)
        pictures[name] = prompts * meter.stop().seconds["decode"]  # they are decoded prompt by prompt
    tokens = len(policy.encoder.encode(trainer.train_prompts[0]).tokens)
    plans = {
        name: planned(trainer, tiny=job.tiny, prompt_tokens=tokens, decode=decode, **options)
        for name, decode in decodes.items()
    }
    trainer.close()
    return Steps(
        counted=counted,
        micro=trainer.sizes.micro_batch_size,
        metrics=[report.metrics for report in reports],
        pictures=pictures,
        plans=plans,
    )


def _decode(policy: GlmImageAR, report: StepReport, job: Job, decode: Mapping[str, Any]) -> None:
    """Make the pictures of a step's first group once more."""
    prompt, tokens = report.rollout.samples[0].prompt, report.rollout.trace.per_row["tokens"][: job.group]
    seeds = derive_seeds(0, stream="sample", step=0, prompts=1, group_size=job.group)
    settings = DecodeSettings.read(decode, key="decode")
    policy.loaded.turns.let_paint()
    policy.decoder.pictures(tokens, [prompt], seeds=seeds, settings=settings, target=policy.target)


def every_other(samples: Sequence[Sample]) -> list[float]:
    """A reward that any model has something to learn from."""
    return [float(place % 2) for place in range(len(samples))]
