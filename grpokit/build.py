"""From a config to the objects that train: policy, prompts, rewards, trainer.

Everything is found by name through the registry; the config's flat keys go to the factories as they are.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpokit import config as configs
from grpokit import data, registry
from grpokit.config import Component, DataConfig, RewardConfig, RunConfig
from grpokit.errors import ConfigError, DataError, PluginError
from grpokit.policy import Policy, missing_methods
from grpokit.reward import RewardTerm
from grpokit.trainer import Trainer
from grpokit.types import Prompt


def read_config(source: str, overrides: Sequence[str] = ()) -> tuple[RunConfig, str]:
    """Read a preset, a file or a run folder; returns the config and a short name for it.

    Raises:
        ConfigError: neither a preset nor a file, or the config is wrong.
    """
    path = Path(source)
    if (path / "config.yaml").is_file():
        return configs.load(path / "config.yaml", [*overrides, f"run.dir={path}"]), path.resolve().name
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return configs.load(path, overrides), path.stem
    try:
        _, spec = registry.find("preset", source)
    except PluginError as error:
        raise ConfigError(f"{error} A config file would end in .yaml.") from error
    package, _, inside = spec.factory.partition(":")
    try:
        text = importlib.resources.files(package).joinpath(inside).read_text(encoding="utf-8")
    except (ModuleNotFoundError, OSError) as error:
        raise PluginError(f"Preset '{source}' should be the file {inside} in package {package}: {error}.") from error
    return configs.parse(text, f"preset {source}", overrides), spec.name


def policy(config: RunConfig) -> Policy:
    """Build the policy."""
    built = registry.create("policy", config.policy.use, config.policy.params)
    missing = missing_methods(built)
    if missing:
        raise PluginError(f"Policy '{config.policy.use}' lacks {', '.join(missing)} of the policy contract.")
    return built  # type: ignore[no-any-return]


def rewards(config: RunConfig) -> list[RewardTerm]:
    """Build the reward terms, in the config's order."""
    return [_term(reward) for reward in config.rewards]


def _term(reward: RewardConfig) -> RewardTerm:
    return RewardTerm(
        name=reward.name or reward.use.rpartition(":")[2],
        reward=registry.create("reward", reward.use, reward.params),
        weight=reward.weight,
        on_error=reward.on_error,
        skip_limit=reward.skip_limit,
    )


def prompts(config: RunConfig) -> tuple[Sequence[Prompt], Sequence[Prompt] | None]:
    """Read the training prompts and the held-out ones (None where the config names none)."""
    source = config.data
    train = _train_prompts(source)
    if source.eval_fraction is not None:
        return data.hold_out(train, source.eval_fraction, config.seed)
    return train, _eval_prompts(source)


def _train_prompts(source: DataConfig) -> Sequence[Prompt]:
    if source.prompts is not None:
        return data.read_text(Path(source.prompts), targets=_path(source.targets), images=_path(source.images))
    if source.jsonl is not None:
        return data.read_jsonl(Path(source.jsonl))
    if source.dataset is not None:
        return data.read_dataset(source.dataset, split=source.split, columns=source.columns)
    return _from_function(source, "train")


def _eval_prompts(source: DataConfig) -> Sequence[Prompt] | None:
    if source.eval_prompts is not None:
        return data.read_text(
            Path(source.eval_prompts), targets=_path(source.eval_targets), images=_path(source.eval_images)
        )
    if source.eval_jsonl is not None:
        return data.read_jsonl(Path(source.eval_jsonl))
    if source.eval_split is not None:
        if source.dataset is None:
            raise ConfigError("data.eval_split names a split of data.dataset, but there is no dataset.")
        return data.read_dataset(source.dataset, split=source.eval_split, columns=source.columns)
    return _from_function(source, "eval") if source.use is not None else None


def _from_function(source: DataConfig, split: str) -> Sequence[Prompt]:
    assert source.use is not None
    made = registry.call(source.use, {"split": split, **(source.model_extra or {})}, what="data source")
    prompts = data.as_prompts(made)
    if not prompts:
        raise DataError(f"The data source '{source.use}' gave no prompts for split '{split}'.")
    return prompts


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)


def trainer(
    config: RunConfig, policy: Policy, rewards: list[RewardTerm], prompts: Sequence[Prompt], folder: Path
) -> Trainer:
    """Build the trainer."""
    t = config.trainer
    shared = ("ratio", "clip_range", "clip_range_high", "kl", "kl_coef", "entropy_coef")
    flat = {name: getattr(t, name) for name in shared if name in t.model_fields_set}
    numbers = t.model_dump(exclude={"advantage", "objective", *shared})
    return Trainer(
        policy,
        rewards,
        prompts,
        seed=config.seed,
        advantage=_component("advantage", t.advantage, {}),
        objective=_component("objective", t.objective, flat),
        trackers=config.run.trackers,
        folder=folder,
        **numbers,
    )


def _component(kind: str, given: str | Component, flat: dict[str, Any]) -> Any:
    if isinstance(given, str):
        return registry.create(kind, given, flat)
    twice = sorted(set(given.params) & set(flat))
    if twice:
        raise ConfigError(f"'{twice[0]}' stands both in trainer and in trainer.{kind}; keep one.")
    return registry.create(kind, given.use, {**flat, **given.params})
