"""From a config to the rewards that score: in the run's process, in workers of its own, or at another place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from itertools import chain
from typing import Any

from grpokit import registry
from grpokit.config.evaluation import EvaluationConfig
from grpokit.config.parts import RewardConfig
from grpokit.config.schema import RunConfig
from grpokit.errors import PluginError, a_type
from grpokit.processes.forks import forks_ended
from grpokit.registry.specs import RewardSpec, Spec
from grpokit.rewards.following import FollowsRun
from grpokit.rewards.isolation import torch_state_kept
from grpokit.rewards.lessons import followers
from grpokit.rewards.submission import Submits, Versioned
from grpokit.rewards.terms import RewardTerm
from grpokit.rewards.worker_pool import PooledReward
from grpokit.runs.build import check_built, output_kind
from grpokit.settings import RewardSettings
from grpokit.types import Prompt


def rewards(config: RunConfig | EvaluationConfig) -> list[RewardTerm]:
    """Build the reward terms of a run, a phase or an evaluation, in the config's order.

    Each must accept what the policy makes, if there is one.

    Those with worker processes have them started; `close` ends these.
    """
    scorers: dict[str, Any] = {}
    try:
        return _terms(config, scorers)
    except BaseException:
        _close(scorers.values())
        raise


@contextmanager
def all_rewards(config: RunConfig) -> Iterator[tuple[list[RewardTerm], dict[str, list[RewardTerm]]]]:
    """The reward terms of a run, and by name of those phases that have rewards of their own; closed in the end.

    What a phase has in common with the run, or with an earlier phase, is not built again.
    """
    scorers: dict[str, Any] = {}
    try:
        terms = _terms(config, scorers)
        own_terms = {}
        for phase, own in config.phased():
            if own.rewards is not config.rewards:
                own_terms[phase.name] = _terms(own, scorers)
        yield terms, own_terms
    finally:
        _close(scorers.values())


def versions_elsewhere(
    terms: Sequence[RewardTerm], own_terms: Mapping[str, Sequence[RewardTerm]]
) -> dict[str, dict[str, str]]:
    """The versions of what scores in environments of their own, by the rewards' names (see `all_rewards`)."""
    versions = {}
    for term in chain(terms, *own_terms.values()):
        reward: object = term.reward
        if isinstance(reward, Versioned):
            versions[term.name] = dict(reward.versions)
    return versions


def all_followers(terms: Sequence[RewardTerm], own_terms: Mapping[str, Sequence[RewardTerm]]) -> list[FollowsRun]:
    """The rewards that take part in the run beyond scoring, each once (see `all_rewards`)."""
    rewards = {}
    for some in (terms, *own_terms.values()):
        for reward in followers(some).values():
            rewards[id(reward)] = reward
    return list(rewards.values())


def close(terms: Sequence[RewardTerm]) -> None:
    """End what rewards hold elsewhere, such as worker processes."""
    _close(term.reward for term in terms)


def _close(scorers: Iterable[Any]) -> None:
    for scorer in scorers:
        if isinstance(scorer, Submits):
            with forks_ended():
                scorer.close()


def _terms(config: RunConfig | EvaluationConfig, scorers: dict[str, Any]) -> list[RewardTerm]:
    """The terms of a config; `scorers` has what is built already, whatever its weight, and gets what is new."""
    terms = []
    for i, reward in enumerate(config.rewards):
        key = repr((reward.use, reward.params, reward.workers, reward.reward_timeout, reward.placement))
        if key not in scorers:
            scorers[key] = _scorer(config, i)
        settings = {each.name: getattr(reward, each.name) for each in fields(RewardSettings)}
        term = RewardTerm(
            name=name_of(reward),
            reward=scorers[key],
            unscorable=unscorable(config, i),
            statistic=_is_statistic(config, i),
            **settings,
        )
        terms.append(term)
    return terms


def _scorer(config: RunConfig | EvaluationConfig, index: int) -> Any:
    reward = config.rewards[index]
    if isinstance(config, RunConfig):
        check_output(config, index)
    with config.at("rewards", index):
        if reward.workers:
            pooled = PooledReward(reward.use, reward.params, workers=reward.workers, timeout=reward.reward_timeout)
            pooled.start()
            return pooled
        place, _ = registry.placement_of(reward.use, reward.placement or {})
        if not place:
            with torch_state_kept():
                built = registry.create("reward", reward.use, reward.params, keys=RewardConfig.model_fields)
            if not isinstance(built, Submits):
                expected = "a function, or an object that can be called with samples"
                check_built("reward", reward.use, built, expected, fits=callable(built))
            return built
    with config.at("rewards", index, "placement"):
        timeout = reward.reward_timeout or registry.TIMEOUT
        placed = registry.place(reward.use, reward.params, reward.placement or {}, timeout)
        if not isinstance(placed, Submits):
            raise PluginError(f"The placement of '{reward.use}' gave {a_type(placed)}; expected a grpokit.Submits.")
        return placed


def check_output(config: RunConfig, index: int) -> None:
    """Refuse a reward that cannot score what the policy of a config makes."""
    reward = config.rewards[index]
    makes = output_kind(config)
    with config.at("rewards", index):
        if makes is not None and (reward.placement is None or _spec(reward) is not None):
            policy = config.policy.use.rpartition(":")[2]
            registry.check_accepts(reward.use, makes, what=f"the policy '{policy}' makes")


def _spec(reward: RewardConfig) -> Spec | None:
    """What its plugin says of a reward; None without one, and where the plugin is installed at the service alone."""
    try:
        return registry.spec_of("reward", reward.use)
    except PluginError:
        if reward.placement is None:
            raise
        return None


def unscorable(config: RunConfig | EvaluationConfig, index: int) -> Callable[[Prompt], str] | None:
    """A reward's function that says why it cannot score a prompt; None where its plugin brings none."""
    with config.at("rewards", index):
        spec = _spec(config.rewards[index])
        if not isinstance(spec, RewardSpec) or not spec.unscorable:
            return None
        with torch_state_kept():
            function = registry.resolve(spec.unscorable)
        params = config.rewards[index].params
        named = inspect.signature(function).parameters.keys() & params
        return partial(function, **{name: params[name] for name in named})


def _is_statistic(config: RunConfig | EvaluationConfig, index: int) -> bool:
    """Whether a reward describes and does not judge, as its plugin says."""
    with config.at("rewards", index):
        spec = _spec(config.rewards[index])
        return isinstance(spec, RewardSpec) and spec.statistic is not None


def name_of(reward: RewardConfig) -> str:
    """What metrics call a reward, unless the name is taken."""
    return reward.name or reward.use.rpartition(":")[2]
