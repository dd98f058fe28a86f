"""Lets rewards that follow a run learn from its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from grpokit.processes.team import Team
from grpokit.rewards.following import FollowsRun, LearnsFromSteps
from grpokit.rewards.isolation import outside_code
from grpokit.rewards.terms import RewardTerm


def followers(terms: Iterable[RewardTerm]) -> dict[str, FollowsRun]:
    """The rewards that take part in a run beyond scoring, by their names."""
    rewards = {}
    for term in terms:
        reward: object = term.reward
        if isinstance(reward, FollowsRun):
            rewards[term.name] = reward
    return rewards


def learn_from_step(terms: Iterable[RewardTerm], team: Team, warn: Callable[[str], None]) -> dict[str, float]:
    """Let rewards learn from a step that is scored; returns their metrics.

    Raises:
        RunError: a reward raised.
    """
    rewards: dict[str, LearnsFromSteps] = {}
    for name, reward in followers(terms).items():
        if isinstance(reward, LearnsFromSteps):
            rewards[name] = reward
    if not rewards:
        return {}
    lessons = {}
    for name, learner in rewards.items():
        with outside_code(f"Reward '{name}' could not say what it has seen"):
            lessons[name] = learner.lesson()
    of_all = team.gather(lessons)
    metrics = {}
    for name, learner in rewards.items():
        with outside_code(f"Reward '{name}' could not learn from the step"):
            own = learner.learn([part[name] for part in of_all], warn)
            for key, value in own.items():
                metrics[f"rewards/{name}/{key}"] = float(value)
    return metrics
