"""Draws the groups of a step and scores them; with dynamic sampling, groups that teach nothing are drawn anew.

Rewards that score elsewhere begin right after the rollout, and are waited for where somebody asks for the scores.
Dynamic sampling asks at once. Else the passes of the policy come first, and what the rewards take hides behind them.

A policy that lets an engine draw can begin the groups of the next step before this one learns. They are not kept in
checkpoints: a run that goes on draws them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from grpokit.data import further_indices, prompt_indices
from grpokit.knobs import TrainerSettings
from grpokit.rewards.scoring import RewardTerm, Scores, Scoring, begin, joined
from grpokit.sampling import derive_seeds
from grpokit.training import guards
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.dynamic_sampling import Drawn, at_places, with_spread
from grpokit.training.metrics import Stopwatch
from grpokit.training.out_of_memory import shrinking
from grpokit.training.sharding import gathered
from grpokit.training.world import World
from grpokit.types import Decisions, PendingRollout, Prompt, Rollout, Seeds


class Drawing:
    """Draws and scores, with prompts and seeds that follow from the run's seed and the step.

    Args:
        settings: of the trainer; `rollout_batch_size` is reduced there if memory runs out.
        seed: of the run.
        policy: draws.
        terms: the rewards.
        prompts: all training prompts.
        advantages: scores without monitors -> [B] or [B, T].
        world: the processes, each of which draws a share of the groups.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        seed: int,
        policy: CheckedPolicy,
        terms: Sequence[RewardTerm],
        prompts: Sequence[Prompt],
        advantages: Callable[[Scores], Tensor],
        world: World,
    ) -> None:
        self.settings, self.seed, self.policy, self.terms, self.prompts = settings, seed, policy, terms, prompts
        self.advantages, self.world = advantages, world
        self._ahead: _Ahead | None = None

    @contextmanager
    def __call__(self, completed: int, *, version: int, watch: Stopwatch, warnings: list[str]) -> Iterator[Drawn]:
        """Draw the groups of the step after `completed` ones; at the end, what no reward has begun is cancelled.

        Args:
            completed: steps so far.
            version: optimizer steps so far.
            watch: measures the phases "rollout" and "reward".
            warnings: gets a message if memory ran out.
        """
        with ExitStack() as in_flight:
            draw = partial(self._groups, in_flight, completed, version, watch, warnings)
            yield with_spread(draw(), draw, advantages=self.advantages, most=self.settings.dynamic_sampling)

    def _groups(
        self,
        in_flight: ExitStack,
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
        asked = self._asked(completed, attempt, places, used)

        def fit(draw: Callable[[int], Rollout]) -> Rollout:
            rows, what = len(asked.seeds.row), "drawing samples"
            return shrinking(draw, self.settings, "rollout_batch_size", most=rows, what=what, warnings=warnings)

        def drawn() -> tuple[Rollout | None, Scoring]:
            rollout = None
            with gathered():  # by all processes, also by one without prompts
                begun = None if attempt else self._begun(completed, version)
                if asked.prompts:
                    with watch("rollout"):
                        if begun is None:
                            rollout = self.policy.rollout(asked.prompts, asked.group_size, asked.seeds, fit=fit)
                        else:
                            rollout = self.policy.finish(begun, asked.prompts, asked.group_size, asked.seeds)
                        if not attempt:
                            self._begin(completed + 1, version)
            if rollout:
                guards.check_age(rollout, version, self.settings.max_age)
            with watch("reward"):
                scoring = begin(self.terms, rollout.samples if rollout else [], step=completed + 1)
            in_flight.callback(scoring.cancel)
            return rollout, scoring

        rollout, scoring = self.world.together(drawn)
        facts = [fact for fact in self.world.each(lambda: rollout and _Facts.of(rollout)) if fact]
        elsewhere = asked.all_rows - (rollout.rows if rollout else 0)

        def own_scores() -> Scores:
            with watch("reward"):
                return scoring.result(beside=beside, elsewhere=elsewhere)

        @cache
        def scores() -> Scores:
            parts = self.world.each(own_scores)
            return self.world.together(lambda: joined(self.terms, parts, beside))

        return Drawn(prompts=asked.indices, rollout=_alike(rollout, facts, self.policy.device), scores=scores)

    def _asked(self, completed: int, attempt: int = 0, places: Sequence[int] = (), used: Sequence[int] = ()) -> _Asked:
        """The groups that this process draws."""
        per_step, size, total = self.settings.prompts_per_step, self.settings.group_size, len(self.prompts)
        indices = prompt_indices(self.seed, completed, per_step=per_step, total=total)
        seeds = derive_seeds(
            self.seed, stream="train", step=completed, prompts=per_step, group_size=size, attempt=attempt
        )
        if attempt:
            indices = further_indices(self.seed, completed, attempt=attempt, places=places, total=total, used=used)
            seeds = at_places(seeds, places)
        share = self.world.share(per_step)
        own = [i for i, place in enumerate(places if attempt else range(per_step)) if place in share]
        return _Asked(
            indices=indices,
            prompts=[self.prompts[indices[i]] for i in own],
            group_size=size,
            seeds=at_places(seeds, own),
            all_rows=len(seeds.row),
        )

    def _begin(self, completed: int, version: int) -> None:
        """Begin the groups of the next step, if their weights are not too old by then."""
        if self.settings.max_age < self.settings.updates_per_step or completed >= self.settings.steps:
            return
        asked = self._asked(completed)
        begun = asked.prompts and self.policy.begin(asked.prompts, asked.group_size, asked.seeds)
        self._ahead = _Ahead(completed, version, begun) if begun else None

    def _begun(self, completed: int, version: int) -> PendingRollout | None:
        """What was begun for this step, unless other steps have come in between."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        if ahead.completed == completed and 0 <= version - ahead.version <= self.settings.max_age:
            return ahead.begun
        ahead.begun.cancel()
        return None

    def drop(self) -> None:
        """Forget the rollout that is on its way."""
        if self._ahead is not None:
            self._ahead.begun.cancel()
        self._ahead = None


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The groups of a step, and this process's share: indices of all prompts, its own prompts, their seeds."""

    indices: Sequence[int]
    prompts: Sequence[Prompt]
    group_size: int
    seeds: Seeds
    all_rows: int


@dataclass(frozen=True)
class _Ahead:
    """A rollout that is on its way: for the step after `completed` ones, with the weights of a version."""

    completed: int
    version: int
    begun: PendingRollout


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What the rollouts of all processes must agree on."""

    max_decisions: int
    action_dims: int
    exact: bool
    version: int | None
    dtype: torch.dtype
    moments: Sequence[str]

    @classmethod
    def of(cls, rollout: Rollout) -> _Facts:
        """Those of a rollout."""
        own = {name: getattr(rollout, name) for name in ("max_decisions", "action_dims", "exact", "version")}
        moments = [name for name, x in vars(rollout.old).items() if x is not None and name != "logprobs"]
        return cls(**own, dtype=rollout.old.logprobs.dtype, moments=moments)


def _alike(rollout: Rollout | None, facts: Sequence[_Facts], device: torch.device) -> Rollout:
    """A rollout with what concatenated rollouts would have, of no row where this process has drawn none."""
    if rollout is not None and len(facts) == 1:
        return rollout
    first = facts[0]
    if rollout is None:
        nothing = torch.zeros(0, 0, dtype=first.dtype, device=device)
        rollout = Rollout(
            samples=[],
            groups=torch.zeros(0, dtype=torch.int64),
            old=Decisions(logprobs=nothing, **dict.fromkeys(first.moments, nothing)),
            mask=nothing.bool(),
            max_decisions=first.max_decisions,
            action_dims=first.action_dims,
        )
    return replace(
        rollout,
        max_decisions=max(fact.max_decisions for fact in facts),
        exact=all(fact.exact for fact in facts),
        version=min((fact.version for fact in facts if fact.version is not None), default=None),
    )
