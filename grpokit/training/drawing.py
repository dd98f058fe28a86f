"""Draws the groups of a step and scores them; with dynamic sampling, groups that teach nothing are drawn anew.

Rewards that score elsewhere begin right after the rollout, and are waited for where somebody asks for the scores.
Dynamic sampling asks at once. Else the passes of the policy come first, and what the rewards take hides behind them.

A policy that lets an engine draw can begin the groups of the next step before this one learns. They are not kept in
checkpoints: a run that goes on draws them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial

from torch import Tensor

from grpokit.data import further_indices, prompt_indices
from grpokit.knobs import TrainerSettings
from grpokit.processes.sharded import gathered
from grpokit.processes.team import Team
from grpokit.rewards.scoring import Scores, begin, joined
from grpokit.rewards.terms import RewardTerm
from grpokit.sampling import derive_seeds
from grpokit.training import checks
from grpokit.training.all_rows import AllRows, gather_rows
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.dynamic_sampling import Groups, at_places, with_spread
from grpokit.training.memory import Sizes
from grpokit.training.metrics import Notes
from grpokit.types import PendingRollout, Prompt, Rollout, Seeds


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The groups of a step.

    Attributes:
        prompts: P indices into the training prompts.
        rollout: this process's rows, in the order of the groups; alone, all B = P * G.
        rows: facts about those of all processes.
        scores: gives those of the rows of all processes; it waits for the rewards when it is first called.
        metrics: what drawing them took, if groups may be drawn anew.
    """

    prompts: Sequence[int]
    rollout: Rollout
    rows: AllRows
    scores: Callable[[], Scores]
    metrics: Mapping[str, float]

    @property
    def own_prompts(self) -> Sequence[int]:
        """The indices of this process's groups."""
        return self.rows.own_groups(self.prompts)


class Drawing:
    """Draws and scores, with prompts and seeds that follow from the run's seed and the step.

    Args:
        settings: of the trainer.
        sizes: of the rollout's calls.
        seed: of the run.
        policy: draws.
        terms: the rewards.
        prompts: all training prompts.
        advantages: scores without monitors -> [B] or [B, T].
        team: the processes, each of which draws a share of the groups.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        sizes: Sizes,
        seed: int,
        policy: CheckedPolicy,
        terms: Sequence[RewardTerm],
        prompts: Sequence[Prompt],
        advantages: Callable[[Scores], Tensor],
        team: Team,
    ) -> None:
        self.settings, self.seed, self.policy, self.terms, self.prompts = settings, seed, policy, terms, prompts
        self.advantages, self.team, self.sizes = advantages, team, sizes
        self._ahead: _Ahead | None = None

    @contextmanager
    def __call__(self, completed: int, *, version: int, notes: Notes) -> Iterator[Drawn]:
        """Draw the groups of the step after `completed` ones; at the end, what no reward has begun is cancelled.

        Args:
            completed: steps so far.
            version: optimizer steps so far.
            notes: of the step.
        """
        with ExitStack() as in_flight:
            draw = partial(self._groups, in_flight, completed, version, notes)
            most = self.settings.dynamic_sampling
            groups, metrics = with_spread(draw(), draw, advantages=self.advantages, most=most)
            rollout, rows = gather_rows(groups.joined(), self.team, self.policy.device)
            yield Drawn(prompts=groups.prompts, rollout=rollout, rows=rows, scores=groups.scores, metrics=metrics)

    def _groups(
        self,
        in_flight: ExitStack,
        completed: int,
        version: int,
        notes: Notes,
        attempt: int = 0,
        places: Sequence[int] = (),
        used: Sequence[int] = (),
        beside: Scores | None = None,
    ) -> Groups:
        """All groups of a step; from attempt 1 on, those at `places` anew, with prompts that are not yet `used`.

        Then `beside` are the scores of the other groups.
        """
        asked = self._asked(completed, attempt, places, used)

        def fit(draw: Callable[[int], Rollout]) -> Rollout:
            return self.sizes.draw(draw, len(asked.seeds.row), notes.warn)

        rollout = None
        with gathered():  # by all processes, also by one without prompts
            begun = None if attempt else self._begun(completed, version)
            if asked.prompts:
                with notes.time("rollout"):
                    if begun is None:
                        rollout = self.policy.rollout(asked.prompts, asked.group_size, asked.seeds, fit=fit)
                    else:
                        rollout = self.policy.finish(begun, asked.prompts, asked.group_size, asked.seeds)
                    if not attempt:
                        self._begin(completed + 1, version)
        if rollout:
            checks.check_age(rollout, version, self.settings.max_age)
        with notes.time("reward"):
            scoring = begin(self.terms, rollout.samples if rollout else [], step=completed + 1)
        in_flight.callback(scoring.cancel)

        @cache
        def scores() -> Scores:
            with notes.time("reward"):
                own = scoring.result(beside=beside, elsewhere=asked.all_rows - (rollout.rows if rollout else 0))
            return joined(self.terms, self.team.gather(own), beside)

        return Groups(prompts=asked.indices, parts=[rollout] if rollout else [], scores=scores)

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
        share = self.team.share(per_step)
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
