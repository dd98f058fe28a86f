"""From a config to the rewards that score: in the run's process, in workers of its own, or at another place."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from grpokit import registry
from grpokit.config.parts import RewardConfig
from grpokit.config.schema import RunConfig
from grpokit.errors import ConfigError, PluginError, a_type, shown
from grpokit.knobs import RewardSettings, meanings
from grpokit.registry.specs import PlacementSpec, RewardSpec, Spec
from grpokit.rewards.isolation import torch_state_kept
from grpokit.rewards.submission import Placed, Submits
from grpokit.rewards.terms import RewardTerm
from grpokit.rewards.worker_pool import PooledReward
from grpokit.runs.build import check_callable, output_kind
from grpokit.types import Prompt

TIMEOUT = 600.0
"""Seconds that a call at another place may take where `reward_timeout` is not set."""


def _placed(reward: RewardConfig) -> Placed:
    """Start a reward at the place that its config names.

    Raises:
        UsageError: there is no such kind of place, an option is wrong, or samples cannot be scored there.
    """
    ((kind, options),) = (reward.placement or {}).items()
    spec = registry.spec_of("placement", kind)
    if not isinstance(options, Mapping):
        shorthand = spec.shorthand if isinstance(spec, PlacementSpec) else ""
        if not shorthand:
            raise ConfigError(f"'{kind}' is {shown(options)}; expected its options, as in {{name: value}}.")
        options = {shorthand: options}
    place = registry.create("placement", kind, options)
    with registry.explained(f"The placement '{kind}' of reward '{reward.use}' fails"):
        built = place(reward.use, reward.params, reward.reward_timeout or TIMEOUT)
        if not isinstance(built, Placed):
            raise PluginError(f"The placement '{kind}' gave {a_type(built)}; expected a grpokit.Placed.")
        built.start()
    return built


def rewards(config: RunConfig, *, others: Sequence[tuple[RunConfig, list[RewardTerm]]] = ()) -> list[RewardTerm]:
    """Build the reward terms, in the config's order; each must accept what the policy makes.

    Those with worker processes have them started; `close` ends these.

    Args:
        config: the run's, or that of a phase.
        others: configs with terms that are built already. A reward that one of them has, too, is not built again.
    """
    makes = output_kind(config)
    built = [
        (reward, term.reward) for other, terms in others for reward, term in zip(other.rewards, terms, strict=True)
    ]
    new: list[RewardTerm] = []
    terms: list[RewardTerm] = []
    try:
        for i, reward in enumerate(config.rewards):
            same = next((scorer for earlier, scorer in built if _is_same(earlier, reward)), None)
            terms.append(_term(config, i, reward, makes) if same is None else _weighted(config, i, same))
            if same is None:
                new.append(terms[-1])
    except BaseException:
        close(new)
        raise
    return terms


@contextmanager
def all_rewards(config: RunConfig) -> Iterator[tuple[list[RewardTerm], dict[str, list[RewardTerm]]]]:
    """The reward terms of a run, and by name of those phases that have rewards of their own; closed in the end.

    What a phase has in common with the run, or with an earlier phase, is not built again.
    """
    built: list[tuple[RunConfig, list[RewardTerm]]] = []
    own_terms: dict[str, list[RewardTerm]] = {}
    try:
        terms = rewards(config)
        built.append((config, terms))
        for phase, own in config.phased():
            if own.rewards is not config.rewards:
                own_terms[phase.name] = rewards(own, others=built)
                built.append((own, own_terms[phase.name]))
        yield terms, own_terms
    finally:
        close([term for _, some in built for term in some])


def _spec(reward: RewardConfig) -> Spec | None:
    """What its plugin says of a reward; None without one, and where the plugin is installed at the service alone."""
    try:
        return registry.spec_of("reward", reward.use)
    except PluginError:
        if reward.placement is None:
            raise
        return None


def _is_same(one: RewardConfig, other: RewardConfig) -> bool:
    """Whether two rewards score alike, whatever their weights."""
    return (one.use, one.params, one.workers, one.reward_timeout, one.placement) == (
        *(other.use, other.params, other.workers, other.reward_timeout, other.placement),
    )


def unscorable(config: RunConfig, index: int) -> Callable[[Prompt], str] | None:
    """A reward's function that says why it cannot score a prompt; None where its plugin brings none."""
    makes = output_kind(config)
    with config.at("rewards", index):
        spec = _spec(config.rewards[index])
        if not isinstance(spec, RewardSpec) or not spec.unscorable:
            return None
        if makes is not None and makes not in spec.accepts:  # which has a message of its own
            return None
        with _state_kept(config.rewards[index].use):
            function = registry.resolve(spec.unscorable)
        named = inspect.signature(function).parameters.keys() & config.rewards[index].params
        return partial(function, **{name: config.rewards[index].params[name] for name in named})


@contextmanager
def _state_kept(reward: str) -> Iterator[None]:
    """What a reward changes of the process's state while it is imported and built is set back, as after its calls."""
    changes: list[str] = []
    with torch_state_kept(changes):
        yield
    if changes:
        warnings.warn(
            f"The reward '{reward}' changed {' and '.join(changes)} while it was built, which affects the whole "
            "process. It is set back. Change such state only in a `with` block inside the reward.",
            stacklevel=2,
        )


def close(terms: Sequence[RewardTerm]) -> None:
    """End what rewards hold elsewhere, such as worker processes."""
    for reward in {id(term.reward): term.reward for term in terms}.values():
        if isinstance(reward, Submits):
            reward.close()


def _term(config: RunConfig, index: int, reward: RewardConfig, makes: str | None) -> RewardTerm:
    built: Any
    with config.at("rewards", index):
        if makes is not None and (reward.placement is None or _spec(reward) is not None):
            registry.check_accepts(reward.use, makes, what=f"the policy '{config.policy.use}' makes")
        if reward.placement is not None:
            built = None
        elif reward.workers:
            built = PooledReward(reward.use, reward.params, workers=reward.workers, timeout=reward.reward_timeout)
            built.start()
        else:
            with _state_kept(reward.use):
                built = registry.create("reward", reward.use, reward.params, keys=RewardConfig.model_fields)
            if not isinstance(built, Submits):
                check_callable("reward", reward.use, built, "samples")
    if reward.placement is not None:
        with config.at("rewards", index, "placement"):
            built = _placed(reward)
    return _weighted(config, index, built)


def _weighted(config: RunConfig, index: int, scorer: Any) -> RewardTerm:
    """The term of a reward that is built."""
    reward = config.rewards[index]
    settings = {name: getattr(reward, name) for name in meanings(RewardSettings)}
    return RewardTerm(name=name_of(reward), reward=scorer, unscorable=unscorable(config, index), **settings)


def name_of(reward: RewardConfig) -> str:
    """What metrics call a reward, unless the name is taken."""
    return reward.name or reward.use.rpartition(":")[2]
