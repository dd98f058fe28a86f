"""Checks of a component by its name, for `grpokit check`: the component is built as a run builds it.

Where a preset uses a policy, the checks use the preset's parameters and prompts. A policy that no preset uses needs
prompts. A reward scores the examples of its spec, built-in samples, or samples of prompts. Others need nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from grpokit import registry
from grpokit.config import presets
from grpokit.config.schema import RunConfig
from grpokit.data import check_prompts
from grpokit.errors import GrpokitError, UsageError
from grpokit.guards.observer import Observer
from grpokit.objectives import Objective
from grpokit.policy import Policy
from grpokit.registry.columns import ColumnReward
from grpokit.registry.specs import API, EvaluationSpec, PresetSpec
from grpokit.rewards.submission import Submits
from grpokit.runs import build
from grpokit.training.contract import missing_methods
from grpokit.training.modifier import Modifier
from grpokit.types import Prompt
from grpokit_check import (
    Check,
    LadderReport,
    advantage_checks,
    command_checks,
    dataset_checks,
    evaluation_checks,
    ladder,
    modifier_checks,
    objective_checks,
    observer_checks,
    policy_checks,
    preset_checks,
    reward_checks,
    world_checks,
)
from grpokit_check.reward.examples import accepted, samples_of, with_stand_ins

KINDS = (
    *("policy", "reward", "advantage", "objective", "modifier", "observer"),
    *("preset", "evaluation", "world", "dataset", "command"),
)
"""The kinds of components that can be checked."""


def kind_of(name: str, kind: str | None) -> str:
    """The kind of the component called `name`, one of `KINDS`.

    Many a preset has the name of its policy, and a dataset that of its reward, which are meant then. Behind a name as
    "package.module:Name" the class decides: that of a modifier, an objective, an observer or a policy. Anything else
    is a reward.

    Raises:
        UsageError: no such name, module or attribute, or several kinds have it.
    """
    if kind not in (None, *KINDS):
        raise UsageError(f"--kind must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got '{kind}'.")
    kinds = [kind] if kind else [k for k in KINDS if registry.named(k, name)]
    kinds += ["observer"] if kind is None and name in registry.observers() else []
    if kinds in (["policy", "preset"], ["reward", "dataset"]):
        kinds = kinds[:1]
    if len(kinds) > 1:
        options = " or ".join(f"--kind {k}" for k in kinds)
        raise UsageError(f"Several components are called '{name}' ({', '.join(kinds)}): add {options}.")
    if kinds:
        return kinds[0]
    if registry.named("placement", name):
        raise UsageError(
            f"'{name}' is a placement of rewards, and those have no checks. Checked are: {', '.join(KINDS)}."
        )
    if not registry.is_path(name):
        raise registry.unknown(name, *KINDS)
    target = registry.resolve(name)
    if not isinstance(target, type):
        return "reward"
    bases = {"modifier": Modifier, "objective": Objective, "observer": Observer, "policy": Policy}
    for own, base in bases.items():
        if base in target.__mro__:
            return own
    return "reward" if missing_methods(target) else "policy"


def of_component(kind: str, name: str, params: dict[str, Any]) -> Iterable[Check]:
    """The checks of a component that needs no data: of all kinds but policies and rewards.

    Raises:
        UsageError: it cannot be built with these parameters.
    """
    spec, module = _announced(kind, name)
    build = functools.partial(registry.create, kind, name, params)
    match kind:
        case "advantage":
            return advantage_checks(build(), module=module)
        case "objective":
            return objective_checks(build(), module=module)
        case "modifier":
            build()
            return modifier_checks(build, module=module)
        case "preset":
            return preset_checks(spec or PresetSpec(name=name, factory=name, api=API), module=module)
        case "evaluation":
            return evaluation_checks(spec or EvaluationSpec(name=name, factory=name, api=API), module=module)
        case "world":
            build()
            return world_checks(build, module=module)
        case "dataset":
            dataset = functools.partial(registry.create, kind, name)
            dataset({**params, "split": "train"})
            return dataset_checks(lambda split: dataset({**params, "split": split}), module=module)
        case "command":
            path = spec.factory if spec else name
            return command_checks(registry.resolve(path, f"command '{name}'"), spec=spec, module=module)
    if name in registry.observers():
        return observer_checks(lambda: registry.observers()[name])
    return observer_checks(lambda: registry.call(name, params, what="observer"))


def of_policy(name: str, params: dict[str, Any], prompts: Sequence[Prompt] | None) -> Iterable[Check]:
    """The checks of a policy.

    Without prompts, the first three of a preset that uses it are drawn for.

    Raises:
        UsageError: no prompts and no preset, or prompts that the policy cannot read.
    """
    if prompts is None:
        config = _preset_of(name)
        if config is None:
            raise UsageError(
                f"No preset uses the policy '{name}', so give prompts that it can read: --prompt or --prompts."
            )
        params = config.policy.params | params
        prompts = build.prompts(config)[0][:3]
    policy = registry.create("policy", name, params)
    if isinstance(policy, Mapping):
        raise UsageError(
            f"'{name}' gives several policies ({', '.join(policy)}), but a check needs one. Check each by its own "
            "name, or by `package.module:function`."
        )
    check_prompts(policy, prompts)
    spec, module = _announced("policy", name)
    return policy_checks(
        lambda: registry.create("policy", name, params),
        prompts,
        makes=spec.makes if spec else "",
        module=module,
    )


@contextmanager
def of_reward(
    name: str, params: dict[str, Any], prompts: Sequence[Prompt] | None = None
) -> Iterator[tuple[Iterable[Check], Callable[[], LadderReport]]]:
    """The checks of a reward, on the examples of its spec or on built-in samples; with prompts, on samples of these.

    Among the parameters, `placement` says where it runs, as in a config.

    Yields:
        The checks, and the report of the ladders that some of them read, measured once. A reward that scores elsewhere
        is closed at the end.
    """
    spec, module = _announced("reward", name)
    params = dict(params)
    placement = params.pop("placement", None)
    reward = registry.place(name, params, placement) if placement else registry.create("reward", name, params)
    score = reward
    if isinstance(reward, ColumnReward) and spec is None:
        score = with_stand_ins(reward, prompts[0].meta if prompts else {})
    samples = samples_of(prompts, spec.accepts if spec else accepted(score)) if prompts else None
    report = functools.cache(lambda: ladder(score, spec=spec))
    try:
        yield reward_checks(score, samples, spec=spec, params=params, module=module, ladder=report), report
    finally:
        if isinstance(reward, Submits):
            reward.close()


def _preset_of(policy: str) -> RunConfig | None:
    """The config of the first preset that uses a policy, or None."""
    for _, spec in registry.installed("preset"):
        if isinstance(spec, PresetSpec) and spec.fetches:
            continue
        try:
            config = presets.preset(spec)
        except GrpokitError:  # the check is not about this preset
            continue
        if registry.lasting("policy", config.policy.use) == registry.lasting("policy", policy):
            return config
    return None


def _announced(kind: str, name: str) -> tuple[Any, str | None]:
    """The spec of a plugin's component, and the module behind the plugin's entry point; None for any other."""
    if not registry.named(kind, name):
        return None, None
    plugin, spec = registry.find(kind, name)
    return spec, plugin.module
