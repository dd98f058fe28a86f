"""grpokit: post-train image generators, and any other stochastic generator, with GRPO.

The names below are the public interface. They are imported on first use, so `import grpokit` costs nothing and
does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpokit._lazy import lazy

__version__ = "0.1.0"

_HOME = {
    "errors": [
        "CheckpointError",
        "ConfigError",
        "DataError",
        "GrpokitError",
        "PluginError",
        "RewardError",
        "RunError",
        "UsageError",
    ],
    "registry.hookspecs": ["hookimpl"],
    "registry.specs": [
        "AdvantageSpec",
        "Asset",
        "CommandSpec",
        "EvaluationSpec",
        "ModifierSpec",
        "ObjectiveSpec",
        "PlacementSpec",
        "PolicySpec",
        "PresetSpec",
        "RewardSpec",
        "WorldSpec",
    ],
    "types": ["Ask", "PendingRollout", "Prompt", "Rollout", "Sample", "Seeds", "Decisions", "Trace"],
    "policy": ["Policy"],
    "reference": ["adapter_off", "frozen_copy", "swapped"],
    "registry": ["create"],
    "rewards.submission": ["Pending", "Portion", "Submits"],
    "rewards.terms": ["RewardTerm"],
    "rewards.worker_pool": ["PooledReward"],
    "settings": ["Correction"],
    "objectives": ["Objective"],
    "guards.observer": ["Observer"],
    "training.step": ["LearningStep", "Step"],
    "training.modifier": ["Modifier", "TrainerSetup"],
    "training.minibatches": ["Batch", "Signal"],
    "training.metrics": ["Tally"],
    "processes.team": ["Team"],
    "tracking.step_report": ["StepReport"],
    "trainer": ["Trainer"],
    "phases.phase": ["Phase"],
    "phases.phased_trainer": ["PhasedTrainer"],
    "evaluation.held_out": ["draw", "evaluate"],
    "runs.trained": ["load"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = ["__version__", *sorted(_MODULE_OF)]

if TYPE_CHECKING:
    from grpokit.errors import CheckpointError as CheckpointError
    from grpokit.errors import ConfigError as ConfigError
    from grpokit.errors import DataError as DataError
    from grpokit.errors import GrpokitError as GrpokitError
    from grpokit.errors import PluginError as PluginError
    from grpokit.errors import RewardError as RewardError
    from grpokit.errors import RunError as RunError
    from grpokit.errors import UsageError as UsageError
    from grpokit.evaluation.held_out import draw as draw
    from grpokit.evaluation.held_out import evaluate as evaluate
    from grpokit.guards.observer import Observer as Observer
    from grpokit.objectives import Objective as Objective
    from grpokit.phases.phase import Phase as Phase
    from grpokit.phases.phased_trainer import PhasedTrainer as PhasedTrainer
    from grpokit.policy import Policy as Policy
    from grpokit.processes.team import Team as Team
    from grpokit.reference import adapter_off as adapter_off
    from grpokit.reference import frozen_copy as frozen_copy
    from grpokit.reference import swapped as swapped
    from grpokit.registry import create as create
    from grpokit.registry.hookspecs import hookimpl as hookimpl
    from grpokit.registry.specs import AdvantageSpec as AdvantageSpec
    from grpokit.registry.specs import Asset as Asset
    from grpokit.registry.specs import CommandSpec as CommandSpec
    from grpokit.registry.specs import EvaluationSpec as EvaluationSpec
    from grpokit.registry.specs import ModifierSpec as ModifierSpec
    from grpokit.registry.specs import ObjectiveSpec as ObjectiveSpec
    from grpokit.registry.specs import PlacementSpec as PlacementSpec
    from grpokit.registry.specs import PolicySpec as PolicySpec
    from grpokit.registry.specs import PresetSpec as PresetSpec
    from grpokit.registry.specs import RewardSpec as RewardSpec
    from grpokit.registry.specs import WorldSpec as WorldSpec
    from grpokit.rewards.submission import Pending as Pending
    from grpokit.rewards.submission import Portion as Portion
    from grpokit.rewards.submission import Submits as Submits
    from grpokit.rewards.terms import RewardTerm as RewardTerm
    from grpokit.rewards.worker_pool import PooledReward as PooledReward
    from grpokit.runs.trained import load as load
    from grpokit.settings import Correction as Correction
    from grpokit.tracking.step_report import StepReport as StepReport
    from grpokit.trainer import Trainer as Trainer
    from grpokit.training.metrics import Tally as Tally
    from grpokit.training.minibatches import Batch as Batch
    from grpokit.training.minibatches import Signal as Signal
    from grpokit.training.modifier import Modifier as Modifier
    from grpokit.training.modifier import TrainerSetup as TrainerSetup
    from grpokit.training.step import LearningStep as LearningStep
    from grpokit.training.step import Step as Step
    from grpokit.types import Ask as Ask
    from grpokit.types import Decisions as Decisions
    from grpokit.types import PendingRollout as PendingRollout
    from grpokit.types import Prompt as Prompt
    from grpokit.types import Rollout as Rollout
    from grpokit.types import Sample as Sample
    from grpokit.types import Seeds as Seeds
    from grpokit.types import Trace as Trace

__getattr__, __dir__ = lazy(__name__, _MODULE_OF)
