"""The passes without gradient between a rollout and the first update: old log-probs, the reference's, entropies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from grpokit.knobs import TrainerSettings
from grpokit.processes.sharded import any_shards
from grpokit.processes.team import Team
from grpokit.training.backward import Backward
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.entropy_filter import rollout_entropy
from grpokit.training.out_of_memory import explained, shrinking_micro_batches
from grpokit.training.reference_probe import ReferenceProbe
from grpokit.types import Ask, Decisions, Rollout

_KEPT_BYTES = 2**30  # of the reference's means, in fp32 on the device


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What the updates of a step are measured against.

    Attributes:
        old: the old log-probs; None: the first pass's own values, detached.
        reference: the reference's; None: not needed, or scored in each update.
        entropy: [B, T] that the entropy filter compares; None without it.
    """

    old: Decisions | None
    reference: Decisions | None = None
    entropy: Tensor | None = None


class ScoringPasses:
    """Scores a rollout without gradient, in the micro-batches of training.

    Args:
        settings: of the trainer; the bounds of micro-batches are reduced there if memory runs out.
        policy: scores.
        backward: knows what the objective and the correction need.
        probe: takes the reference's log-probs for a row of the first step.
        team: the processes, of which one has that row.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        policy: CheckedPolicy,
        backward: Backward,
        probe: ReferenceProbe,
        team: Team,
    ) -> None:
        self.settings, self.policy, self.backward, self.probe, self.team = settings, policy, backward, probe, team

    def __call__(self, rollout: Rollout, prompts: Sequence[int], *, version: int, warnings: list[str]) -> Scored:
        """Score what the updates need.

        The old log-probs are the rollout's if its sampler computes as the training forward pass does, with these
        weights, and has stored all that the objective reads of them. Else they are computed by that pass, which with a
        single update happens in any case.

        Args:
            rollout: of the step.
            prompts: index of each group's prompt in the training prompts, of this process's groups.
            version: optimizer steps so far.
            warnings: gets a message if memory ran out.
        """
        objective = self.backward.objective
        same = rollout.exact and rollout.version == version and not self.policy.low_precision
        same = same and not (objective.needs_old_moments and rollout.old.mean is None)
        rescored = not same and (self.settings.updates_per_step > 1 or self.backward.needs_old(rollout, self.team))
        referred = objective.needs_reference and self._kept(rollout)
        probed = objective.needs_reference and self.probe.wanted
        filtered = self.settings.top_entropy_quantile < 1
        old, reference, entropy = rollout.old if same else None, None, None
        if not (rescored or referred or probed or filtered):
            return Scored(old=old)
        with self.policy.during("score"):
            if rescored:
                ask = Ask(
                    entropy="value" if filtered and rollout.old.entropy is None else "no",
                    moments=objective.needs_old_moments,
                )
                old = self._all(rollout, warnings, ask)
            if referred:
                ask = Ask(entropy="no", moments=objective.needs_reference_moments)
                reference = self._all(rollout, warnings, ask, self.policy.reference)
            if probed:
                with explained("scoring a sample with the reference", remedies="mixed_precision: bf16, LoRA"):
                    self.probe.take(rollout, prompts, self.team)
            if filtered:
                own = old if rescored else None  # which that pass has given with the entropy
                entropy = rollout_entropy(rollout, lambda: own or self._all(rollout, warnings, Ask(entropy="value")))
        return Scored(old=old and replace(old, entropy=None), reference=reference, entropy=entropy)

    def _kept(self, rollout: Rollout) -> bool:
        """Whether the reference is scored once for a rollout; if not, beside each slice.

        Means are as large as latents, so they are kept only where several passes read them, and within a bound; and
        always where a second copy as reference finds its base gathered in this pass alone.
        """
        if not self.backward.objective.needs_reference_moments or any_shards():
            return True
        size = 4 * rollout.mask.numel() * rollout.action_dims
        fits = all(self.team.gather(size <= _KEPT_BYTES))
        return self.settings.updates_per_rollout > 1 and fits

    def _all(
        self,
        rollout: Rollout,
        warnings: list[str],
        ask: Ask,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Decisions:
        return shrinking_micro_batches(
            lambda limit: self.policy.all_logprobs(rollout, limit, context, ask=ask),
            self.settings,
            partial(self.policy.cuts, rollout),
            warnings=warnings,
        )
