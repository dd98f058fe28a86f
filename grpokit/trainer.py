"""The GRPO engine: rollout -> rewards -> advantages -> updates.

`Trainer.step()` reads top to bottom. It knows a policy only by its contract. Losses are summed over micro-batches of
rows and over slices of decisions; normalisers are fixed before any cutting, so the sum is the gradient of the whole
batch. Several processes share out the groups of a step; whatever is decided from all rows, each decides alike.

The nouns of a step: a `Draw` has this process's rollout, and facts about the rows of all processes; `Scores` are the
rewards [B, R] of all rows; a `Signal` says what each of them teaches; `FixedLogprobs` are what the updates leave as it
is; a `Batch` is this process's part of one update; a `Tally` has the statistics of its decisions in all processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from grpokit.advantages import AdvantageFn, compute, group
from grpokit.data import as_prompts, check_prompts
from grpokit.errors import UsageError
from grpokit.group_statistics import groups_without_advantage
from grpokit.guards.gradients import Gradients
from grpokit.guards.hacking import RewardHacking
from grpokit.guards.no_gradient import NoGradient
from grpokit.guards.observer import Observer, check_observers
from grpokit.guards.rewards import FirstScores, SlowRewards, UnscoredRows
from grpokit.guards.zero_std import ZeroStd
from grpokit.objectives import GRPO, Objective
from grpokit.policy import Policy
from grpokit.processes import fsdp2
from grpokit.processes.forks import forks_ended
from grpokit.processes.rendezvous import join
from grpokit.rewards.lessons import followers, learn_from_step
from grpokit.rewards.scoring import Scores
from grpokit.rewards.terms import Rewards, as_terms
from grpokit.settings import SeedSettings, TrainerSettings, check_settings, with_settings_shown
from grpokit.tracking.step_report import StepReport
from grpokit.tracking.trackers import start
from grpokit.training import checkpoint
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.checks import LogprobDiffLimit, check_advantages
from grpokit.training.contract import check_arguments
from grpokit.training.devices import find_device
from grpokit.training.gradient import gradient
from grpokit.training.logprob_passes import fixed_logprobs
from grpokit.training.loop import Loop
from grpokit.training.metrics import StepLog, Tally
from grpokit.training.minibatches import Batch, FixedLogprobs, Signal, filler_for, minibatch, minibatch_rows
from grpokit.training.modifier import Modifier, Modifiers, TrainerSetup
from grpokit.training.out_of_memory import Sizes
from grpokit.training.reference_probe import ReferenceProbe
from grpokit.training.rollout_parts import whole_report
from grpokit.training.rollouts import Draw, Rollouts
from grpokit.training.state import Stateful, split, stateful, undone_on_error
from grpokit.training.step import LearningStep, Step
from grpokit.training.trainer_state import Moments, Position
from grpokit.training.updates import Updates, ready
from grpokit.types import Prompt, Rollout


@with_settings_shown
@dataclass(eq=False, repr=False)
class Trainer(TrainerSettings, SeedSettings, Loop):
    """Trains a policy with GRPO, one `step()` at a time.

    The settings of `TrainerSettings` and `seed` are keyword arguments too; `help(Trainer)` lists them.

    Attributes:
        policy: the policy to train; moved to the device, and changed in place.
        rewards (Rewards): callables, objects with `submit` and `close`, `RewardTerm`s with weights, or a mapping from
            names to callables; stored in `terms`.
        prompts (Iterable[str | Prompt]): texts or `Prompt`s; stored in `train_prompts`.
        advantage: `(rewards [B, R], weights [R], groups [B]) -> [B]`, or one for each decision [B, T].
        objective: the loss per decision.
        modifiers: change what a step learns, in this order.
        trackers: accelerate's trackers ("tensorboard", "wandb", "mlflow", ...), logging into `folder`.
        folder: where trackers write.
        sharding: "fsdp2" spreads the policy's weights over the processes, "fsdp2-offload" keeps each one's part in the
            CPU's memory; nothing with a single process.
        observers: follow each step, after the guards of the trainer itself; names are for checkpoints.
        progress: iterating prints the batches, warnings, and about ten lines, or one a minute, on stderr in process 0.
        completed: the number of completed steps.
        elsewhere: the number of steps that other phases of the run have completed.
        torch_device (torch.device): where the policy is; `device` names it.
        loggers: the trackers at work, in process 0.

    Raises:
        UsageError: numbers that do not fit together (the message names them), no reward, no prompt, no trainable
            parameter, a device or tracker that is not there, processes with different weights.
    """

    policy: Policy
    rewards: InitVar[Rewards]
    prompts: InitVar[Iterable[str | Prompt]]
    _: KW_ONLY
    advantage: AdvantageFn = group
    objective: Objective = field(default_factory=GRPO)
    modifiers: Sequence[Modifier] = ()
    trackers: Sequence[str] = ()
    folder: Path | str | None = None
    sharding: fsdp2.How | None = None
    observers: Mapping[str, Observer] = field(default_factory=dict)
    progress: bool = True
    completed: int = field(default=0, init=False)
    elsewhere: int = field(default=0, init=False)

    def __post_init__(self, rewards: Rewards, prompts: Iterable[str | Prompt]) -> None:
        self.terms, self.train_prompts = as_terms(rewards), as_prompts(prompts)
        self._check()
        self.team = join()
        with self.team.failing_together(), forks_ended():
            self._set_up()

    def _set_up(self) -> None:
        """Check the prompts, bring the policy to its device, and build the parts of the step."""
        check_prompts(self.policy, self.train_prompts)
        self.torch_device = find_device(self.device)
        if self.team.size == 1:
            self.sharding = None
        setup = TrainerSetup(objective=self.objective, rewards=self.terms, seed=self.seed, team=self.team)
        self._modifiers = Modifiers(self.modifiers, setup)
        parameters = ready(
            self.policy,
            self.torch_device,
            self.team,
            sharding=self.sharding,
            needs_reference=self.needs_reference,
        )
        self.updates = Updates(parameters, self, self.torch_device, self.team, self.policy.modules())
        self._checked_policy = CheckedPolicy(self.policy, mixed_precision=self.mixed_precision)
        self.sizes = Sizes(self)
        self._zero_std = ZeroStd(self.max_zero_std_steps)
        self.observers = self._guards() | check_observers(self.observers)
        limit = LogprobDiffLimit.of(self.max_logprob_diff, low_precision=self._checked_policy.low_precision)
        self._reference_probe = ReferenceProbe(self._checked_policy, self.train_prompts, limit)
        self._rollouts = Rollouts(
            settings=self,
            sizes=self.sizes,
            seed=self.seed,
            policy=self._checked_policy,
            terms=self.terms,
            prompts=self.train_prompts,
            advantages=self._advantages,
            team=self.team,
        )
        self._parts: dict[str, Stateful] = {
            "batch_sizes": self.sizes,
            **stateful("observers", self.observers),
            **self._modifiers.parts(),
            **stateful(checkpoint.REWARDS, followers(self.terms)),
            "loss_scale": self.updates,
        }
        if self.needs_reference:
            self._parts["reference_probe"] = self._reference_probe
        split(checkpoint.POLICY, self.policy)  # better now than after hours
        self.loggers = start(self.trackers, self.folder) if self.team.rank == 0 else []

    def _guards(self) -> dict[str, Observer]:
        """What follows the steps of every trainer, in this order."""
        guards: dict[str, Observer] = {
            "guards/reward_hacking": RewardHacking(),
            "guards/first_scores": FirstScores(self.terms, self.train_prompts),
            "guards/unscored_rows": UnscoredRows(self.terms, self.train_prompts),
            "guards/slow_rewards": SlowRewards(self.terms, self.team),
            "guards/zero_std": self._zero_std,
            "guards/gradients": Gradients(self, self._checked_policy, sizes=self.sizes, team=self.team),
        }
        if not self.objective.needs_advantages:
            del guards["guards/zero_std"]
            guards["guards/no_gradient"] = NoGradient(self.max_zero_std_steps, updates=self.updates_per_step)
        return guards

    @property
    def needs_reference(self) -> bool:
        """Whether the objective or a modifier reads the reference's log-probs."""
        return self.objective.needs_reference or self._modifiers.need_reference

    @property
    def steps_left(self) -> dict[str, int]:
        """The remaining steps, under an empty name."""
        return {"": self.steps - self.completed}

    @property
    def version(self) -> int:
        """How often the policy's weights have changed since the start of the run, in steps that failed, too."""
        return self._checked_policy.version

    @version.setter
    def version(self, number: int) -> None:
        self._checked_policy.version = number

    @property
    def converged(self) -> str:
        """Why there is nothing left to learn; empty until then."""
        return self._zero_std.converged

    def step(self, *, log: bool = True) -> StepReport:
        """Draw, score and learn from one rollout; a step that fails does not count.

        Args:
            log: whether trackers get the metrics.

        Raises:
            RewardError: a reward failed or returned something unusable.
            RunError: a guard stopped the step; `updates.done` says how many of its updates were made.
        """
        with self.team.failing_together(), forks_ended(), undone_on_error(self._parts):
            report = self._step(self.completed + 1)
            self.completed, self.updates.done = report.step, 0
        for logger in self.loggers if log else ():
            logger.log(report.metrics, step=report.step)
        return report

    def _step(self, number: int) -> StepReport:
        """DeepSeekMath (Shao et al., 2024, arXiv:2402.03300), algorithm 1, lines 4 to 11."""
        log = StepLog(self.torch_device)
        log.warn(*self.updates.begin_step(number))  # where an earlier attempt was interrupted

        # Sample G outputs for each of P prompts, and compute log-probs while rewards in other processes work.
        with self._rollouts.draw(self.completed, self.elsewhere, log) as draw:
            self.objective.check_action_dims(draw.rollout.action_dims)
            fixed = self._fixed_logprobs(draw, log)  # of the old policy and the reference, where one needs them
            scores = draw.wait_for_scores()  # [B, R] of all processes
        log.warn(*scores.notes)
        scored = Step(number=number, log=log, draw=draw, scores=scores)
        self._tell("scored", scored)

        # One reward per output, and its advantage inside its group: what each row teaches.
        advantages = self._advantages(scores, decisions=draw.all_rows.width)  # [B] or [B, T]
        zero_std_groups = groups_without_advantage(advantages, scores.groups)  # [P]
        signal = self._modifiers.rows(Signal.of(advantages), scored)
        step = LearningStep(**vars(scored), zero_std_groups=zero_std_groups, signal=signal)
        self._tell("weighted", step)

        # Maximise the objective, one optimizer step for each minibatch.
        with self._checked_policy.during("train"):
            for batch in self._minibatches(step, fixed):
                step.minibatch = self._modifiers.minibatch(batch)
                losses, tally = self._gradient(step.minibatch, log)
                step.losses.append(losses)
                step.tallies.append(tally)
                self._tell("differentiated", step)
                step.norms.append(self._update(number, tally, log))
                self._tell("updated", step)
                self._modifiers.updated(tally)

        if number == 1:
            self._reference_probe.check(when="after the first step")
        rates = self.updates.metrics(number, log.warn)
        further = self._modifiers.metrics() | learn_from_step(self.terms, self.team, log.warn)
        return step.report(self.team, rates, further)

    def _tell(self, moment: str, step: Step) -> None:
        """Let all observers look at a moment of a step."""
        for observer in self.observers.values():
            with forks_ended():
                warnings = list(getattr(observer, moment)(step) or ())
            step.log.warn(*warnings)

    def _fixed_logprobs(self, draw: Draw, log: StepLog) -> FixedLogprobs:
        """What passes without gradient say of this process's rows."""
        return fixed_logprobs(
            draw,
            policy=self._checked_policy,
            objective=self.objective,
            settings=self,
            modifiers=self._modifiers,
            probe=self._reference_probe,
            sizes=self.sizes,
            team=self.team,
            log=log,
        )

    def _minibatches(self, step: LearningStep, fixed: FixedLogprobs) -> Iterator[Batch]:
        """This process's part of each optimizer step."""
        filler = filler_for(step.rollout, fixed, self._checked_policy, self.team) if self.sharding else None
        version, all_rows = self.version, step.draw.all_rows
        for number in range(self.updates_per_rollout):  # of the pass over the rollout
            for rows in minibatch_rows(all_rows.groups, self.minibatches, key=(self.seed, self.completed, number)):
                yield minibatch(
                    step.rollout,
                    fixed,
                    step.signal,
                    rows,
                    all_rows,
                    reduction=self.objective.reduction,
                    before_updates=self.version == version,
                    filler=filler,
                )

    def _gradient(self, batch: Batch, log: StepLog) -> tuple[Sequence[float], Tally]:
        """The gradient of an optimizer step: the loss of each process, and the statistics of all."""
        return gradient(
            batch,
            self._modifiers.objective(self.objective),
            policy=self._checked_policy,
            updates=self.updates,
            correction=self.correction,
            sizes=self.sizes,
            team=self.team,
            log=log,
        )

    def _update(self, number: int, tally: Tally, log: StepLog) -> float:
        """Make one optimizer step with the gradient of all processes; returns its norm before clipping."""
        with log.time("optimizer"):
            norm, changed = self.updates.make(number, decided=tally.decided)
        if changed:
            with self.team.failing_together(passes=True) if self.sharding else nullcontext():  # for a moving average
                self._checked_policy.updated(self.version + 1)
        return norm

    def gradient_of(self, batch: Batch) -> list[Tensor]:
        """The gradient of a batch's loss by each of `updates.parameters`; nothing is updated.

        Args:
            batch: a `step.minibatch` of an observer, or some of its rows, perhaps with other advantages. Its weights
                are normalised, so that the gradients of the parts of a minibatch add up to that of the whole.
        """
        with self._checked_policy.during("train"):
            self._gradient(batch, StepLog(self.torch_device))
        scale = self.updates.scaler.get_scale()  # 1 but for fp16
        gradients = []
        for p in self.updates.parameters:
            gradients.append(torch.zeros_like(p) if p.grad is None else p.grad / scale)
        self.updates.optimizer.zero_grad()
        return gradients

    def logprobs_of(self, rollout: Rollout) -> Tensor:
        """The log-probs [b, T] of a rollout's decisions with the weights of this moment, in micro-batches."""
        with self._checked_policy.during("score"):
            return self._checked_policy.all_logprobs(rollout, self.sizes.limit).logprobs

    def whole(self, report: StepReport) -> StepReport:
        """The latest step's report with the rows of all processes, on the CPU; others than process 0 keep theirs."""
        return whole_report(report, self.team, self.train_prompts)

    def parts(self) -> dict[str, Stateful]:
        """What a checkpoint keeps, by name; the optimizer comes first, which knows whether it belongs to the policy."""
        own: dict[str, Stateful] = {"optimizer": Moments(self.updates), checkpoint.POSITION: Position(self)}
        return {**own, **self._parts, checkpoint.POLICY: self.policy}

    def check_reference(self) -> None:
        """Make sure that the reference has not changed."""
        self._reference_probe.check_before_save(step=self.completed)

    def go_on(self, *, when: str) -> None:
        """Continue from the loaded state."""
        self.drop_pending()
        self._checked_policy.updated(self.version)
        self._reference_probe.check(when=when)

    def drop_pending(self) -> None:
        """Forget a rollout that an engine draws for the next step."""
        self._rollouts.drop()

    def _advantages(self, scores: Scores, decisions: int | None = None) -> Tensor:
        """[B] or [B, T], of the rows of all processes, with their values checked; T may not be known yet."""
        trained = scores.trained
        if not trained.names:  # rewards only measure
            return torch.zeros(len(trained.groups), dtype=torch.float64)
        with forks_ended():
            advantages = compute(
                self.advantage, trained.matrix, trained.weights, trained.groups, trained.decision_rewards
            )
        check_advantages(advantages, len(trained.groups), decisions)
        return advantages

    def _check(self) -> None:
        """Refuse settings that cannot work, before anything is set up."""
        check_arguments(policy=self.policy, advantage=self.advantage, objective=self.objective)
        check_settings(self)
        fsdp2.check(self.sharding, self.mixed_precision, self.optimizer)
        trained = [term for term in self.terms if not term.monitor]
        if not trained and self.objective.needs_advantages:
            why = "Every reward has the weight 0, so all are monitors" if self.terms else "No reward was given"
            raise UsageError(f"{why}, and {type(self.objective).__name__} learns from rewards. Give one a weight.")
        if self.dynamic_sampling and not self.objective.needs_advantages:
            raise UsageError(
                "dynamic_sampling draws again where a group's rewards are equal, but "
                f"{type(self.objective).__name__} learns from such groups as well. Leave dynamic_sampling out."
            )
        if len(self.train_prompts) == 0:
            raise UsageError("There is no prompt to train on.")
        if not trained:
            return
        column = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        scores, weights = column.expand(2, len(trained)), torch.ones(len(trained))
        one_group = torch.zeros(2, dtype=torch.int64)
        with forks_ended():
            compute(self.advantage, scores, weights, one_group, column)  # refuses wrong options
