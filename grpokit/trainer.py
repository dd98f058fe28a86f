"""The GRPO engine: rollout -> rewards -> advantages -> updates.

`Trainer.step()` reads top to bottom. It knows policies only by their contract, and sums losses in whatever pieces
memory asks for: row micro-batches, and step slices inside them. Normalisers are fixed before any cutting, so the
pieces add up to the gradient of the whole batch. What is left out: several processes (a world size above one is
refused), and generation in another engine.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from grpokit import advantages as advantage_functions
from grpokit import objectives
from grpokit.advantages import AdvantageFn
from grpokit.data import as_prompts, prompt_indices
from grpokit.errors import GrpokitError, RunError, UsageError, counted
from grpokit.objectives import Objective, reduction_weights
from grpokit.policy import Policy
from grpokit.rewards import hacking
from grpokit.rewards.scoring import Reward, RewardTerm, Scores, as_terms, score
from grpokit.sampling import derive_seeds
from grpokit.training import checkpoint, guards, metrics
from grpokit.training.backward import Backward
from grpokit.training.checked_policy import LOW_PRECISION, CheckedPolicy
from grpokit.training.devices import autocast, make_accelerator, place
from grpokit.training.lr_schedule import SCHEDULES, learning_rate
from grpokit.training.micro_batches import Piece, micro_batches, minibatch_rows
from grpokit.training.out_of_memory import explained, fitting
from grpokit.types import Decisions, Prompt, Rollout, StepReport

T = TypeVar("T")


class Trainer:
    """Trains a policy with GRPO, one `step()` at a time.

    Args:
        policy: what is trained; moved to the device, and changed in place.
        rewards: callables, `RewardTerm`s with weights, or a mapping from names to callables.
        prompts: texts or `Prompt`s.
        seed: all randomness follows from it.
        steps: how many steps `for report in trainer` takes; also the horizon of the cosine schedule.
        prompts_per_step: P, groups per step.
        group_size: G, samples per prompt.
        micro_batch_size: the most rows in one forward and backward pass; it changes memory and speed, not the result.
        rollout_batch_size: the most rows that are drawn at a time; by default all.
        updates_per_rollout: passes over a rollout.
        minibatches: optimizer steps per pass, on equal shares of the groups.
        advantage: `(rewards [B, R], weights [R], groups [B]) -> [B]`; by default `advantages.group`.
        objective: by default `objectives.grpo()`.
        learning_rate: of AdamW, after the warm-up.
        warmup_steps: optimizer steps over which the rate rises linearly from 0.
        schedule: "constant", or "cosine" down to 0 over all steps.
        weight_decay: of AdamW.
        max_grad_norm: gradients are scaled down to this norm; None leaves them.
        max_logprob_diff: the largest mean difference, in nats, between the rollout's log-probs and those of the first
            training pass; by default what the precision allows.
        max_zero_std_steps: training ends after so many steps in a row in which no group had any spread: as converged,
            or with a RunError where the reward has been higher; None never ends it.
        mixed_precision: "no", "bf16" or "fp16": one autocast around rollout, logprobs and reference.
        device: "auto", "cpu" or "cuda".
        trackers: accelerate's trackers ("tensorboard", "wandb", "mlflow", ...), logging into `folder`.
        folder: where trackers write.

    Raises:
        UsageError: numbers that do not fit together (the message names them), no reward, no prompt, no trainable
            parameter, a world size above one.
    """

    def __init__(
        self,
        policy: Policy,
        rewards: Sequence[Reward | RewardTerm] | Mapping[str, Reward],
        prompts: Iterable[str | Prompt],
        *,
        seed: int = 42,
        steps: int = 200,
        prompts_per_step: int = 4,
        group_size: int = 8,
        micro_batch_size: int = 8,
        rollout_batch_size: int | None = None,
        updates_per_rollout: int = 1,
        minibatches: int = 1,
        advantage: AdvantageFn = advantage_functions.group,
        objective: Objective | None = None,
        learning_rate: float = 5e-6,
        warmup_steps: int = 0,
        schedule: Literal["constant", "cosine"] = "constant",
        weight_decay: float = 0.0,
        max_grad_norm: float | None = 1.0,
        max_logprob_diff: float | None = None,
        max_zero_std_steps: int | None = 20,
        mixed_precision: Literal["no", "bf16", "fp16"] = "no",
        device: Literal["auto", "cpu", "cuda"] = "auto",
        trackers: Sequence[str] = (),
        folder: Path | str | None = None,
    ) -> None:
        self.policy = policy
        self.terms = as_terms(rewards)
        self.prompts = as_prompts(prompts)
        self.seed, self.steps = seed, steps
        self.prompts_per_step, self.group_size = prompts_per_step, group_size
        self.micro_batch_size, self.rollout_batch_size = micro_batch_size, rollout_batch_size
        self.updates_per_rollout, self.minibatches = updates_per_rollout, minibatches
        self.advantage = advantage
        self.objective = objectives.grpo() if objective is None else objective
        self.learning_rate, self.warmup_steps, self.schedule = learning_rate, warmup_steps, schedule
        self.max_grad_norm = max_grad_norm
        self._check_numbers()

        self.accelerator = make_accelerator(mixed_precision, device, trackers, folder)
        self.mixed_precision = mixed_precision  # accelerate's own is shared by all its instances
        self.device = self.accelerator.device
        named = self._place_policy()
        self.parameters = list(named.values())
        self.optimizer: Any = self.accelerator.prepare_optimizer(
            torch.optim.AdamW(named.items(), lr=learning_rate, weight_decay=weight_decay)
        )
        self.checked = CheckedPolicy(
            policy,
            autocast=lambda: autocast(self.device, mixed_precision),
            entropy_grad=self.objective.entropy_coef != 0,
        )
        self._low_precision = mixed_precision != "no" or self.checked.low_precision
        self._gap_limit = guards.GapLimit.of(max_logprob_diff, low_precision=self._low_precision)
        self._backward = Backward(self.checked, self.objective, self.accelerator.backward)
        self._quiet, self._hacking = guards.Quiet(max_zero_std_steps), hacking.RewardHacking()
        self._probe: guards.ReferenceProbe | None = None
        self.completed = 0
        self.updates_done = 0  # of a step that is under way, or was broken off
        self.torn = False  # whether an update was broken off while it was made
        self._movement, self._skipped = guards.Movement(self.parameters), guards.Skipped()
        if self.objective.needs_reference:
            with self.policy.reference():  # a frozen copy is taken now: before any update, and before a resume
                pass

    def __iter__(self) -> Iterator[StepReport]:
        """Take the steps that are left, or those until the policy has converged."""
        while self.completed < self.steps and not self.converged:
            yield self.step()

    @property
    def converged(self) -> str:
        """Why there is nothing left to learn, as far as this trainer has seen; empty as long as there is."""
        return self._quiet.converged

    def describe(self) -> str:
        """One line that resolves the arithmetic of batches."""
        rows = self.prompts_per_step * self.group_size
        share = rows // self.minibatches
        pieces = len(micro_batches(torch.arange(share) // self.group_size, self.micro_batch_size))
        updates = self.updates_per_step
        return (
            f"{counted(self.prompts_per_step, 'prompt')} x {self.group_size} samples = {rows:,} rows a step; "
            f"{counted(updates, 'update')} of {share:,} rows in {counted(pieces, 'micro-batch')} of at most "
            f"{self.micro_batch_size:,}; {counted(self.steps, 'step')} = {counted(self.steps * updates, 'update')} "
            f"on {self.steps * rows:,} samples"
        )

    def step(self) -> StepReport:
        """Draw, score and learn from one rollout.

        Raises:
            RewardError: a reward failed or returned something unusable.
            RunError: a guard stopped the step; `updates_done` says how many of its updates were made.
        """
        watch = metrics.Stopwatch(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        warnings: list[str] = []
        number, self.updates_done = self.completed + 1, 0

        with watch("rollout"):
            prompts, rollout = self._rollout(warnings)
        with watch("reward"):
            scores = score(self.terms, rollout.samples, step=number)
        hacking, quiet = copy.deepcopy((self._hacking, self._quiet))  # a step that fails from here on does not count
        warnings += [*scores.notes, *hacking.look(scores, step=number)]
        advantages = self._advantages(scores.trained, rollout)
        told = quiet.look(scores.trained, advantages.cpu(), rollout.groups.cpu(), step=number)
        warnings += [told] * bool(told)
        with watch("logprobs"):
            old, reference = self._scored(rollout, warnings)
        if self.objective.needs_reference and self._probe is None:
            with explained("scoring a sample with the reference"):
                self._probe = guards.ReferenceProbe.take(self.checked, rollout, prompts)

        tally = metrics.Tally()
        losses: list[float] = []
        norms: list[float] = []
        for update in range(self.updates_per_rollout):
            for rows in minibatch_rows(rollout.groups, self.minibatches, key=(self.seed, self.completed, update)):
                weights = reduction_weights(
                    rollout.mask[rows], self.objective.reduction, max_decisions=rollout.max_decisions
                )  # fixed here, before any slicing
                batch = Piece(
                    rollout=rollout if len(rows) == rollout.rows else rollout.select(rows),
                    old=old and old.cut(rows),
                    advantages=advantages[rows],
                    reference=reference and reference.cut(rows),
                    weights=weights,
                )
                losses.append(self._gradient(batch, rows, tally, watch, warnings))
                with watch("optimizer"):
                    norms.append(self._update(self.completed * self.updates_per_step + self.updates_done))
                self.updates_done += 1
                self.torn = False

        if number == 1 and self._probe is not None:
            self._probe.check(self.checked, self._gap_limit, when="after the first step")
        self.completed, self.updates_done = number, 0
        self._hacking, self._quiet = hacking, quiet
        lengths = rollout.mask.sum(-1).double()
        report = StepReport(
            step=self.completed,
            metrics={
                "step": self.completed,
                "loss": sum(losses) / len(losses),
                **metrics.reward_metrics(scores, rollout.groups.cpu(), advantages),
                **metrics.decision_metrics(tally),
                "grad_norm": sum(norms) / len(norms),
                "learning_rate": self._learning_rate(self.completed * self.updates_per_step - 1),
                "length/mean": float(lengths.mean()),
                "length/max": float(lengths.max()),
                "step_time": watch.total(),
                **{f"time/{phase}": seconds for phase, seconds in watch.seconds.items()},
                "memory/peak_mb": metrics.peak_memory_mb(self.device),
            },
            rollout=rollout,
            rewards=scores.matrix,
            reward_names=scores.names,
            advantages=advantages,
            prompts=prompts,
            warnings=warnings,
        )
        if self.accelerator.trackers:
            self.accelerator.log(dict(report.metrics), step=self.completed)
        return report

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps per rollout."""
        return self.updates_per_rollout * self.minibatches

    def save(self, folder: Path | str, *, notes: Mapping[str, Any] | None = None) -> None:
        """Write weights, optimizer and position into `folder`, atomically: it is complete or it is not there.

        Args:
            folder: replaced if it is there.
            notes: plain data to keep beside them, such as the config.

        Raises:
            RunError: it cannot be written, or the reference has changed.
        """
        state: dict[str, Any] = {
            "step": self.completed,
            "updates_done": self.updates_done,
            "quiet": self._quiet.state(),
            "monitors": self._hacking.state(),
            "notes": dict(notes or {}),
        }
        probe: dict[str, Tensor] = {}
        if self._probe is not None:
            try:
                self._probe.check(self.checked, self._gap_limit, when=f"after step {self.completed}")
            except GrpokitError:
                raise
            except Exception:  # a policy that can score no more says so in its next step; its weights are kept
                pass
            state["probe"], probe = self._probe.state()
        if self.accelerator.scaler is not None:
            state["loss_scale"] = self.accelerator.scaler.state_dict()
        checkpoint.save(Path(folder), policy=self.policy, optimizer=self.optimizer, state=state, probe=probe)

    def load(self, folder: Path | str) -> None:
        """Go on from what `save` wrote.

        Raises:
            CheckpointError: it is not whole, not of grpokit, or of another policy.
            RunError: the policy's reference is not that of the checkpoint's run.
        """
        found = checkpoint.read(Path(folder), optimizer=self.optimizer)
        probe = None
        if self.objective.needs_reference and "probe" in found.state:
            probe = guards.ReferenceProbe.restore(found.state["probe"], found.probe, self.prompts, self.device)
        checkpoint.load_policy(Path(folder), self.policy)
        self.optimizer.load_state_dict(found.optimizer)
        self.completed, self.updates_done, self.torn = found.step, 0, False
        if self.accelerator.scaler is not None and "loss_scale" in found.state:
            self.accelerator.scaler.load_state_dict(found.state["loss_scale"])
        self._quiet.restore(found.state.get("quiet", {}))
        self._hacking.restore(found.state.get("monitors", {}))
        self._probe = probe
        if probe is not None:
            probe.check(self.checked, self._gap_limit, when=f"after loading {folder}")

    def close(self) -> None:
        """Let trackers write what they hold back."""
        self.accelerator.end_training()

    def _rollout(self, warnings: list[str]) -> tuple[list[int], Rollout]:
        indices = prompt_indices(self.seed, self.completed, per_step=self.prompts_per_step, total=len(self.prompts))
        seeds = derive_seeds(
            self.seed,
            stream="train",
            step=self.completed,
            prompts=self.prompts_per_step,
            group_size=self.group_size,
        ).to(self.device)
        prompts = [self.prompts[i] for i in indices]
        rows = len(prompts) * self.group_size
        size = min(self.rollout_batch_size or rows, rows)
        rollout, fitted = fitting(
            lambda n: self.checked.rollout(prompts, self.group_size, seeds, at_once=n), size, what="drawing samples"
        )
        if fitted < size:
            self.rollout_batch_size = fitted
            warnings.append(
                f"memory did not hold {size} rows at a time while drawing samples: trainer.rollout_batch_size is now "
                f"{fitted}"
            )
        self.objective.check_dimensions(rollout.action_dims)
        return indices, rollout

    def _advantages(self, scores: Scores, rollout: Rollout) -> Tensor:
        if self.completed == 0 and not any(scores.failed) and bool(scores.matrix.isnan().all()):
            raise UsageError(
                f"No reward ({', '.join(scores.names)}) could score any sample of the first step. Usual causes: the "
                "prompts have no target or no source picture, or quote no text."
            )
        advantages = self.advantage(scores.matrix, scores.weights, rollout.groups.cpu())
        shapes = ((rollout.rows,), tuple(rollout.mask.shape))
        if tuple(advantages.shape) not in shapes or not bool(advantages.isfinite().all()):
            raise RunError(
                f"The advantage function gave {tuple(advantages.shape)} values, "
                f"{int((~advantages.isfinite()).sum())} of them not finite; expected finite numbers, one per row "
                f"{shapes[0]} or one per decision {shapes[1]}."
            )
        return advantages.to(rollout.old.logprobs)  # [B] or [B, T]

    def _scored(self, rollout: Rollout, warnings: list[str]) -> tuple[Decisions | None, Decisions | None]:
        """The old log-probs (None: the first pass's own values, detached) and the reference's (None: not needed).

        A sampler in low precision disagrees with the training forward by more than a policy update does, so there the
        training forward's values count as the old ones. With one update the first pass computes them anyway.
        """
        old: Decisions | None = None if self._low_precision else rollout.old
        reference = None
        if self._low_precision and self.updates_per_step > 1:
            old = self._shrinking(lambda n: self.checked.all_logprobs(rollout, n), warnings)
        if self.objective.needs_reference and not self.objective.needs_moments:
            reference = self._shrinking(
                lambda n: self.checked.all_logprobs(rollout, n, self.policy.reference), warnings
            )
        return old, reference

    def _gradient(
        self, batch: Piece, rows: Tensor, tally: metrics.Tally, watch: metrics.Stopwatch, warnings: list[str]
    ) -> float:
        """Accumulate the gradient of one optimizer step and hold it against the guards; returns the loss."""
        fresh = self.updates_done == 0  # no weight has changed since the rollout

        def attempt(size: int) -> tuple[float, metrics.Tally]:
            self.optimizer.zero_grad()  # of an attempt or a step that was broken off
            seen = metrics.Tally()
            return self._backward(batch, size=size, tally=seen, watch=watch, fresh=fresh), seen

        loss, seen = self._shrinking(attempt, warnings)
        step, update = self.completed + 1, self.updates_done + 1
        guards.check_finite(
            loss, self.checked, batch.rollout, self.micro_batch_size, rows=rows, step=step, update=update
        )
        if fresh:
            guards.check_gap(seen.means().get("gap", 0.0), seen.extremes("gap")[1], self._gap_limit, step=step)
        tally.merge(seen)
        return loss

    def _shrinking(self, attempt: Callable[[int], T], warnings: list[str]) -> T:
        """Do something in micro-batches, in smaller ones for good where memory does not hold them."""
        result, fitted = fitting(attempt, self.micro_batch_size, what="scoring samples")
        if fitted < self.micro_batch_size:
            warnings.append(
                f"memory did not hold micro-batches of {self.micro_batch_size} rows: trainer.micro_batch_size is now "
                f"{fitted}; what was under way was done again, and its gradient is the same to rounding"
            )
            self.micro_batch_size = fitted
        return result

    def _update(self, update_index: int) -> float:
        """One optimizer step; returns the gradient's norm before clipping."""
        guards.check_gradient(self.parameters)
        limit = math.inf if self.max_grad_norm is None else self.max_grad_norm
        norm = float(self.accelerator.clip_grad_norm_(self.parameters, limit))
        rate = self._learning_rate(update_index)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        scaler = self.accelerator.scaler
        if scaler is None:  # a loss scaler skips updates whose gradient is no number
            guards.check_norm(norm, step=self.completed + 1, update=self.updates_done + 1)
        self.torn = True  # until the device, too, is known to have made the update
        with explained("making an update"):
            if scaler is None:
                with self._movement.watch(norm=norm, rate=rate):
                    self.optimizer.step()
            else:
                self.optimizer.step()
                self._skipped.look(skipped=self.optimizer.step_was_skipped, scale=scaler.get_scale())
        self.optimizer.zero_grad()
        return norm

    def _learning_rate(self, update_index: int) -> float:
        return learning_rate(
            update_index,
            peak=self.learning_rate,
            schedule=self.schedule,
            warmup=self.warmup_steps,
            total=self.steps * self.updates_per_step,
        )

    def _check_numbers(self) -> None:
        for name in (
            *("steps", "prompts_per_step", "micro_batch_size", "rollout_batch_size", "updates_per_rollout"),
            "minibatches",
        ):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.group_size < 2:
            raise UsageError(
                f"group_size is {self.group_size}; GRPO compares the samples of a group with each other, so it must be "
                "at least 2."
            )
        if self.prompts_per_step % self.minibatches:
            raise UsageError(
                f"minibatches={self.minibatches} does not divide prompts_per_step={self.prompts_per_step}: every "
                "optimizer step takes the same number of whole groups."
            )
        if self.learning_rate <= 0 or not math.isfinite(self.learning_rate):
            raise UsageError(f"learning_rate must be positive, got {self.learning_rate}.")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise UsageError(f"max_grad_norm must be above 0, or None for no clipping, got {self.max_grad_norm}.")
        if self.warmup_steps < 0:
            raise UsageError(f"warmup_steps must be 0 or more, got {self.warmup_steps}.")
        if self.schedule not in SCHEDULES:
            raise UsageError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}.")
        trained = [term for term in self.terms if not term.monitor]
        if not trained:
            raise UsageError("All rewards have the weight 0, so they are monitors, and none is left to train on.")
        trial = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, len(trained))
        self.advantage(trial, torch.ones(len(trained)), torch.zeros(2, dtype=torch.int64))  # its options, tried now
        if len(self.prompts) == 0:
            raise UsageError("There is no prompt to train on.")

    def _place_policy(self) -> dict[str, torch.nn.Parameter]:
        """Move the policy to the device; returns the trainable parameters, each once, by their names in `modules()`."""
        modules = self.policy.modules()
        place(modules, self.device)
        every = [(f"{key}/{name}", p) for key, module in modules.items() for name, p in module.named_parameters()]
        first = {p: name for name, p in sorted(every, key=lambda e: e[0], reverse=True)}  # of those of a shared one
        parameters = {first[p]: p for _, p in every if p.requires_grad}
        if not parameters:
            raise UsageError(
                f"The policy has no trainable parameter: modules() gives {', '.join(modules) or 'nothing'}, and none "
                "of their parameters requires a gradient. Is an adapter missing, or everything frozen?"
            )
        small = next((p.dtype for p in parameters.values() if p.dtype in LOW_PRECISION), None)
        if small is not None:
            raise UsageError(
                f"Trainable parameters are {small}, in which most updates of a usual learning rate are rounded away. "
                "Keep them in float32 (frozen ones may stay small) and set mixed_precision: bf16."
            )
        return parameters
