"""From a config to the objects that train: policy, prompts, rewards, trainer.

Everything is found by name through the registry; the config's flat keys go to the factories as they are. A mistake
is reported with its place in the config, before anything is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from grpokit import data, registry
from grpokit.advantages import AdvantageFn
from grpokit.config.schema import Component, RewardConfig, RunConfig
from grpokit.data import PromptSequence
from grpokit.errors import ConfigError, DataError, PluginError, UsageError, nearest, reworded
from grpokit.images import MAX_PIXELS
from grpokit.knobs import Correction, RewardSettings, TrainerSettings, meanings
from grpokit.objectives import Objective
from grpokit.policy import Policy, missing_methods
from grpokit.registry.specs import PolicySpec, RewardSpec
from grpokit.rewards.scoring import RewardTerm
from grpokit.rewards.submission import Submits
from grpokit.rewards.worker_pool import PooledReward
from grpokit.trainer import Trainer
from grpokit.training import devices
from grpokit.types import Prompt


@contextmanager
def _at(config: RunConfig, *path: str | int) -> Iterator[None]:
    """An error in here begins with the place of a key in the config."""
    try:
        yield
    except UsageError as error:
        raise reworded(error, f"{config.place(*path)}{error}") from error


def policy(config: RunConfig) -> Policy:
    """Build the policy, on the config's device."""
    with _at(config, "policy"):
        built = registry.create("policy", config.policy.use, config.policy.params)
        missing = missing_methods(built)
        if missing:
            raise PluginError(
                f"Policy '{config.policy.use}' lacks {', '.join(missing)} of the policy contract (it is of type "
                f"{type(built).__name__})."
            )
    with _at(config, "trainer", "device"):
        devices.place(built.modules(), devices.find(config.trainer.device))
    return built  # type: ignore[no-any-return]


def rewards(config: RunConfig) -> list[RewardTerm]:
    """Build the reward terms, in the config's order; each must accept what the policy makes.

    Those with worker processes have them started; `close` ends these.
    """
    with _at(config, "policy"):
        spec = registry.spec_of("policy", config.policy.use)
    makes = spec.makes if isinstance(spec, PolicySpec) else None
    terms: list[RewardTerm] = []
    try:
        for i, reward in enumerate(config.rewards):
            terms.append(_term(config, i, reward, makes))
    except BaseException:
        close(terms)
        raise
    return terms


def close(terms: Sequence[RewardTerm]) -> None:
    """End what rewards hold elsewhere, such as worker processes."""
    for term in terms:
        if isinstance(term.reward, Submits):
            term.reward.close()


def _term(config: RunConfig, index: int, reward: RewardConfig, makes: str | None) -> RewardTerm:
    with _at(config, "rewards", index), _own_keys_named():
        _check_accepts(reward.use, makes, config.policy.use)
        built: Any
        if reward.workers:
            built = PooledReward(reward.use, reward.params, workers=reward.workers, timeout=reward.reward_timeout)
            built.start()
        else:
            built = registry.create("reward", reward.use, reward.params)
            if not isinstance(built, Submits):
                _check_callable("reward", reward.use, built, "samples")
    return RewardTerm(
        name=reward.name or reward.use.rpartition(":")[2],
        reward=built,
        **{name: getattr(reward, name) for name in meanings(RewardSettings)},
    )


def _check_accepts(use: str, makes: str | None, policy: str) -> None:
    """Hold what a reward accepts against what the policy makes, as far as plugins say so."""
    spec = registry.spec_of("reward", use)
    if isinstance(spec, RewardSpec) and makes is not None and makes not in spec.accepts:
        others = sorted(s.name for _, s in registry.installed("reward") if makes in getattr(s, "accepts", ()))
        raise ConfigError(
            f"The reward '{use}' scores {_several(spec.accepts)}, but the policy '{policy}' makes {_several([makes])}. "
            f"Installed rewards for these: {', '.join(others) or 'none'}."
        )


@contextmanager
def _own_keys_named() -> Iterator[None]:
    """Where a reward lacks a parameter, a key of the config may have been meant."""
    try:
        yield
    except PluginError as error:
        unknown = re.search(r"has no parameter '([^']*)'", str(error))
        if unknown is None:
            raise
        keys = RewardConfig.model_fields
        raise PluginError(f"{error} Keys of every reward: {', '.join(keys)}{nearest(unknown[1], keys)}.") from error


def _several(kinds: Iterable[str]) -> str:
    return " or ".join(kind if kind.endswith("s") else f"{kind}s" for kind in sorted(kinds))


def _check_callable(kind: str, name: str, built: Any, arguments: str) -> None:
    if not callable(built):
        raise PluginError(
            f"The {kind} '{name}' gave something of type {type(built).__name__}; expected a function, or an object "
            f"that can be called with {arguments}."
        )


def prompts(config: RunConfig) -> tuple[PromptSequence, PromptSequence | None]:
    """Read the training prompts and the held-out ones (None where the config names none)."""
    source = config.data
    train = _train_prompts(config)
    if source.eval_fraction is not None:
        with _at(config, "data", "eval_fraction"):
            return data.hold_out(train, source.eval_fraction, config.seed)
    return train, _eval_prompts(config)


def _train_prompts(config: RunConfig) -> PromptSequence:
    source = config.data
    if source.prompts is not None:
        with _at(config, "data", "prompts"):
            return data.read_text(
                Path(source.prompts),
                targets=_path(source.targets),
                images=_path(source.images),
                max_pixels=_max_pixels(config),
            )
    if source.jsonl is not None:
        with _at(config, "data", "jsonl"):
            return data.read_jsonl(Path(source.jsonl), max_pixels=_max_pixels(config))
    if source.dataset is not None:
        with _at(config, "data", "dataset"):
            return data.read_dataset(
                source.dataset, split=source.split, columns=source.columns, max_pixels=_max_pixels(config)
            )
    return _from_function(config, "train")


def _eval_prompts(config: RunConfig) -> PromptSequence | None:
    source = config.data
    if source.eval_prompts is not None:
        with _at(config, "data", "eval_prompts"):
            return data.read_text(
                Path(source.eval_prompts),
                targets=_path(source.eval_targets),
                images=_path(source.eval_images),
                max_pixels=_max_pixels(config),
            )
    if source.eval_jsonl is not None:
        with _at(config, "data", "eval_jsonl"):
            return data.read_jsonl(Path(source.eval_jsonl), max_pixels=_max_pixels(config))
    if source.eval_split is not None and source.dataset is not None:
        with _at(config, "data", "eval_split"):
            return data.read_dataset(
                source.dataset, split=source.eval_split, columns=source.columns, max_pixels=_max_pixels(config)
            )
    return _from_function(config, "eval") if source.use is not None else None


def _from_function(config: RunConfig, split: str) -> PromptSequence:
    use = config.data.use
    assert use is not None
    with _at(config, "data", "use"):
        made = registry.call(use, {"split": split, **(config.data.model_extra or {})}, what="data source")
        with registry.explained(f"The data source '{use}' failed while it gave prompts for split '{split}'"):
            prompts = data.as_prompts(made, source=f"{use}, split '{split}'")  # which may come one by one
        if not prompts:
            raise DataError(f"The data source '{use}' gave no prompts for split '{split}'.")
    return prompts


def _max_pixels(config: RunConfig) -> int:
    return config.data.max_pixels or MAX_PIXELS


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)


def trainer(
    config: RunConfig, policy: Policy, rewards: list[RewardTerm], prompts: Sequence[Prompt], folder: Path
) -> Trainer:
    """Build the trainer."""
    return Trainer(
        policy,
        rewards,
        prompts,
        seed=config.seed,
        advantage=advantage(config, rewards),
        objective=objective(config),
        correction=correction(config),
        trackers=config.run.trackers,
        folder=folder,
        **{name: getattr(config.trainer, name) for name in meanings(TrainerSettings)},
    )


def advantage(config: RunConfig, rewards: Sequence[RewardTerm]) -> AdvantageFn:
    """Build the advantage function, and try it on numbers in the shapes of training: it checks its parameters there."""
    given = config.trainer.advantage
    name = given if isinstance(given, str) else given.use
    with _at(config, "trainer", "advantage"):
        built: AdvantageFn = _component("advantage", given, {})
        _check_callable("advantage", name, built, "rewards, weights and groups")
        groups = torch.arange(2).repeat_interleave(config.trainer.group_size)
        weights = torch.tensor([r.weight for r in rewards if not r.monitor], dtype=torch.float64)
        scores = torch.arange(float(len(groups) * len(weights))).reshape(len(groups), -1).double()
        with registry.explained(f"The advantage '{name}' cannot work"):
            built(scores, weights, groups)
    return built


def objective(config: RunConfig) -> Objective:
    """Build the objective."""
    t = config.trainer
    with _at(config, "trainer", "objective"):
        built = _component("objective", t.objective, t.flat_objective)
        if not isinstance(built, Objective):
            raise PluginError(
                f"The objective '{t.objective if isinstance(t.objective, str) else t.objective.use}' gave something of "
                f"type {type(built).__name__}; expected a grpokit.Objective."
            )
    return built


def correction(config: RunConfig) -> Correction | None:
    """The importance weights that the config sets."""
    chosen = config.trainer.correction
    return None if chosen is None else Correction(**{name: getattr(chosen, name) for name in meanings(Correction)})


def _component(kind: str, given: str | Component, flat: dict[str, Any]) -> Any:
    if isinstance(given, str):
        return registry.create(kind, given, flat)
    twice = sorted(set(given.params) & set(flat))
    if twice:
        raise ConfigError(f"'{twice[0]}' stands both in trainer and in trainer.{kind}; keep one.")
    return registry.create(kind, given.use, {**flat, **given.params})
