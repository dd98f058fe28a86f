"""The GRPO engine: rollout -> rewards -> advantages -> updates.

`Trainer.step()` reads top to bottom. It knows policies only by their contract, and sums losses in whatever pieces
memory asks for: row micro-batches, and step slices inside them. Normalisers are fixed before any cutting, so the
pieces add up to the gradient of the whole batch. What is left out: several processes (a world size above one is
refused), and generation in another engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from grpokit import advantages as advantage_functions
from grpokit import checkpoint, metrics, objectives
from grpokit.advantages import AdvantageFn
from grpokit.checked import LOW_PRECISION, CheckedPolicy
from grpokit.data import as_prompts, prompt_indices
from grpokit.devices import make_accelerator
from grpokit.errors import RunError, UsageError
from grpokit.objectives import Objective, reduction_weights
from grpokit.pieces import Piece, concatenate, gradients, leaves, micro_batches, minibatch_rows
from grpokit.policy import Policy
from grpokit.reward import Reward, RewardTerm, Scores, as_terms, score
from grpokit.sampling import derive_seeds
from grpokit.types import Prompt, Rollout, StepReport, Steps


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
        max_logprob_gap: the largest mean difference, in nats, between the rollout's log-probs and their first replay;
            by default what the precision allows.
        max_quiet_steps: the run stops after so many steps in a row in which no group had any spread; None never stops.
        mixed_precision: "no", "bf16" or "fp16": one autocast around rollout, replay and reference.
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
        max_logprob_gap: float | None = None,
        max_quiet_steps: int | None = 20,
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
        self.max_logprob_gap, self.max_quiet_steps = max_logprob_gap, max_quiet_steps
        self._check_numbers()

        self.accelerator = make_accelerator(mixed_precision, device, trackers, folder)
        self.mixed_precision = mixed_precision  # accelerate's own is shared by all its instances
        self.device = self.accelerator.device
        self.parameters = self._place_policy()
        self.optimizer: Any = self.accelerator.prepare_optimizer(
            torch.optim.AdamW(self.parameters, lr=learning_rate, weight_decay=weight_decay)
        )
        self.checked = CheckedPolicy(
            policy, autocast=self.accelerator.autocast, entropy_grad=self.objective.entropy_coef != 0
        )
        self.completed = 0
        self._moved = False  # whether an update has changed a weight yet
        if self.objective.needs_reference:
            with self.policy.reference():  # a frozen copy is taken now: before any update, and before a resume
                pass

    def __iter__(self) -> Iterator[StepReport]:
        """Take the steps that are left."""
        while self.completed < self.steps:
            yield self.step()

    def describe(self) -> str:
        """One line that resolves the arithmetic of batches."""
        rows = self.prompts_per_step * self.group_size
        share = rows // self.minibatches
        pieces = len(micro_batches(torch.arange(share) // self.group_size, self.micro_batch_size))
        updates = self.updates_per_step
        return (
            f"{self.prompts_per_step} prompts x {self.group_size} samples = {rows} rows a step; "
            f"{updates} update{'s' * (updates > 1)} of {share} rows in {pieces} micro-batch{'es' * (pieces > 1)} of at "
            f"most {self.micro_batch_size}; {self.steps} steps = {self.steps * updates:,} updates on "
            f"{self.steps * rows:,} samples"
        )

    def step(self) -> StepReport:
        """Draw, score and learn from one rollout.

        Raises:
            RewardError: a reward failed or returned something unusable.
            RunError: the gradient is not finite.
        """
        watch = metrics.Stopwatch(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

        with watch("rollout"):
            prompts, rollout = self._rollout()
        with watch("reward"):
            scores = score(self.terms, rollout.samples)
        advantages = self._advantages(scores, rollout)
        with watch("replay"):
            old = self._old(rollout)
            reference = self._reference_logprobs(rollout)

        tally = metrics.Tally()
        losses: list[float] = []
        norms: list[float] = []
        for update in range(self.updates_per_rollout):
            for rows in minibatch_rows(rollout.groups, self.minibatches, key=(self.seed, self.completed, update)):
                weights = reduction_weights(
                    rollout.mask[rows], self.objective.reduction, max_steps=rollout.max_steps
                )  # fixed here, before any slicing
                batch = Piece(
                    rollout=rollout if len(rows) == rollout.rows else rollout.select(rows),
                    old=old and old.cut(rows),
                    advantages=advantages[rows],
                    reference=reference and reference.cut(rows),
                    weights=weights,
                )
                fresh = len(norms) == 0  # no weight has changed since the rollout
                self.optimizer.zero_grad()  # of a step that was broken off
                losses.append(self._backward(batch, tally, watch, fresh=fresh))
                with watch("optimizer"):
                    norms.append(self._update(self.completed * self.updates_per_step + len(norms)))

        self.completed += 1
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
        )
        if self.accelerator.trackers:
            self.accelerator.log(dict(report.metrics), step=self.completed)
        return report

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps per rollout."""
        return self.updates_per_rollout * self.minibatches

    def save(self, folder: Path | str) -> None:
        """Write weights, optimizer and position into `folder`, atomically: it is complete or it is not there."""
        checkpoint.save(Path(folder), policy=self.policy, optimizer=self.optimizer, step=self.completed)

    def load(self, folder: Path | str) -> None:
        """Go on from what `save` wrote."""
        self.completed = checkpoint.load(Path(folder), policy=self.policy, optimizer=self.optimizer)

    def close(self) -> None:
        """Let trackers write what they hold back."""
        self.accelerator.end_training()

    def _rollout(self) -> tuple[list[int], Rollout]:
        indices = prompt_indices(self.seed, self.completed, per_step=self.prompts_per_step, total=len(self.prompts))
        seeds = derive_seeds(
            self.seed,
            stream="train",
            step=self.completed,
            prompts=self.prompts_per_step,
            group_size=self.group_size,
        )
        rollout = self.checked.rollout([self.prompts[i] for i in indices], self.group_size, seeds.to(self.device))
        return indices, rollout

    def _advantages(self, scores: Scores, rollout: Rollout) -> Tensor:
        if self.completed == 0 and not any(scores.failed) and bool(scores.matrix.isnan().all()):
            raise UsageError(
                f"No reward ({', '.join(scores.names)}) could score any sample of the first step. Usual causes: the "
                "prompts have no target, or quote no text."
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

    def _old(self, rollout: Rollout) -> Steps | None:
        """The old log-probs, or None: the first pass's own values, detached.

        A sampler in low precision disagrees with the training forward by more than a policy update does, so there the
        training forward's values count. With one update the first pass computes them anyway.
        """
        if self.mixed_precision == "no" and not self.checked.low_precision:
            return rollout.old
        if self.updates_per_step == 1:
            return None
        return self.checked.logprobs(rollout, self.micro_batch_size)

    def _reference_logprobs(self, rollout: Rollout) -> Steps | None:
        if not self.objective.needs_reference or self.objective.needs_moments:
            return None
        return self.checked.logprobs(rollout, self.micro_batch_size, self.policy.reference)

    def _backward(self, batch: Piece, tally: metrics.Tally, watch: metrics.Stopwatch, *, fresh: bool) -> float:
        """Accumulate the gradient of one optimizer step, piece by piece; returns the loss."""
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for rows in micro_batches(batch.rollout.groups, self.micro_batch_size):
            piece = batch.select(rows)
            slices = self.checked.slices(piece.rollout)
            if self.objective.whole_sequence and len(slices) > 1:
                loss += self._backward_whole(piece, slices, tally, watch, fresh=fresh)
                continue
            for steps in slices:
                if not bool(piece.rollout.mask[:, steps].any()):
                    continue  # such as the last step of a sampler, which has no noise and no density
                with watch("replay"):
                    reference = self._reference(piece, [steps])
                    new = self.checked.replay(piece.rollout, steps, grad=True)
                    value = self._loss(piece, new, steps, reference, tally, fresh=fresh)
                with watch("backward"):
                    self.accelerator.backward(value)
                loss += value.detach()
        return float(loss)

    def _backward_whole(
        self, piece: Piece, slices: Sequence[slice], tally: metrics.Tally, watch: metrics.Stopwatch, *, fresh: bool
    ) -> Tensor:
        """A loss that ties a row's decisions together, on a policy that is replayed slice by slice.

        A pass without gradient gathers all decisions; the loss's derivative by each is then the constant with which
        the second pass weighs that decision's own gradient.
        """
        with watch("replay"):
            views = [self.checked.replay(piece.rollout, steps, grad=False) for steps in slices]
            whole = leaves(concatenate(views))
            every = slice(0, piece.rollout.mask.shape[1])
            value = self._loss(piece, whole, every, self._reference(piece, slices), tally, fresh=fresh)
        slopes = gradients(value, whole)
        for steps in slices:
            if not bool(piece.rollout.mask[:, steps].any()):
                continue
            with watch("replay"):
                new = self.checked.replay(piece.rollout, steps, grad=True)
                weighted = torch.stack(
                    [(slope[:, steps] * getattr(new, name)).sum() for name, slope in slopes.items()]
                ).sum()
            with watch("backward"):
                self.accelerator.backward(weighted)
        return value.detach()

    def _reference(self, piece: Piece, slices: Sequence[slice]) -> Steps | None:
        """The reference's view of consecutive slices; the context is left before any backward pass."""
        if self.objective.needs_moments:
            with self.policy.reference():
                return concatenate([self.checked.replay(piece.rollout, steps, grad=False) for steps in slices])
        return piece.reference and piece.reference.cut(steps=slice(slices[0].start, slices[-1].stop))

    def _loss(
        self, piece: Piece, new: Steps, steps: slice, reference: Steps | None, tally: metrics.Tally, *, fresh: bool
    ) -> Tensor:
        """The weighted sum of the objective over some decisions of a piece: a scalar."""
        mask = piece.rollout.mask[:, steps]
        old = piece.old.cut(steps=steps) if piece.old else new.detach()
        advantages = piece.advantages if piece.advantages.ndim == 1 else piece.advantages[:, steps]
        result = self.objective(new, old, advantages, mask, reference)
        for name, values in result.stats.items():
            tally.add(name, values, mask)
        if fresh:
            tally.add("gap", (new.logprobs.detach() - piece.rollout.old.logprobs[:, steps]).abs(), mask)
        return (result.value * piece.weights[:, steps].to(result.value)).sum()

    def _update(self, update_index: int) -> float:
        """One optimizer step; returns the gradient's norm before clipping."""
        if all(p.grad is None for p in self.parameters):
            raise RunError(
                "No trainable parameter got a gradient. Usual causes: the policy's modules() are not the ones that "
                "replay uses, replay runs under no_grad, or every decision is masked."
            )
        limit = math.inf if self.max_grad_norm is None else self.max_grad_norm
        norm = float(self.accelerator.clip_grad_norm_(self.parameters, limit))
        if not math.isfinite(norm) and self.accelerator.scaler is None:  # a loss scaler skips such steps itself
            raise RunError(
                f"The gradient's norm is {norm} in step {self.completed + 1}, update {update_index + 1} of the run; "
                "this update was not made. Usual causes: a learning rate that is too high, or NaN from the policy's "
                "replay."
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(update_index)
        watch_weights = not self._moved and norm > 0 and self.accelerator.scaler is None
        before = _fingerprint(self.parameters) if watch_weights else None
        self.optimizer.step()
        self.optimizer.zero_grad()
        if before is not None:
            if torch.equal(before, _fingerprint(self.parameters)):
                raise RunError(
                    f"No weight changed in the first update, though the gradient's norm is {norm:.3g} and the learning "
                    f"rate {self._learning_rate(update_index):.3g}. Usual causes: the rate is too small for the "
                    "weights' precision, or the optimizer holds other parameters than the policy."
                )
            self._moved = True
        return norm

    def _learning_rate(self, update_index: int) -> float:
        rate = self.learning_rate * min(1.0, (update_index + 1) / max(1, self.warmup_steps))
        if self.schedule == "cosine":
            horizon = max(1, self.steps * self.updates_per_step - self.warmup_steps)
            progress = min(1.0, max(0, update_index - self.warmup_steps) / horizon)
            rate *= (1 + math.cos(math.pi * progress)) / 2
        return rate

    def _check_numbers(self) -> None:
        for name in ("steps", "prompts_per_step", "micro_batch_size", "updates_per_rollout", "minibatches"):
            if getattr(self, name) < 1:
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
        if self.schedule not in ("constant", "cosine"):
            raise UsageError(f"schedule must be 'constant' or 'cosine', got {self.schedule!r}.")
        trial = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, len(self.terms))
        self.advantage(trial, torch.ones(len(self.terms)), torch.zeros(2, dtype=torch.int64))  # its options, tried now
        if len(self.prompts) == 0:
            raise UsageError("There is no prompt to train on.")

    def _place_policy(self) -> list[torch.nn.Parameter]:
        modules = self.policy.modules()
        for module in modules.values():
            if any(p.device != self.device for p in module.parameters()):
                module.to(self.device)
        parameters = {id(p): p for m in modules.values() for p in m.parameters() if p.requires_grad}
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
        return list(parameters.values())


def _fingerprint(parameters: Sequence[torch.nn.Parameter]) -> Tensor:
    """Two sums per parameter in fp64: any real update changes some of them."""
    with torch.no_grad():
        return torch.stack([torch.stack([p.double().sum(), p.double().square().sum()]) for p in parameters])
