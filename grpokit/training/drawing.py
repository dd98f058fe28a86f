"""Draws the groups of a step and scores them; with dynamic sampling, groups that teach nothing are drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from grpokit.data import further_indices, prompt_indices
from grpokit.knobs import TrainerSettings
from grpokit.rewards.scoring import RewardTerm, Scores, score
from grpokit.sampling import derive_seeds
from grpokit.training import guards
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.dynamic_sampling import Drawn, at_places, with_spread
from grpokit.training.metrics import Stopwatch
from grpokit.training.out_of_memory import shrinking
from grpokit.types import Prompt, Rollout


class Drawing:
    """Draws and scores, with prompts and seeds that follow from the run's seed and the step.

    Args:
        settings: of the trainer; `rollout_batch_size` is reduced there if memory runs out.
        seed: of the run.
        policy: draws.
        terms: the rewards.
        prompts: all training prompts.
        advantages: (scores without monitors, rollout) -> [B] or [B, T].
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        seed: int,
        policy: CheckedPolicy,
        terms: Sequence[RewardTerm],
        prompts: Sequence[Prompt],
        advantages: Callable[[Scores, Rollout], Tensor],
    ) -> None:
        self.settings, self.seed, self.policy, self.terms, self.prompts = settings, seed, policy, terms, prompts
        self.advantages = advantages

    def __call__(self, completed: int, *, version: int, watch: Stopwatch, warnings: list[str]) -> Drawn:
        """Draw the groups of the step after `completed` ones.

        Args:
            completed: steps so far.
            version: optimizer steps so far.
            watch: measures the phases "rollout" and "reward".
            warnings: gets a message if memory ran out.
        """
        draw = partial(self._groups, completed, version, watch, warnings)
        return with_spread(draw(), draw, advantages=self.advantages, most=self.settings.dynamic_sampling)

    def _groups(
        self,
        completed: int,
        version: int,
        watch: Stopwatch,
        warnings: list[str],
        attempt: int = 0,
        places: Sequence[int] = (),
        used: Sequence[int] = (),
        beside: Scores | None = None,
    ) -> Drawn:
        """All groups of a step; from attempt 1 on, those at `places` anew, with prompts that are not yet `used`.

        Then `beside` are the scores of the other groups.
        """
        per_step, size, total = self.settings.prompts_per_step, self.settings.group_size, len(self.prompts)
        indices = prompt_indices(self.seed, completed, per_step=per_step, total=total)
        seeds = derive_seeds(
            self.seed, stream="train", step=completed, prompts=per_step, group_size=size, attempt=attempt
        )
        if attempt:
            indices = further_indices(self.seed, completed, attempt=attempt, places=places, total=total, used=used)
            seeds = at_places(seeds, places)
        prompts = [self.prompts[i] for i in indices]

        def fit(draw: Callable[[int], Rollout]) -> Rollout:
            rows, what = len(seeds.row), "drawing samples"
            return shrinking(draw, self.settings, "rollout_batch_size", most=rows, what=what, warnings=warnings)

        with watch("rollout"):
            rollout = self.policy.rollout(prompts, size, seeds, fit=fit)
        guards.check_age(rollout, version, self.settings.max_age)
        with watch("reward"):
            scores = score(self.terms, rollout.samples, step=completed + 1, beside=beside)
        return Drawn(prompts=indices, rollout=rollout, scores=scores)
