"""From a config to the objects that train: policy, prompts, rewards, trainer.

Everything is found by name through the registry; the config's flat keys go to the factories as they are. A mistake
is reported with its place in the config, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch

from grpokit import data, registry
from grpokit.advantages import AdvantageFn, compute
from grpokit.config.evaluation import EvaluationConfig
from grpokit.config.parts import Component, PhaseConfig, PromptSource
from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence
from grpokit.errors import ConfigError, DataError, PluginError, UsageError, nearest
from grpokit.files import PLAIN_NAME, is_plain_name
from grpokit.images import MAX_PIXELS
from grpokit.objectives import Objective
from grpokit.phases.phase import Phase
from grpokit.phases.phased_trainer import PhasedTrainer
from grpokit.policy import Policy, optional
from grpokit.registry.specs import PolicySpec
from grpokit.rewards.terms import RewardTerm
from grpokit.settings import TrainerSettings
from grpokit.trainer import Trainer
from grpokit.training import devices
from grpokit.training.contract import missing_methods
from grpokit.training.modifier import Modifier
from grpokit.types import Prompt


def device_name(config: RunConfig) -> str:
    """Where a run computes, as `trainer.device` says it, else the policy's own `device`: "auto", "cpu" or "cuda"."""
    named = config.trainer.device
    return named if named != "auto" else config.policy.params.get("device") or "auto"


def policies(config: RunConfig) -> dict[str, Policy]:
    """Build what `policy` names, on the run's device: one policy, which is called "", or several over one model."""
    place = device_name(config)
    with config.at("policy"):
        loads_itself = place != "auto" and "device" in registry.declared_parameters("policy", config.policy.use)[0]
        parameters = config.policy.params
        if loads_itself:
            parameters["device"] = place
        built = registry.create("policy", config.policy.use, parameters)
        several: dict[str, Policy] = dict(built) if isinstance(built, Mapping) else {"": built}
        if isinstance(built, Mapping) and not (several and all(map(is_plain_name, several))):
            raise PluginError(
                f"The factory of policy '{config.policy.use}' gave policies called {list(several)}; expected names of "
                f"{PLAIN_NAME}."
            )
        for name, one in several.items():
            methods = missing_methods(one)
            if methods:
                raise PluginError(
                    f"The policy '{name or config.policy.use}' lacks {', '.join(methods)} of the policy contract "
                    f"(it is of type {type(one).__name__})."
                )
    with config.at("trainer", "device"):
        for one in several.values():
            devices.place(one.modules(), devices.find_device(place))
    return several


def check_components(config: RunConfig) -> None:
    """Refuse names that no installed plugin has and parameters that a component does not take; no weights are read.

    Raises:
        UsageError: with the place of the name in the config.
    """
    with config.at("policy"):
        registry.parameters("policy", config.policy.use, config.policy.params)
    for _, own in config.phased():
        for place, reward in enumerate(own.rewards):
            with own.at("rewards", place):
                elsewhere, _ = registry.placement_of(reward.use, reward.placement or {})
                if not elsewhere:  # where what it imports may be installed alone
                    registry.parameters("reward", reward.use, reward.params)
        objective(own)
        advantage(own)
        modifiers(own)


def policy(config: RunConfig) -> Policy:
    """Build the policy that draws samples for evaluations: the only one, or the first of several."""
    return evaluation_policy(policies(config))


def evaluation_policy(policies: Mapping[str, Policy]) -> Policy:
    """The policy that draws samples for evaluations."""
    return next(iter(policies.values()))


def _policy_spec(config: RunConfig) -> PolicySpec | None:
    with config.at("policy"):
        spec = registry.spec_of("policy", config.policy.use)
    return spec if isinstance(spec, PolicySpec) else None


def output_kind(config: RunConfig) -> str | None:
    """The kind of output that the policy makes, where a plugin says it."""
    spec = _policy_spec(config)
    return None if spec is None else spec.makes


def picture_size(config: RunConfig) -> tuple[int, int] | None:
    """(height, width) of the pictures that a policy makes, where its plugin has the parameter `size`."""
    if _policy_spec(config) is None:
        return None
    with config.at("policy"):
        size = registry.parameters("policy", config.policy.use, config.policy.params).get("size")
    return (size[0], size[1]) if isinstance(size, (list, tuple)) and len(size) == 2 else None


def check_readable(config: RunConfig, *sequences: Sequence[Prompt] | None) -> None:
    """Let the policy's plugin refuse prompts before the policy is built and its weights are read, where it can."""
    spec = _policy_spec(config)
    if spec is None or not spec.reader:
        return
    with config.at("policy"):
        parameters = registry.parameters("policy", config.policy.use, config.policy.params)
        reader = registry.call(spec.reader, {"parameters": parameters}, what="reader")
    for prompts in sequences:
        if prompts is not None:
            sequence = data.as_prompts(prompts)
            data.check_prompts(reader, sequence)
            sequence.checked = True


def check_built(kind: str, name: str, built: Any, expected: str, *, fits: bool) -> None:
    """Make sure that a factory gave a component of its kind."""
    if not fits:
        raise PluginError(
            f"The factory of {kind} '{name}' returned an object of type {type(built).__name__}; expected {expected}."
        )


def prompts(config: RunConfig) -> tuple[PromptSequence, PromptSequence | None]:
    """Read the training prompts and the held-out ones (None where the config names none)."""
    train = _read(config, config.data)
    assert train is not None  # the config's schema asks for one source
    if config.eval.fraction is not None:
        with config.at("eval", "fraction"):
            return data.hold_out(train, config.eval.fraction, config.seed)
    return train, _read(config, config.eval)


def evaluation_prompts(evaluation: EvaluationConfig) -> PromptSequence | None:
    """The prompts of an evaluation, those that a function holds out; None where it names none."""
    source = evaluation.data
    if source is None:
        return None
    if source.use is not None:
        return _from_function(evaluation, source.use, "eval")
    return _read(evaluation, source)


def _read(config: RunConfig | EvaluationConfig, source: PromptSource) -> PromptSequence | None:
    """The prompts that `data` or `eval` of a config names; None where it names none."""
    d = config.data
    assert d is not None
    group, key, split = ("data", "dataset", "train") if source is d else ("eval", "split", "eval")
    limit = d.max_pixels or MAX_PIXELS
    if source.prompts is not None:
        with config.at(group, "prompts"):
            return data.read_prompts(
                source.prompts,
                columns=d.columns,
                targets=_path(source.targets),
                images=_path(source.images),
                max_pixels=limit,
            )
    if d.dataset is not None and source.split is not None:
        with config.at(group, key):
            return data.read_dataset(
                d.dataset, subset=d.subset, split=source.split, columns=d.columns, max_pixels=limit
            )
    return None if d.use is None else _from_function(config, d.use, split)


def _from_function(config: RunConfig | EvaluationConfig, use: str, split: str) -> PromptSequence:
    options = config.data.model_extra if config.data else None
    with config.at("data", "use"):
        items = registry.create("dataset", use, {"split": split, **(options or {})})
        with registry.explained(f"The dataset '{use}' failed while giving prompts for split '{split}'"):
            prompts = data.as_prompts(items, source=f"{use}, split '{split}'")  # which may come one by one
        if not prompts:
            raise DataError(f"The dataset '{use}' gave no prompts for split '{split}'.")
    return prompts


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


def trainer(
    config: RunConfig,
    policies: Mapping[str, Policy],
    rewards: list[RewardTerm],
    prompts: Sequence[Prompt],
    *,
    own_rewards: Mapping[str, list[RewardTerm]] | None = None,
) -> PhasedTrainer:
    """Build the trainer of a run: of its phases, or of the only one, which is called "".

    Args:
        config: the run's.
        policies: as `policies` gives them.
        rewards: the run's terms.
        prompts: the training prompts.
        own_rewards: by name, the terms of those phases that have their own.
    """
    phases: list[Phase] = []
    for place, (phase, own) in enumerate(config.phased()):
        terms = (own_rewards or {}).get(phase.name, rewards)
        named = _policy_of(config, place, phase, policies)
        settings: dict[str, Any] = {each.name: getattr(own.trainer, each.name) for each in fields(TrainerSettings)}
        settings |= {"advantage": advantage(own), "objective": objective(own), "device": device_name(own)}
        settings |= {"modifiers": modifiers(own)}
        with config.at("phases", place) if config.phases else nullcontext():
            built = Trainer(
                policies[named],
                terms,
                prompts,
                seed=Phase.seed(config.seed, place) if phase.name else config.seed,
                sharding=config.run.sharding,
                observers=registry.observers(),
                **settings,
            )
        phases.append(Phase(name=phase.name, trainer=built, steps=phase.steps, policy=named))
    read = {own.policy for own in phases if own.trainer.needs_reference}
    unread = {own.policy for own in phases} - read
    if any(optional(policies[name], "reference_moves") for name in unread):
        raise UsageError(
            f"{config.place('trainer', 'kl_coef')}the policy's reference moves, and no KL reads it, as kl_coef is 0. "
            "Raise kl_coef, or leave out what moves the reference, such as reference_ema."
        )
    if any(optional(policies[name], "reference_teaches") for name in unread):
        raise UsageError(
            f"{config.place('trainer', 'kl_coef')}the policy has a teacher, and nothing reads it, as kl_coef is 0. Set "
            "trainer.objective=opd, raise kl_coef, or leave out teachers and reference_guidance."
        )
    return PhasedTrainer(phases, rounds=config.rounds)


def _policy_of(config: RunConfig, place: int, phase: PhaseConfig, policies: Mapping[str, Policy]) -> str:
    """The name of the policy that learns in a phase.

    Raises:
        ConfigError: it names none of several, or one that does not exist.
    """
    named = phase.policy or ""
    if named in policies and (named or phase.policy is None):
        return named
    where = config.place("phases", place, "policy") if phase.name else config.place("policy")
    problem = f"there is no policy '{named}'{nearest(named, policies)}" if named else "no policy is named"
    gives = "one policy; leave the key out" if "" in policies else f"the policies {', '.join(policies)}"
    raise ConfigError(
        f"{where}{problem}: '{config.policy.use}' gives {gives}. Phases say which of several learns when, as in "
        "phases: [{name: ..., policy: ..., steps: ...}].",
        page="configs#phases",
    )


def advantage(config: RunConfig) -> AdvantageFn:
    """Build the advantage function, and try it on numbers in the shapes of training: it checks its parameters there."""
    with config.at("trainer", "advantage"):
        name, built = _component("advantage", config.trainer.advantage)
        expected = "a function, or an object that can be called with rewards, weights and groups"
        check_built("advantage", name, built, expected, fits=callable(built))
        groups = torch.arange(2).repeat_interleave(config.trainer.group_size)
        weights = torch.tensor([r.weight for r in config.rewards if r.weight], dtype=torch.float64)
        if not len(weights):
            return cast(AdvantageFn, built)
        scores = torch.arange(float(len(groups) * len(weights))).reshape(len(groups), -1).double()
        with registry.explained(f"The advantage '{name}' fails on a trial batch"):
            compute(built, scores, weights, groups, scores[:, :1])
    return cast(AdvantageFn, built)


def objective(config: RunConfig) -> Objective:
    """Build the objective."""
    with config.at("trainer", "objective"):
        name, built = _component("objective", config.trainer.objective, config.trainer.flat_objective)
        check_built("objective", name, built, "a grpokit.Objective", fits=isinstance(built, Objective))
    learner = cast(Objective, built)
    if learner.needs_advantages and not any(reward.weight for reward in config.rewards):
        what = "every reward has weight 0, so all are monitors" if config.rewards else "there is no reward"
        raise ConfigError(
            f"{config.place('rewards')}{what}, and objective '{name}' learns from rewards. Give one a weight."
        )
    return learner


def modifiers(config: RunConfig) -> list[Modifier]:
    """Build the modifiers, in their order."""
    built = []
    for place, setting in enumerate(config.trainer.modifiers):
        with config.at("trainer", "modifiers", place):
            name, modifier = _component("modifier", setting)
            check_built("modifier", name, modifier, "a grpokit.Modifier", fits=isinstance(modifier, Modifier))
            built.append(modifier)
    return built


def _component(kind: str, setting: str | Component, flat: Mapping[str, Any] | None = None) -> tuple[str, Any]:
    """The name of a component, and what its factory gives with its own parameters and those that stand flat."""
    component = Component(use=setting) if isinstance(setting, str) else setting
    parameters = dict(flat or {})
    twice = sorted(parameters.keys() & component.params)
    if twice:
        raise ConfigError(f"'{twice[0]}' is set both in trainer and in trainer.{kind}; keep one.")
    return component.use, registry.create(kind, component.use, parameters | component.params)
