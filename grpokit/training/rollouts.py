"""Draws the groups of a step and scores them; with dynamic sampling, groups that teach nothing are drawn again.

Rewards that score elsewhere begin right after the rollout, and are waited for where someone asks for the scores.
Dynamic sampling asks at once. Else the passes of the policy come first, and what the rewards take hides behind them.

A policy that lets an engine draw can begin the groups of the next step before this one learns. They are not kept in
checkpoints: a resumed run draws them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch
from torch import Tensor

from grpokit.processes.fsdp2 import gathered
from grpokit.processes.team import Team
from grpokit.rewards.scoring import Scores, Scoring, join_scores
from grpokit.rewards.terms import RewardTerm
from grpokit.sampling import derive_seeds, further_indices, prompt_indices
from grpokit.settings import TrainerSettings
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.checks import check_policy_lag
from grpokit.training.dynamic_sampling import DrawnGroups, draw_with_spread
from grpokit.training.metrics import StepLog
from grpokit.training.out_of_memory import Sizes
from grpokit.training.rollout_parts import AllRows, concatenate_rollouts, gather_rows
from grpokit.types import PendingRollout, Prompt, Rollout, Seeds


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The groups of a step."""

    prompts: Sequence[int]  # P indices into the training prompts
    rollout: Rollout  # this process's rows, in the order of the groups; alone, all B = P * G
    all_rows: AllRows  # facts about the rows of all processes
    wait_for_scores: Callable[[], Scores]  # of the rows of all processes
    metrics: Mapping[str, float]  # what drawing them took, if groups may be drawn again

    @property
    def local_prompts(self) -> Sequence[int]:
        """The indices of this process's groups."""
        size = len(self.all_rows.groups) // len(self.prompts)
        share = self.all_rows.share
        return self.prompts[share.start // size : share.stop // size]


@dataclass(eq=False, kw_only=True)
class Rollouts:
    """Draws and scores, with prompts and seeds that follow from the run's seed and the step."""

    settings: TrainerSettings
    sizes: Sizes
    seed: int
    policy: CheckedPolicy
    terms: Sequence[RewardTerm]
    prompts: Sequence[Prompt]  # all training prompts
    advantages: Callable[[Scores], Tensor]  # -> [B] or [B, T]
    team: Team  # each process draws a share of the groups
    _ahead: _Ahead | None = field(default=None, init=False)

    @contextmanager
    def draw(self, completed: int, elsewhere: int, log: StepLog) -> Iterator[Draw]:
        """Draw the groups of the step after `completed` ones; at the end, what no reward has begun is cancelled.

        Other phases have taken `elsewhere` steps, which rewards count, too.
        """
        with ExitStack() as in_flight:
            draw = partial(self._groups, in_flight, completed, elsewhere, log)
            count, most = self.settings.prompts_per_step, self.settings.dynamic_sampling
            groups, metrics = draw_with_spread(draw, count, advantages=self.advantages, most=most)
            rollout, all_rows = gather_rows(groups.joined(), self.team, self.policy.device)
            yield Draw(
                prompts=groups.prompts,
                rollout=rollout,
                all_rows=all_rows,
                wait_for_scores=groups.wait_for_scores,
                metrics=metrics,
            )

    def _groups(
        self,
        in_flight: ExitStack,
        completed: int,
        elsewhere: int,
        log: StepLog,
        attempt: int,
        places: Sequence[int],
        used: Sequence[int],
        others: Scores | None,
    ) -> DrawnGroups:
        """Draw and score the groups at `places` (see `draw_with_spread`)."""
        indices, prompts, seeds = self._request(completed, attempt, places, used)
        size = self.settings.group_size
        rollout = None
        with gathered():  # by all processes, also by one without prompts
            pending = None if attempt else self._take_ahead(completed)
            if prompts:
                with log.time("rollout"):
                    if pending is not None:
                        rollout = self.policy.finish(pending, prompts, size, seeds)
                    else:
                        fit = partial(self.sizes.draw, rows=len(seeds.row), warn=log.warn)
                        rollout = concatenate_rollouts([*self.policy.rollouts(prompts, size, seeds, fit=fit)])
                    if not attempt:
                        self._draw_ahead(completed + 1)
        if rollout:
            check_policy_lag(rollout.version, self.policy.version, self.settings.max_policy_lag)
        samples = rollout.samples if rollout else []
        with log.time("reward"):
            scoring = Scoring(self.terms, samples, step=completed + 1, elsewhere=elsewhere)
        in_flight.callback(scoring.cancel)

        @cache
        def wait_for_scores() -> Scores:
            with log.time("reward"):
                part = scoring.result()
            if rollout and rollout.decision_rewards is not None:
                table = torch.where(rollout.host_mask, rollout.decision_rewards, torch.nan)
                part = replace(part, decision_rewards=list(table))
            return join_scores(self.terms, self.team.gather(part), others)

        return DrawnGroups(prompts=indices, parts=[rollout] if rollout else [], wait_for_scores=wait_for_scores)

    def _request(
        self, completed: int, attempt: int, places: Sequence[int], used: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[Prompt], Seeds]:
        """The indices of the prompts of the groups at `places`, and this process's prompts and seeds among them.

        From attempt 1 on they are prompts that are not yet `used`.
        """
        per_step, total = self.settings.prompts_per_step, len(self.prompts)
        if attempt:
            indices = further_indices(self.seed, completed, attempt=attempt, places=places, total=total, used=used)
        else:
            indices = prompt_indices(self.seed, completed, per_step=per_step, total=total)
        size = self.settings.group_size
        seeds = derive_seeds(
            self.seed, stream="train", step=completed, prompts=per_step, group_size=size, attempt=attempt
        )
        share = self.team.share(per_step)
        own = [(place, index) for place, index in zip(places, indices, strict=True) if place in share]
        prompts = [self.prompts[index] for _, index in own]
        return indices, prompts, seeds.select([place for place, _ in own])

    def _draw_ahead(self, completed: int) -> None:
        """Begin the groups of the next step, if their weights are not too old by then."""
        if self.settings.max_policy_lag < self.settings.updates_per_step or completed >= self.settings.steps:
            return
        places = range(self.settings.prompts_per_step)
        _, prompts, seeds = self._request(completed, 0, places, ())
        pending = self.policy.begin(prompts, self.settings.group_size, seeds)
        self._ahead = _Ahead(completed, self.policy.version, pending) if pending else None

    def _take_ahead(self, completed: int) -> PendingRollout | None:
        """What was begun for this step, unless other steps have come in between."""
        ahead = self._ahead
        if ahead and ahead.completed == completed:
            lag = self.policy.version - ahead.version
            if 0 <= lag <= self.settings.max_policy_lag:
                self._ahead = None
                return ahead.pending
        self.drop()
        return None

    def drop(self) -> None:
        """Forget the rollout that is on its way."""
        ahead, self._ahead = self._ahead, None
        if ahead:
            ahead.pending.cancel()


@dataclass(frozen=True)
class _Ahead:
    """A rollout that is on its way: for the step after `completed` ones, with the weights of a version."""

    completed: int
    version: int
    pending: PendingRollout
