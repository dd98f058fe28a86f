"""What `grpokit evaluate --taught` measures beside an evaluation's own rewards.

These are statistics, which describe outputs, and gold rewards, which judge them though nobody trained on them. All are
monitors, so the score of the evaluation stays what it was.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import registry
from grpokit.config.evaluation import EvaluationConfig
from grpokit.config.parts import RewardConfig
from grpokit.config.schema import RunConfig
from grpokit.data import PromptSequence
from grpokit.errors import DataError, GrpokitError, UsageError
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.isolation import torch_state_kept
from grpokit.runs import build, build_rewards

GROUPS = 16
"""How many of the prompts have a group drawn as in training."""

_ASKED = 64  # prompts that a gold reward must be able to score


def with_statistics(evaluation: EvaluationConfig, config: RunConfig, prompts: PromptSequence) -> EvaluationConfig:
    """An evaluation with all statistics of what a policy makes, and with gold rewards.

    Args:
        evaluation: names the gold rewards, or leaves them open: then they are those that are cheap.
        config: the policy's.
        prompts: the evaluation's.

    Raises:
        UsageError: no plugin says what the policy makes, or brings statistics of it, or a gold reward is wrong.
    """
    kind = build.output_kind(config)
    if kind is None:
        raise UsageError(f"--taught needs to know what '{config.policy.use}' makes, which its plugin's spec would say.")
    policy = config.policy.use.rpartition(":")[2]
    used = {registry.lasting("reward", reward.use) for reward in evaluation.rewards}
    statistics = list(_statistics(kind))
    if not statistics:
        raise UsageError(f"No installed plugin brings statistics of what '{policy}' makes, of the kind '{kind}'.")
    added = [_monitor(name) for name in statistics if name not in used]
    used |= {*statistics}
    if evaluation.gold is None:
        added += [_monitor(name) for name in _comparing(kind) if name not in used and _scores(name, prompts)]
    else:
        for gold in evaluation.gold:
            use, params = (gold, {}) if isinstance(gold, str) else (gold.use, gold.params)
            registry.check_accepts(use, kind, what=f"the policy '{policy}' makes")
            registry.parameters("reward", use, params)  # a wrong one is named here, since no line of a config has it
            if params or registry.lasting("reward", use) not in used:
                added.append(RewardConfig(use=use, weight=0.0, **params))
    taught = evaluation.model_copy(update={"rewards": [*evaluation.rewards, *added]})
    taught._source = None  # what is added stands in no line of a file
    return taught


def _monitor(name: str) -> RewardConfig:
    """A reward that is measured where it can be; what it raises costs its own scores."""
    return RewardConfig(use=name, weight=0.0, on_error="skip", skip_limit=1.0)


def _statistics(kind: str) -> Iterator[str]:
    """The names of the installed statistics of a kind of output."""
    for name, spec in _light_rewards(kind):
        if spec.statistic and _can_be_built(name):
            yield name


def _comparing(kind: str) -> Iterator[str]:
    """The names of the installed rewards that compare an output of a kind with what its prompt asks for."""
    for name, spec in _light_rewards(kind):
        if spec.unscorable and not spec.statistic and _can_be_built(name):
            yield name


def _light_rewards(kind: str) -> Iterator[tuple[str, RewardSpec]]:
    """The installed rewards of a kind of output that need no weights and no GPU."""
    for owned in registry.installed("reward"):
        spec = owned[1]
        if not isinstance(spec, RewardSpec) or kind not in spec.accepts:
            continue
        needed = [asset for asset in spec.assets if not asset.module]
        if not needed and not spec.gpu_memory:
            yield registry.lasting("reward", registry.full_name(owned)), spec


def _can_be_built(name: str) -> bool:
    """Whether a reward needs no parameter, and has all the packages that it imports."""
    try:
        registry.parameters("reward", name, {})
        with torch_state_kept():
            registry.create("reward", name)
    except GrpokitError:
        return False
    return True


def _scores(name: str, prompts: PromptSequence) -> bool:
    """Whether a reward can score the first prompts, as its plugin says."""
    alone = EvaluationConfig(rewards=[RewardConfig(use=name)])
    why = build_rewards.unscorable(alone, 0)
    assert why is not None
    try:
        return not any(why(prompts[i]) for i in range(min(_ASKED, len(prompts))))
    except DataError:  # the prompts have a target of another kind
        return False
