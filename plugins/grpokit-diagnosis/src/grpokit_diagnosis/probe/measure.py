"""All that `grpokit diagnose --probe` measures, in the order in which a signal goes: from the reward to the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpokit import UsageError
from grpokit.config.schema import RunConfig
from grpokit.errors import plural
from grpokit.rewards.scoring import Scores, join_scores
from grpokit_diagnosis.probe.arrival import Arrival
from grpokit_diagnosis.probe.gains import Gain, gains, samples_for
from grpokit_diagnosis.probe.gradients import Direction, direction, shared
from grpokit_diagnosis.probe.line_search import Point, line_search
from grpokit_diagnosis.probe.rebuilt import Rebuilt, rebuilt
from grpokit_diagnosis.probe.repeatability import Repeatability, repeatability
from grpokit_diagnosis.probe.spread import Spread, spread
from grpokit_diagnosis.probe.steps import Taken, take
from grpokit_diagnosis.probe.targets import TargetScore, target_scores
from grpokit_diagnosis.probe.usual_values import UsualValue, usual_values
from grpokit_diagnosis.total_range import total_range

_GROUPS = 32  # that gradients are compared between, at least
_STEPS = 8, 16  # the fewest and the most that are taken
_PROMPTS = 64  # held-out ones, at most
_LITTLE = 0.25  # of the spread inside groups
_SCORED_AGAIN = 128  # samples, at most


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of a run.

    Attributes:
        steps: that were taken from the same weights.
        completed: steps that the weights have behind them.
        step_seconds: of a step of the run.
        cost: what measuring took, in steps of the run.
        spread: of the reward.
        targets: what each reward that compares with target pictures gives them.
        repeat: of the reward.
        usual_values: with other values of what makes samples differ.
        direction: of the gradient.
        by_reward: the same for each trained reward, if there are several.
        cosines: "a and b" -> the cosine of the true gradients of two rewards.
        regulariser: how many times as long as the rewards' gradient that of the KL and an entropy bonus is.
        clipped: by how much gradients are shortened: 1 not at all.
        arrival: of the update in the weights.
        logprob_change: by a step, in nats.
        search: steps of other lengths.
        training: gain of the run with the settings of training; None where it was not measured.
        evaluation: the same with those of evaluations.
    """

    steps: int
    completed: int
    step_seconds: float
    cost: float
    spread: Spread
    targets: Sequence[TargetScore]
    repeat: Repeatability
    usual_values: Sequence[UsualValue]
    direction: Direction
    by_reward: Mapping[str, Direction]
    cosines: Mapping[str, float]
    regulariser: float
    clipped: float
    arrival: Arrival
    logprob_change: float
    search: Sequence[Point]
    training: Gain | None = None
    evaluation: Gain | None = None

    @property
    def gained(self) -> bool:
        """Whether training has gained something worth seeing."""
        if self.training is None:
            return False
        return self.training.change > max(self.training.width, _LITTLE * self.spread.inside)


def measure(
    config: RunConfig,
    phase: str,
    checkpoint: Path | None,
    ends: tuple[Path | None, Path] | None,
    *,
    changed: Callable[[str], RunConfig],
    say: Callable[[str], None],
) -> Measured:
    """Measure a run.

    Args:
        config: the run's.
        phase: that is measured; empty in a run without phases.
        checkpoint: the weights that steps are taken from; None: those before the first step.
        ends: two checkpoints whose gain is measured (None: before the first step); None: it is not measured.
        changed: a text `key=value` -> the run's config with this change.
        say: gets a line about what is done.
    """
    began = time.perf_counter()
    with rebuilt(config, phase, checkpoint) as run:
        completed = run.completed
        count = min(_STEPS[1], max(_STEPS[0], -(-_GROUPS // run.trainer.prompts_per_step)))
        say(f"taking {count} steps from the same weights ...")
        start = run.weights()
        taken, change = take(run, count)
        rewards = _of_reward(run, taken)
        prompts = run.held_out[:_PROMPTS]
        samples = samples_for(run, len(prompts))
        say(f"evaluating steps of several lengths on {plural(len(prompts), 'prompt')} ...")
        search = line_search(run, start, change, prompts, samples=samples)
    directions = _directions(taken)
    tried = []
    if _hardly_differs(rewards["spread"]) or not directions["direction"].is_clear:
        tried = usual_values(config, phase, changed, checkpoint)
    training = evaluation = None
    if ends is not None:
        say("comparing the settings of training with those of evaluations ...")
        training, evaluation = gains(config, phase, ends, samples=max(2, samples), most=_PROMPTS)
    step_seconds = sum(step.report.metrics["step_time"] for step in taken) / count
    return Measured(
        steps=count,
        completed=completed,
        step_seconds=step_seconds,
        cost=(time.perf_counter() - began) / step_seconds,
        usual_values=tried,
        clipped=sum(step.clipped for step in taken) / count,
        arrival=taken[-1].arrival,
        logprob_change=sum(step.logprob_change for step in taken) / count,
        search=search,
        training=training,
        evaluation=evaluation,
        **rewards,
        **directions,
    )


def _of_reward(run: Rebuilt, taken: Sequence[Taken]) -> dict[str, Any]:
    """The fields of `Measured` about the reward."""
    bottom, top = total_range(run.config)
    samples = [sample for each in taken for sample in each.samples]
    scores = join_scores(run.terms, [each.scores for each in taken])
    if scores.totals.isnan().all():
        raise UsageError("The rewards gave no sample a score in the steps taken again, so there is nothing to measure.")
    count = _scored_again(scores)
    first, first_scores = samples[:count], scores.select(torch.arange(count))
    return {
        "spread": spread(samples, scores, top=top, bottom=bottom),
        "repeat": repeatability(run.terms, first, first_scores, size=run.trainer.group_size),
        "targets": target_scores(run.terms, first, first_scores),
    }


def _directions(taken: Sequence[Taken]) -> dict[str, Any]:
    """The fields of `Measured` that come from gradients."""
    own = direction(torch.cat([each.of_rewards for each in taken]))
    parts = [step.regulariser for step in taken if step.regulariser is not None]
    regulariser = torch.cat(parts) if parts else None
    ratio = 0.0
    if regulariser is not None and own.length:
        ratio = float(regulariser.mean(0).norm()) / own.length
    by_reward = {}
    for name in taken[0].by_reward:
        by_reward[name] = torch.cat([each.by_reward[name] for each in taken])
        if regulariser is not None:
            by_reward[name] -= regulariser
    directions = {name: direction(gradients) for name, gradients in by_reward.items()}
    cosines = {}
    names = [name for name, own in directions.items() if own.is_clear]
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            product = shared(by_reward[first], by_reward[second])
            length = (directions[first].signal * directions[second].signal) ** 0.5
            cosines[f"{first} and {second}"] = max(-1.0, min(1.0, product / length))
    return {"direction": own, "by_reward": directions, "cosines": cosines, "regulariser": ratio}


def _scored_again(scores: Scores) -> int:
    """How many samples are scored again: those of the first whole groups, at least two."""
    size = len(scores.groups) // len(scores.groups.unique())
    return min(len(scores.groups), max(2 * size, _SCORED_AGAIN // size * size))


def _hardly_differs(own: Spread) -> bool:
    """Whether the samples of a group hardly differ in their reward."""
    return sum(own.without.values()) >= 0.3 * own.groups or own.inside < 0.5 * own.between
