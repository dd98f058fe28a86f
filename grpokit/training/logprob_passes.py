"""The passes without gradient between a rollout and the first update: old log-probs, the reference's, entropies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from grpokit.errors import UsageError
from grpokit.objectives import Objective
from grpokit.processes.fsdp2 import any_shards
from grpokit.processes.team import Team
from grpokit.settings import Correction, TrainerSettings
from grpokit.training.batch import Batch
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.memory import Sizes, explained
from grpokit.training.metrics import Notes
from grpokit.training.modifier import Modifiers
from grpokit.training.passes import all_logprobs
from grpokit.training.reference_probe import ReferenceProbe
from grpokit.types import Ask, Decisions, Rollout

_KEPT_BYTES = 2**30  # of the reference's means, in fp32 on the device


@dataclass(eq=False, kw_only=True)
class LogprobPasses:
    """Scores a rollout without gradient, in the micro-batches of training."""

    settings: TrainerSettings
    policy: CheckedPolicy
    objective: Objective
    correction: Correction | None
    sizes: Sizes
    modifiers: Modifiers
    probe: ReferenceProbe
    team: Team

    def __call__(self, rollout: Rollout, prompts: Sequence[int], *, version: int, notes: Notes) -> Batch:
        """Score what the updates need: old log-probs, the reference's, entropies.

        The old log-probs are the rollout's if its sampler computes as the training forward pass does, with these
        weights, and has stored all that the objective reads of them. Else they are computed by that pass, which with a
        single update happens in any case. `prompts` are those of this process's groups, by their numbers.
        """
        objective = self.objective
        exact = rollout.exact and rollout.version == version and not self.policy.low_precision
        means = objective.needs_old_moments and rollout.action_dims > 1
        exact = exact and not (means and rollout.old.mean is None)
        needs_old = not exact and (self.settings.updates_per_step > 1 or self._weighs_sliced_sequences(rollout))
        reads_reference = objective.needs_reference or self.modifiers.need_reference
        needs_reference = self.modifiers.need_reference or (reads_reference and self._scored_once(rollout))
        needs_probe = reads_reference and self.probe.wanted
        needs_entropy = self.modifiers.need_entropy
        old, reference, entropy = rollout.old if exact else None, None, None
        if not (needs_old or needs_reference or needs_probe or needs_entropy):
            return replace(Batch.of(rollout), old=old)
        with notes.time("logprobs"), self.policy.during("score"):
            if needs_old:
                ask = Ask(
                    entropy="value" if needs_entropy and rollout.old.entropy is None else "no",
                    moments=means,
                )
                old = self._score(rollout, notes, ask)
            if needs_reference:
                ask = Ask(entropy="no", moments=objective.needs_reference_moments)
                reference = self._score(rollout, notes, ask, self.policy.reference)
            if needs_probe:
                with explained("scoring a sample with the reference", remedies="mixed_precision: bf16, LoRA"):
                    self.probe.take(rollout, prompts, self.team)
            if needs_entropy:
                entropy = self._entropy(rollout, old if needs_old else None, notes)
        if old is not None:
            old = replace(old, entropy=None)
        return replace(Batch.of(rollout), old=old, reference=reference, entropy=entropy)

    def _entropy(self, rollout: Rollout, old: Decisions | None, notes: Notes) -> Tensor:
        """[B, T] the entropy of each decision's distribution: the sampler's, or that of a pass."""
        if rollout.old.entropy is not None:
            return rollout.old.entropy
        entropy = (old or self._score(rollout, notes, Ask(entropy="value"))).entropy
        if entropy is not None:
            return entropy
        if not rollout.host_mask.any():  # nothing was scored
            return rollout.old.logprobs
        raise UsageError(
            "A modifier needs the entropy of each decision, but this policy's logprobs() gives none. Leave the "
            "modifier out, or let logprobs() return Decisions with entropy [b, t]."
        )

    def _weighs_sliced_sequences(self, rollout: Rollout) -> bool:
        """Whether the correction needs all decisions of a row, which is scored slice by slice."""
        if self.correction is None or self.correction.per != "sequence":
            return False
        is_sliced = len(self.policy.slices(rollout)) > 1
        return any(self.team.gather(is_sliced))

    def _scored_once(self, rollout: Rollout) -> bool:
        """Whether the reference is scored once for a rollout; if not, beside each slice.

        Means are as large as latents, so they are kept only where several passes read them, and within a bound; and
        always where a second copy as reference finds its base gathered in this pass alone.
        """
        if not self.objective.needs_reference_moments or any_shards():
            return True
        size = 4 * rollout.mask.numel() * rollout.action_dims
        fits = all(self.team.gather(size <= _KEPT_BYTES))
        return self.settings.updates_per_rollout > 1 and fits

    def _score(
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
