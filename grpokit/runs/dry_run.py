"""A run without its training: everything that the config names is built, and one group is drawn and scored.

It finds what would stop a run in its first minutes, and shows what a reward makes of real samples. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence, check_pictures, check_prompts
from grpokit.errors import brief, plural
from grpokit.evaluation.held_out import draw
from grpokit.guards.hacking import too_seldom
from grpokit.rewards.scoring import score_samples
from grpokit.runs import build, build_rewards, preflight, resuming
from grpokit.sampling import prompt_indices
from grpokit.tracking.progress import score_text
from grpokit.trainer import Trainer

_SHOWN = 8  # samples of the group


def dry_run(config: RunConfig, *, name: str = "run") -> Iterator[str]:
    """Build everything, draw and score one group; yields lines about it as they come.

    Args:
        config: the run.
        name: names the folder where the config does not.

    Raises:
        UsageError: bad input, as for a run.
        RewardError, RunError: a reward or the policy failed.
    """
    prompts, held_out, warnings = preflight.check_run(config)
    check_pictures(prompts, held_out)
    with build_rewards.all_rewards(config) as (terms, own_terms):
        policies = build.policies(config)
        if held_out is not None:
            check_prompts(build.evaluation_policy(policies), held_out)
        folder = Path(config.run.dir or Path("runs") / name)
        trainer = build.trainer(config, policies, terms, prompts, own_rewards=own_terms)
        phases = [phase.trainer for phase in trainer.phases.values()]
        yield f"policy: {config.policy.use} on {phases[0].torch_device}"
        held = plural(len(held_out), "held-out prompt") if held_out is not None else "no held-out prompts"
        yield f"prompts: {len(prompts):,} for training, {held}"
        yield f"folder: {folder}{', which exists already' if folder.exists() else ''}"
        yield trainer.describe()
        digests = resuming.prompt_digests(prompts, held_out)
        warnings += preflight.trained_held_out_prompts(prompts, held_out, digests)
        warnings += [line for own in phases for line in too_seldom(own.terms, own.steps)]
        yield from (f"warning: {line}" for line in dict.fromkeys(warnings))
        for phase, own in zip(trainer.phases, phases, strict=True):
            yield from _group(own, prompts, f" of phase '{phase}'" if phase else "")


def _group(trainer: Trainer, prompts: PromptSequence, where: str) -> Iterator[str]:
    """A group of samples for the first prompt of a trainer's first step, with its scores."""
    first, *_ = prompt_indices(trainer.seed, 0, per_step=trainer.prompts_per_step, total=len(prompts))
    samples = draw(
        trainer.policy,
        [prompts[first]],
        seed=trainer.seed,
        samples_per_prompt=trainer.group_size,
        batch_size=trainer.rollout_batch_size or trainer.group_size,
        evaluate=False,
        stream="sample",
        mixed_precision=trainer.mixed_precision,
    )
    scores = score_samples(trainer.terms, samples)
    yield f"\n{plural(len(samples), 'sample')} for the first prompt of step 1{where}, with the settings of training:"
    yield f"  {brief(samples[0].prompt.text, most=100)}"
    columns = dict(zip(scores.names, scores.matrix.T, strict=True))
    if scores.trained.names:
        columns["reward"] = scores.totals
    for i, sample in enumerate(samples[:_SHOWN]):
        numbers = "  ".join(f"{name} {score_text(float(column[i]))}" for name, column in columns.items())
        text = f"  {brief(sample.output, most=100)}" if isinstance(sample.output, str) else ""
        yield f"  {i + 1}  {numbers}{text}"
    for name, column in columns.items():
        finite = column[~column.isnan()]
        if not len(finite):
            yield f"  {name}: scored no sample"
            continue
        std = finite.std(correction=0)
        hint = ": equal rewards teach nothing" if name == "reward" and not std else ""
        yield f"  {name}: mean {finite.mean():.3f}, std {std:.3f}{hint}"
    yield from (f"warning: {line}" for line in scores.notes)
