"""The passes without gradient between a rollout and the first update: old log-probs, the reference's, entropies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from grpokit.errors import UsageError
from grpokit.objectives import Objective
from grpokit.processes.fsdp2 import any_shards
from grpokit.processes.team import Team
from grpokit.settings import Correction, TrainerSettings
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.metrics import StepLog
from grpokit.training.minibatches import FixedLogprobs
from grpokit.training.modifier import Modifiers
from grpokit.training.out_of_memory import Sizes, explain_memory
from grpokit.training.reference_probe import ReferenceProbe
from grpokit.training.rollouts import Draw
from grpokit.types import Ask, Decisions, Rollout

_KEPT_BYTES = 2**30  # of the reference's means, in fp32 on the device


def fixed_logprobs(
    draw: Draw,
    *,
    policy: CheckedPolicy,
    objective: Objective,
    settings: TrainerSettings,
    modifiers: Modifiers,
    probe: ReferenceProbe,
    sizes: Sizes,
    team: Team,
    log: StepLog,
) -> FixedLogprobs:
    """Score what the updates need of a rollout, in the micro-batches of training.

    The old log-probs are the rollout's if its sampler computes as the training forward pass does, with these weights,
    and has stored all that the objective reads of them; or if an average of the weights drew it. Else they are computed
    by that pass, which with a single update happens in any case.
    """
    rollout = draw.rollout
    means = objective.needs_old_moments and rollout.action_dims > 1
    exact = rollout.exact and rollout.version == policy.version and not policy.low_precision
    exact = rollout.averaged or (exact and not (means and rollout.old.mean is None))
    needs_old = not exact and (
        settings.updates_per_step > 1 or _weighs_sliced_sequences(rollout, policy, settings.correction, team)
    )
    needs_reference = modifiers.need_reference or (
        objective.needs_reference and _reference_scored_once(rollout, objective, settings, team)
    )
    needs_probe = (modifiers.need_reference or objective.needs_reference) and probe.wanted
    old, reference, entropy = rollout.old if exact else None, None, None
    if needs_old or needs_reference or needs_probe or modifiers.need_entropy:
        score = partial(_score, rollout, policy, sizes, log)
        with log.time("logprobs"), policy.during("score"):
            if needs_old:
                wants_entropy = modifiers.need_entropy and rollout.old.entropy is None
                old = score(Ask(entropy="value" if wants_entropy else "no", moments=means))
            if needs_reference:
                asked = Ask(
                    entropy="no",
                    moments=objective.needs_reference_moments,
                    distribution=objective.compares_distributions,
                )
                reference = score(asked, policy.reference)
            if needs_probe:
                with explain_memory("scoring a sample with the reference", remedies="mixed_precision: bf16, LoRA"):
                    probe.take(rollout, draw.local_prompts, team)
            if modifiers.need_entropy:
                entropy = _entropy(rollout, old if needs_old else None, score)
        old = old and replace(old, entropy=None)
    return FixedLogprobs(old=old, reference=reference, entropy=entropy)


def _score(
    rollout: Rollout,
    policy: CheckedPolicy,
    sizes: Sizes,
    log: StepLog,
    ask: Ask,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Decisions:
    return sizes.score(
        lambda limit: policy.all_logprobs(rollout, limit, context, ask=ask),
        partial(policy.cuts, rollout),
        log.warn,
    )


def _entropy(rollout: Rollout, old: Decisions | None, score: Callable[[Ask], Decisions]) -> Tensor:
    """[B, T] the entropy of each decision's distribution: the sampler's, or that of a pass."""
    if rollout.old.entropy is not None:
        return rollout.old.entropy
    entropy = (old or score(Ask(entropy="value"))).entropy
    if entropy is not None:
        return entropy
    if not rollout.host_mask.any():  # nothing was scored
        return rollout.old.logprobs
    raise UsageError(
        "A modifier needs the entropy of each decision, but this policy's logprobs() gives none. Leave the modifier "
        "out, or let logprobs() return Decisions with entropy [b, t]."
    )


def _weighs_sliced_sequences(
    rollout: Rollout, policy: CheckedPolicy, correction: Correction | None, team: Team
) -> bool:
    """Whether the correction needs all decisions of a row, which is scored slice by slice."""
    if correction is None or correction.per != "sequence":
        return False
    is_sliced = len(policy.slices(rollout)) > 1
    return any(team.gather(is_sliced))


def _reference_scored_once(rollout: Rollout, objective: Objective, settings: TrainerSettings, team: Team) -> bool:
    """Whether the reference is scored once for a rollout; if not, beside each slice.

    Means are as large as latents, so they are kept only where several passes read them, and within a bound; and always
    where a second copy as reference finds its base gathered in this pass alone, or where a loss is of whole groups or
    compares distributions. Tokens have no means.
    """
    tokens = rollout.action_dims == 1
    kept = objective.whole_groups or objective.compares_distributions
    if not objective.needs_reference_moments or tokens or kept or any_shards():
        return True
    size = 4 * rollout.mask.numel() * rollout.action_dims
    fits = all(team.gather(size <= _KEPT_BYTES))
    return settings.updates_per_rollout > 1 and fits
