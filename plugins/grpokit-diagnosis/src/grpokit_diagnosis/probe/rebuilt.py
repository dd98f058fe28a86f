"""The parts of a run, built again from its config, with the weights of one of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from grpokit import Policy, Prompt, RewardTerm, Trainer, draw
from grpokit.config.schema import RunConfig
from grpokit.policy import optional
from grpokit.rewards.scoring import Scores, score_samples
from grpokit.rewards.terms import as_terms
from grpokit.runs import build, build_rewards
from grpokit.training import checkpoint
from grpokit.types import Sample


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """A run's parts.

    Attributes:
        config: of the phase that is looked at.
        completed: steps of all phases that the weights have behind them.
        policies: of all phases, over one model; the first one draws for evaluations.
        trainer: of that phase, with the weights and the optimizer of the checkpoint. Its learning rate is the peak.
        evaluated: the rewards of evaluations, without monitors.
        held_out: prompts that are not trained on; the training prompts where the run has no others.
    """

    config: RunConfig
    completed: int
    policies: Mapping[str, Policy]
    trainer: Trainer
    evaluated: Sequence[RewardTerm]
    held_out: Sequence[Prompt]

    @property
    def policy(self) -> Policy:
        """The policy that learns."""
        return self.trainer.policy

    @property
    def terms(self) -> Sequence[RewardTerm]:
        """The rewards that the phase learns from."""
        return [term for term in self.trainer.terms if term.weight]

    @property
    def rows(self) -> int:
        """B, the samples of a step."""
        return self.trainer.prompts_per_step * self.trainer.group_size

    def load(self, place: Path) -> None:
        """Load the weights of a checkpoint alone."""
        checkpoint.load_policies(place, self.policies)

    def weights(self) -> list[Tensor]:
        """A copy of the trainable parameters."""
        return [p.detach().clone() for p in self.trainer.updates.parameters]

    def set_weights(self, weights: Sequence[Tensor]) -> None:
        """Put other weights into the policy."""
        with torch.no_grad():
            for parameter, value in zip(self.trainer.updates.parameters, weights, strict=True):
                parameter.copy_(value)
        self.trainer.version += 1
        optional(self.policy, "updated")(self.trainer.version)

    def sample(self, prompts: Sequence[Prompt], count: int, *, evaluate: bool) -> tuple[list[Sample], Scores]:
        """Draw `count` samples for each prompt, always with the same seeds, and score them."""
        samples = draw(
            next(iter(self.policies.values())) if evaluate else self.policy,
            prompts,
            seed=self.config.seed,
            samples_per_prompt=count,
            evaluate=evaluate,
            mixed_precision=self.config.trainer.mixed_precision,
        )
        return samples, score_samples(self.evaluated if evaluate else self.terms, samples)


@contextmanager
def rebuilt(config: RunConfig, phase: str, place: Path | None, *, changed: bool = False) -> Iterator[Rebuilt]:
    """The parts of a run; its rewards are closed in the end.

    Args:
        config: the run's.
        phase: whose trainer is looked at; empty in a run without phases.
        place: of a checkpoint; None: before the first step.
        changed: whether it is another config than the run's, which then gets the weights alone.
    """
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    with build_rewards.all_rewards(config) as (terms, own_terms):
        policies = build.policies(config)
        prompts, held_out = build.prompts(config)
        phased = build.trainer(config, policies, terms, prompts, own_rewards=own_terms)
        if place is not None and not changed:
            phased.load(place)
        trainer = phased.phases[phase].trainer
        configs = {one.name: own for one, own in config.phased()}
        trainer.warmup_steps, trainer.schedule = 0, "constant"
        trainer.observers = {}  # guards would end what is known to be sick
        run = Rebuilt(
            config=configs[phase],
            completed=phased.completed,
            policies=policies,
            trainer=trainer,
            evaluated=[term for term in as_terms(terms) if term.weight],
            held_out=prompts if held_out is None else held_out,
        )
        if place is not None and changed:
            run.load(place)
        yield run
