"""Draws groups that teach nothing anew, such as those with equal rewards: the dynamic sampling of DAPO.

From DAPO (Yu et al., 2025, arXiv:2503.14476, section 3.2). A group that is drawn anew gets a further prompt, and seeds
that follow from the run's seed, the step, the attempt and the group's place. It keeps its place and its id, so a step
always has the same number of groups. The paper draws until all groups teach; here the attempts are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from grpokit.advantages import zero_per_group
from grpokit.rewards.scoring import Scores
from grpokit.training.rollout_calls import concatenate_rollouts
from grpokit.types import Rollout, Seeds


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Groups that were drawn and scored.

    Attributes:
        prompts: P indices into the training prompts.
        rollout: this process's rows, in the order of the groups; alone, all B = P * G.
        scores: gives those of the rows of all processes; it waits for the rewards when it is first called.
        metrics: what drawing them took, if groups may be drawn anew.
    """

    prompts: Sequence[int]
    rollout: Rollout
    scores: Callable[[], Scores]
    metrics: Mapping[str, float] = field(default_factory=dict)


def with_spread(
    first: Drawn,
    draw: Callable[[int, Sequence[int], Sequence[int], Scores], Drawn],
    *,
    advantages: Callable[[Scores], Tensor],
    most: int,
) -> Drawn:
    """Replace the groups whose advantages are all 0, until none is left or the attempts are used up.

    Args:
        first: the step's groups.
        draw: (attempt from 1, places of groups, prompts that were used, scores of the other groups) -> these groups,
            drawn anew.
        advantages: scores without monitors -> [B] or [B, T].
        most: the most attempts.
    """
    if not most:
        return first
    drawn, used, replaced, attempt = first, list(first.prompts), 0, 0
    while attempt < most:
        scores = drawn.scores()
        groups = scores.groups
        zero = zero_per_group(advantages(scores.trained), groups)  # [P]
        places = zero.nonzero()[:, 0].tolist()  # ids ascend with places
        if not places:
            break
        attempt += 1
        further = draw(attempt, places, used, scores.select((~zero)[groups.unique(return_inverse=True)[1]]))
        used += list(further.prompts)
        replaced += len(places)
        drawn = _merged(drawn, further, places)
    metrics = {
        "dynamic_sampling/attempts": float(attempt),
        "dynamic_sampling/replaced": float(replaced),
        "dynamic_sampling/reward_before": float(first.scores().totals.nanmean()),
    }
    return replace(drawn, metrics=metrics)


def at_places(seeds: Seeds, places: Sequence[int]) -> Seeds:
    """The seeds of some of a step's groups."""
    some = list(places)
    rows = seeds.row.reshape(len(seeds.group), -1)[some]  # [P, G] -> [p, G]
    return replace(seeds, row=rows.reshape(-1), group=seeds.group[some], group_ids=seeds.group_ids[some])


def _merged(drawn: Drawn, further: Drawn, places: Sequence[int]) -> Drawn:
    """Put the groups of `further` at their places."""
    both = (drawn.rollout, further.rollout)
    kept = (~torch.isin(drawn.rollout.groups, further.rollout.groups)).nonzero()[:, 0]
    rollouts = [part for part in (drawn.rollout.select(kept), further.rollout) if part.rows]
    joined = replace(  # alike in all processes, also in one that has rows of one draw only
        concatenate_rollouts(rollouts) if rollouts else drawn.rollout,
        max_decisions=max(part.max_decisions for part in both),
        exact=all(part.exact for part in both),
        version=min((part.version for part in both if part.version is not None), default=None),
    )
    prompts = dict(enumerate(drawn.prompts)) | dict(zip(places, further.prompts, strict=True))
    scores = _scores(drawn.scores(), further.scores())
    return Drawn(
        prompts=list(prompts.values()),
        rollout=joined.select(joined.groups.argsort(stable=True)),  # ids ascend with places
        scores=lambda: scores,
    )


def _scores(before: Scores, further: Scores) -> Scores:
    """Scores with the rows of some groups replaced; times and notes are those of all draws."""
    matrix, lost, anew = before.matrix.clone(), before.lost.clone(), torch.isin(before.groups, further.groups)
    matrix[anew], lost[anew] = further.matrix, further.lost  # both in the order of the groups
    return replace(
        before,
        matrix=matrix,
        seconds=[a + b for a, b in zip(before.seconds, further.seconds, strict=True)],
        lost=lost,
        notes=[*before.notes, *further.notes],
    )
