"""A run without its training: everything that the config names is built, and one group is drawn and scored.

It finds what would stop a run in its first minutes, and shows what a reward makes of real samples. Nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence, check_prompts
from grpokit.errors import counted, shown
from grpokit.evaluation.held_out import draw
from grpokit.guards.hacking import too_seldom
from grpokit.rewards.scoring import score
from grpokit.runs import before_training, build, build_rewards, resuming, tracking
from grpokit.sampling import prompt_indices
from grpokit.tracking.progress import score_text
from grpokit.trainer import Trainer
from grpokit.types import Sample

_PROMPTS = 4  # shown of the first step
_SAMPLES = 8  # shown of the group


def dry_run(config: RunConfig, *, name: str = "run") -> Iterator[str]:
    """Build everything, draw and score one group; yields lines about it as they come.

    Args:
        config: the run.
        name: names the folder where the config does not.

    Raises:
        UsageError: bad input, as for a run.
        RewardError, RunError: a reward or the policy failed.
    """
    tracking.require(config.trackers.use)
    prompts, held_out = build.prompts(config)
    warnings = before_training.unscorable_prompts(config, prompts, held_out)
    build.check_prompts(config, prompts, held_out)
    with build_rewards.all_rewards(config) as (terms, own_terms):
        before_training.check_scores(config, terms, held_out)
        policies = build.policies(config)
        if held_out is not None:
            check_prompts(build.drawing(policies), held_out)
        folder = Path(config.run.dir or Path("runs") / name)
        trainer = build.trainer(config, policies, terms, prompts, own_rewards=own_terms)
        yield f"policy: {config.policy.use} on {next(iter(trainer.phases.values())).trainer.torch_device}"
        held = counted(len(held_out), "held-out prompt") if held_out is not None else "no held-out prompts"
        yield f"prompts: {len(prompts):,} for training, {held}"
        yield f"folder: {folder}{', which exists already' if folder.exists() else ''}"
        yield trainer.describe()
        digests = resuming.digests(prompts, held_out)
        warnings += before_training.trained_held_out_prompts(prompts, held_out, digests)
        for phase in trainer.phases.values():
            warnings += before_training.repeated_prompts(phase.trainer)
            warnings += too_seldom(phase.trainer.terms, phase.trainer.steps)
        yield from (f"warning: {line}" for line in dict.fromkeys(warnings))
        for phase in trainer.phases.values():
            yield ""
            yield from _group(phase.trainer, prompts, f" of phase '{phase.name}'" if phase.name else "")


def _group(trainer: Trainer, prompts: PromptSequence, where: str) -> Iterator[str]:
    """The prompts of a trainer's first step, and a group of samples for the first of them with its scores."""
    first = prompt_indices(trainer.seed, 0, per_step=trainer.prompts_per_step, total=len(prompts))
    yield f"prompts of step 1{where}:"
    yield from (f"  {shown(prompts.parts(i)[0][0], most=100)}" for i in first[:_PROMPTS])
    if len(first) > _PROMPTS:
        yield f"  and {len(first) - _PROMPTS:,} more"
    samples = draw(
        trainer.policy,
        [prompts[first[0]]],
        seed=trainer.seed,
        samples_per_prompt=trainer.group_size,
        batch_size=trainer.rollout_batch_size or trainer.group_size,
        evaluate=False,
        stream="sample",
        mixed_precision=trainer.mixed_precision,
    )
    scores = score(trainer.terms, samples)
    yield f"a group of {counted(len(samples), 'sample')} for the first prompt, with the settings of training:"
    columns = {**dict(zip(scores.names, scores.matrix.T.tolist(), strict=True)), "reward": scores.totals.tolist()}
    for i, sample in enumerate(samples[:_SAMPLES]):
        numbers = "  ".join(f"{name} {score_text(column[i])}" for name, column in columns.items())
        yield f"  {i + 1}  {numbers}{_output(sample)}"
    if len(samples) > _SAMPLES:
        yield f"  and {len(samples) - _SAMPLES:,} more"
    for name, column in columns.items():
        known = [x for x in column if not math.isnan(x)]
        if not known:
            yield f"  {name}: no sample was scored"
        else:
            mean = math.fsum(known) / len(known)
            std = math.sqrt(math.fsum((x - mean) ** 2 for x in known) / len(known))
            useless = ": the group would teach nothing" if name == "reward" and not std else ""
            yield f"  {name}: mean {mean:.3f}, std {std:.3f}{useless}"
    yield from (f"warning: {line}" for line in scores.notes)


def _output(sample: Sample) -> str:
    """What was drawn, where it is a text."""
    return f"  {shown(sample.output, most=100)}" if isinstance(sample.output, str) else ""
