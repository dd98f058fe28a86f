"""Which phase comes next where a config says `order: auto`: that of the policy whose draws move the reward most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from grpokit import registry
from grpokit.config.phases import PhaseConfig
from grpokit.config.schema import RunConfig
from grpokit.errors import ConfigError
from grpokit.evaluation.attribution import Shares, attribute
from grpokit.policy import Policy
from grpokit.registry.specs import PolicySpec
from grpokit.rewards.scoring import RewardTerm
from grpokit.runs import build
from grpokit.types import Prompt

_PROMPTS = 16  # the most held-out prompts that a grid is drawn for


def chooser(
    config: RunConfig,
    policies: Mapping[str, Policy],
    terms: Sequence[RewardTerm],
    held_out: Sequence[Prompt] | None,
    *,
    found: Callable[[Mapping[str, Shares], tuple[str, str], str], None] = lambda shares, causes, phase: None,
) -> Callable[[], str] | None:
    """A function that gives the name of the next phase; None with `order: listed`.

    Args:
        config: the run's.
        policies: by name; the first one draws the samples.
        terms: the run's rewards.
        held_out: prompts, of which the first are drawn for.
        found: gets the shares of each reward's variance, what rows and what groups draw, and the name of the phase.

    Raises:
        ConfigError: there are no held-out prompts, or it is not known which policy makes which draws.
    """
    if config.order != "auto":
        return None
    where = config.place("order")
    if held_out is None:
        raise ConfigError(
            f"{where}auto compares the policies on held-out prompts, and the config names none: give "
            "data.eval_prompts, data.eval_jsonl or data.eval_fraction."
        )
    if "" in policies:
        raise ConfigError(f"{where}auto chooses between policies, and '{config.policy.use}' gives a single one.")
    spec = registry.spec_of("policy", config.policy.use)
    row, group = (spec.row_draws, spec.group_draws) if isinstance(spec, PolicySpec) else ("not known", "not known")
    phases = _by_policy(config, list(policies), where)
    if {row, group} != set(phases):
        raise ConfigError(
            f"{where}auto needs a phase for each of two policies, and a plugin that says which of them draws what: "
            f"row_draws and group_draws of its PolicySpec are '{row}' and '{group}', and there are phases for "
            f"{', '.join(map(repr, phases))}."
        )
    prompts = held_out[:_PROMPTS]

    def choose() -> str:
        shares = attribute(
            build.drawing(policies),
            terms,
            prompts,
            seed=config.seed,
            mixed_precision=config.trainer.mixed_precision,
        )
        total = shares["reward"]
        phase = phases[row if total.row >= total.group else group].name
        found(shares, (row, group), phase)
        return phase

    return choose


def _by_policy(config: RunConfig, policies: Sequence[str], where: str) -> Mapping[str, PhaseConfig]:
    """Policy -> its phase.

    Raises:
        ConfigError: a policy has two phases.
    """
    phases: dict[str, PhaseConfig] = {}
    for phase, _ in config.phased(policies):
        name = phase.policy or ""
        other = phases.setdefault(name, phase)
        if other is not phase:
            raise ConfigError(
                f"{where}auto chooses between policies, and the phases '{other.name}' and '{phase.name}' train the "
                "same one. Leave one out, or list the phases in their order with order: listed."
            )
    return phases
