"""The passes without gradient between a rollout and the first update: old log-probs, the reference's, entropies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from grpokit.knobs import TrainerSettings
from grpokit.training.backward import Backward
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.entropy_filter import rollout_entropy
from grpokit.training.out_of_memory import explained, shrinking_micro_batches
from grpokit.training.reference_probe import ReferenceProbe
from grpokit.types import Decisions, Rollout


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
    """

    def __init__(
        self, settings: TrainerSettings, *, policy: CheckedPolicy, backward: Backward, probe: ReferenceProbe
    ) -> None:
        self.settings, self.policy, self.backward, self.probe = settings, policy, backward, probe

    def __call__(self, rollout: Rollout, prompts: Sequence[int], *, version: int, warnings: list[str]) -> Scored:
        """Score what the updates need.

        The old log-probs are the rollout's if its sampler computes as the training forward pass does, with these
        weights. Else they are computed by that pass, which with a single update happens in any case.

        Args:
            rollout: of the step.
            prompts: index of each group's prompt in the training prompts.
            version: optimizer steps so far.
            warnings: gets a message if memory ran out.
        """
        objective = self.backward.objective
        same = rollout.exact and rollout.version == version and not self.policy.low_precision
        rescored = not same and (self.settings.updates_per_step > 1 or self.backward.needs_old(rollout))
        referred = objective.needs_reference and not objective.needs_moments  # else beside each slice
        probed = objective.needs_reference and self.probe.wanted
        filtered = self.settings.top_entropy_quantile < 1
        old, reference, entropy = rollout.old if same else None, None, None
        if not (rescored or referred or probed or filtered):
            return Scored(old=old)
        with self.policy.during("score"):
            if rescored:
                old = self._all(rollout, warnings, entropy=filtered and rollout.old.entropy is None)
            if referred:
                reference = self._all(rollout, warnings, self.policy.reference)
            if probed:
                with explained("scoring a sample with the reference", remedies="mixed_precision: bf16, LoRA"):
                    self.probe.take(rollout, prompts)
            if filtered:
                own = old if rescored else None  # which that pass has given with the entropy
                entropy = rollout_entropy(rollout, lambda: own or self._all(rollout, warnings, entropy=True))
        return Scored(old=old and replace(old, entropy=None), reference=reference, entropy=entropy)

    def _all(
        self,
        rollout: Rollout,
        warnings: list[str],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        entropy: bool = False,
    ) -> Decisions:
        return shrinking_micro_batches(
            lambda limit: self.policy.all_logprobs(rollout, limit, context, entropy=entropy),
            self.settings,
            partial(self.policy.cuts, rollout),
            warnings=warnings,
        )
