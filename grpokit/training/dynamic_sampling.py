"""Redraws groups that teach nothing, such as those with equal rewards: the dynamic sampling of DAPO.

From DAPO (Yu et al., 2025, arXiv:2503.14476, section 3.2). A group that is drawn again gets a further prompt, and seeds
that follow from the run's seed, the step, the attempt and the group's place. It keeps its place and its id, so a step
always has the same number of groups. The paper draws until all groups teach; here the attempts are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpokit.group_statistics import Groups, groups_without_advantage
from grpokit.rewards.scoring import Scores
from grpokit.training.rollout_parts import concatenate_rollouts
from grpokit.types import Rollout


@dataclass(frozen=True, kw_only=True)
class DrawnGroups:
    """Groups that were drawn and are being scored."""

    prompts: Sequence[int]  # P indices into the training prompts
    parts: Sequence[Rollout]  # of this process's rows, whole groups in each
    wait_for_scores: Callable[[], Scores]  # of the rows of all processes

    def joined(self) -> Rollout | None:
        """This process's rows in the order of the groups, whose ids ascend with their places; None without any."""
        if len(self.parts) < 2:
            return self.parts[0] if self.parts else None
        rollout = concatenate_rollouts(self.parts)
        return rollout.select(rollout.groups.argsort(stable=True))


def draw_with_spread(
    draw: Callable[[int, Sequence[int], Sequence[int], Scores | None], DrawnGroups],
    count: int,
    *,
    advantages: Callable[[Scores], Tensor],
    most: int,
) -> tuple[DrawnGroups, dict[str, float]]:
    """Draw `count` groups, and again those whose advantages are all 0, until none is left or after `most` attempts.

    `draw` gets the attempt, 0 for the first draw, the places of the groups, the prompts that were used, and the scores
    of the other groups. The metrics show what drawing them took, if groups may be drawn again.
    """
    first = draw(0, range(count), (), None)
    if not most:
        return first, {}
    groups, used, attempt = first, list(first.prompts), 0
    while attempt < most:
        scores = groups.wait_for_scores()
        zero = groups_without_advantage(advantages(scores), scores.groups)  # [P]
        places = zero.nonzero()[:, 0].tolist()  # ids ascend with places
        if not places:
            break
        attempt += 1
        others = scores.select(~zero[Groups(scores.groups).index])  # [P] -> [B]
        further = draw(attempt, places, used, others)
        used += list(further.prompts)
        groups = _merged(groups, further, places)
    return groups, {
        "dynamic_sampling/attempts": float(attempt),
        "dynamic_sampling/replaced": float(len(used) - len(first.prompts)),
        "dynamic_sampling/reward_before": float(first.wait_for_scores().totals.nanmean()),
    }


def _merged(groups: DrawnGroups, further: DrawnGroups, places: Sequence[int]) -> DrawnGroups:
    """Put the groups of `further` at their places; times and notes of the scores are those of all draws."""
    prompts = list(groups.prompts)
    for place, prompt in zip(places, further.prompts, strict=True):
        prompts[place] = prompt
    before, new = groups.wait_for_scores(), further.wait_for_scores()
    rest = []
    for part in groups.parts:
        stays = ~torch.isin(part.groups, new.groups)
        rest.append(part.select(stays.nonzero()[:, 0]))
    rows = torch.isin(before.groups, new.groups)
    matrix, lost = before.matrix.clone(), before.lost.clone()
    matrix[rows], lost[rows] = new.matrix, new.lost  # both in the order of the groups
    own = list(before.decision_rewards)
    if own:
        for row, latest in zip(rows.nonzero()[:, 0].tolist(), new.decision_rewards, strict=True):
            own[row] = latest
    scores = replace(
        before,
        matrix=matrix,
        seconds=[a + b for a, b in zip(before.seconds, new.seconds, strict=True)],
        lost=lost,
        notes=[*before.notes, *new.notes],
        decision_rewards=own,
    )
    return DrawnGroups(prompts=prompts, parts=[*rest, *further.parts], wait_for_scores=lambda: scores)
