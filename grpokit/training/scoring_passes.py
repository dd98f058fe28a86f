"""The passes without gradient between a rollout and the first update: old log-probs, the reference's, entropies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from grpokit.knobs import Correction, TrainerSettings
from grpokit.objectives import Objective
from grpokit.processes.sharded import any_shards
from grpokit.processes.team import Team
from grpokit.training.batch import Batch
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.entropy_filter import rollout_entropy
from grpokit.training.memory import Sizes, explained
from grpokit.training.metrics import Notes
from grpokit.training.passes import all_logprobs
from grpokit.training.reference_probe import ReferenceProbe
from grpokit.types import Ask, Decisions, Rollout

_KEPT_BYTES = 2**30  # of the reference's means, in fp32 on the device


class ScoringPasses:
    """Scores a rollout without gradient, in the micro-batches of training.

    Args:
        settings: of the trainer.
        policy: scores.
        objective: what the updates minimise.
        correction: importance weights where the sampler was another one, or None.
        sizes: of micro-batches.
        probe: takes the reference's log-probs for a row of the first step.
        team: the processes, of which one has that row.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        policy: CheckedPolicy,
        objective: Objective,
        correction: Correction | None,
        sizes: Sizes,
        probe: ReferenceProbe,
        team: Team,
    ) -> None:
        self.settings, self.policy, self.objective, self.correction = settings, policy, objective, correction
        self.sizes, self.probe, self.team = sizes, probe, team

    def __call__(self, rollout: Rollout, prompts: Sequence[int], *, version: int, notes: Notes) -> Batch:
        """Score what the updates need: old log-probs, the reference's, entropies.

        The old log-probs are the rollout's if its sampler computes as the training forward pass does, with these
        weights, and has stored all that the objective reads of them. Else they are computed by that pass, which with a
        single update happens in any case.

        Args:
            rollout: of the step.
            prompts: index of each group's prompt in the training prompts, of this process's groups.
            version: optimizer steps so far.
            notes: of the step.
        """
        objective = self.objective
        same = rollout.exact and rollout.version == version and not self.policy.low_precision
        same = same and not (objective.needs_old_moments and rollout.old.mean is None)
        rescored = not same and (self.settings.updates_per_step > 1 or self._needs_old(rollout))
        referred = objective.needs_reference and self._kept(rollout)
        probed = objective.needs_reference and self.probe.wanted
        filtered = self.settings.top_entropy_quantile < 1
        old, reference, entropy = rollout.old if same else None, None, None
        if not (rescored or referred or probed or filtered):
            return replace(Batch.of(rollout), old=old)
        with notes.time("logprobs"), self.policy.during("score"):
            if rescored:
                ask = Ask(
                    entropy="value" if filtered and rollout.old.entropy is None else "no",
                    moments=objective.needs_old_moments,
                )
                old = self._all(rollout, notes, ask)
            if referred:
                ask = Ask(entropy="no", moments=objective.needs_reference_moments)
                reference = self._all(rollout, notes, ask, self.policy.reference)
            if probed:
                with explained("scoring a sample with the reference", remedies="mixed_precision: bf16, LoRA"):
                    self.probe.take(rollout, prompts, self.team)
            if filtered:
                own = old if rescored else None  # which that pass has given with the entropy
                entropy = rollout_entropy(rollout, lambda: own or self._all(rollout, notes, Ask(entropy="value")))
        return replace(Batch.of(rollout), old=old and replace(old, entropy=None), reference=reference, entropy=entropy)

    def _needs_old(self, rollout: Rollout) -> bool:
        """Whether the first update needs the old log-probs: weights of sequences that are scored slice by slice do."""
        by_sequence = self.correction is not None and self.correction.per == "sequence"
        return by_sequence and any(self.team.gather(len(self.policy.slices(rollout)) > 1))

    def _kept(self, rollout: Rollout) -> bool:
        """Whether the reference is scored once for a rollout; if not, beside each slice.

        Means are as large as latents, so they are kept only where several passes read them, and within a bound; and
        always where a second copy as reference finds its base gathered in this pass alone.
        """
        if not self.objective.needs_reference_moments or any_shards():
            return True
        size = 4 * rollout.mask.numel() * rollout.action_dims
        fits = all(self.team.gather(size <= _KEPT_BYTES))
        return self.settings.updates_per_rollout > 1 and fits

    def _all(
        self,
        rollout: Rollout,
        notes: Notes,
        ask: Ask,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Decisions:
        return self.sizes.score(
            lambda limit: all_logprobs(self.policy, rollout, limit, context, ask=ask),
            partial(self.policy.cuts, rollout),
            notes.warn,
        )
