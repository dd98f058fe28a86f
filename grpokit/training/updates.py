"""Optimizer steps: the gradient's norm, the learning rate, the step itself, and the guards around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from grpokit.errors import UsageError
from grpokit.policy import Policy
from grpokit.processes.fsdp2 import How, has_shards, shard
from grpokit.processes.team import Team, fingerprints, is_sharded, local, refuse_other_weights
from grpokit.settings import TrainerSettings
from grpokit.training import checks
from grpokit.training.devices import is_low_precision, loss_scaler, place, wait_for
from grpokit.training.optimizers import learning_rate, optimizer_of
from grpokit.training.out_of_memory import explain_memory
from grpokit.training.state import State

_MANY = 0.1  # the share of weak updates from which a warning is due


def trainable(policy: Policy) -> dict[str, torch.nn.Parameter]:
    """A policy's trainable parameters, each once, by their names in `modules()`."""
    modules = policy.modules()
    pairs = []
    for key, module in modules.items():
        pairs += [(f"{key}/{name}", p) for name, p in module.named_parameters()]
    last_first = sorted(pairs, key=lambda pair: pair[0], reverse=True)
    names = {p: name for name, p in last_first}  # of a shared one the first
    parameters = {names[p]: p for _, p in pairs if p.requires_grad}
    if not parameters:
        raise UsageError(
            f"The policy has no trainable parameter: modules() gives {', '.join(modules) or 'nothing'}, and none "
            "of their parameters requires a gradient. Is an adapter missing, or is everything frozen?"
        )
    low = [p.dtype for p in parameters.values() if is_low_precision(p.dtype)]
    if low:
        raise UsageError(
            f"Trainable parameters are {low[0]}, which rounds away most updates of a usual learning rate. Keep them in "
            "float32 (frozen ones may stay small) and set mixed_precision: bf16."
        )
    return parameters


def ready(
    policy: Policy, device: torch.device, team: Team, *, sharding: How | None, needs_reference: bool
) -> dict[str, torch.nn.Parameter]:
    """Bring a policy to where it learns, and freeze its reference; returns its trainable parameters."""
    if not has_shards(policy):
        place(policy.modules(), device)
        refuse_other_weights(team, trainable(policy))
    if needs_reference:
        with policy.reference():  # takes its frozen copy before anything changes
            pass
    if sharding:
        shard(policy, sharding, device)
    return trainable(policy)


class Updates:
    """Makes the optimizer steps of a run; a script may set another `optimizer`."""

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        settings: TrainerSettings,
        device: torch.device,
        team: Team,
        modules: Mapping[str, torch.nn.Module],
    ) -> None:
        self.names = dict(parameters)
        self.parameters = list(parameters.values())
        self.settings, self.device, self.team = settings, device, team
        self.scaler = loss_scaler(device, settings.mixed_precision)
        self.sharded = any(map(is_sharded, self.parameters))
        self.optimizer = optimizer_of(
            parameters, modules, settings, device, scaled=self.scaler.is_enabled(), sharded=self.sharded
        )
        self.done = 0  # updates in the current step, or in the one that failed; those that changed nothing count
        self.incomplete = False  # whether an error interrupted an update
        self._warned = False  # of updates that epsilon has swallowed
        self._moved = False  # whether an update is known to have changed weights
        self.skipped = 0  # updates in a row that the loss scaler has left out

    def begin_step(self, step: int) -> list[str]:
        """Count the updates of a step from 0; returns a warning if its updates were interrupted before."""
        warnings: list[str] = []
        if self.done or self.incomplete:
            made = f"{self.done} of its {self.settings.updates_per_step} updates"
            half = ", in the middle of the next" if self.incomplete else ""
            warnings.append(f"Step {step} was interrupted after {made}{half}; they are kept, and it is drawn again.")
        self.done, self.incomplete = 0, False
        return warnings

    def rate(self, index: int) -> float:
        """The learning rate of the update with this index in the run, from 0."""
        return learning_rate(
            index,
            peak=self.settings.learning_rate,
            schedule=self.settings.schedule,
            warmup=self.settings.warmup_steps,
            total=self.settings.steps * self.settings.updates_per_step,
        )

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a part of the loss, scaled with fp16."""
        self.scaler.scale(loss).backward()

    def make(self, step: int, *, decided: int) -> tuple[float, bool]:
        """Make the next update of a step with the gradient of so many decisions in all processes.

        Returns:
            The gradient's norm before clipping, and whether weights have changed.
        """
        self.team.sum_gradients(self.parameters)
        norm, changed = 0.0, False  # such as where all samples were cut and are masked
        if decided:
            norm = self._clipped_norm()
            if not self.scaler.is_enabled():  # where it is, an update whose gradient is not finite is skipped
                checks.check_norm(norm, step=step, update=self.done + 1)
            rate = self.rate((step - 1) * self.settings.updates_per_step + self.done)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.incomplete = True  # as long as the device may be at work
            with explain_memory("making an update", remedies="an optimizer of 8 bits or LoRA, which keep less"):
                if self.scaler.is_enabled():
                    changed = self._scaled_step()
                else:
                    changed = True
                    self._watched_step(norm, rate)
            self.optimizer.zero_grad()
        wait_for(self.device)
        self.done, self.incomplete = self.done + 1, False
        return norm, changed

    def _clipped_norm(self) -> float:
        """Scale the gradients down where they are too large; returns their norm before."""
        checks.check_gradient(self.parameters)
        self.scaler.scale(torch.zeros((), device=self.device))  # sets it up where a process has no rows
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if self.settings.max_grad_norm is None else self.settings.max_grad_norm
        return clip(self.parameters, limit, self.team)

    def _scaled_step(self) -> bool:
        """Make an update if the gradient is finite; returns whether it was."""
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        scale = self.scaler.get_scale()  # lower, if the update was skipped
        self.skipped = self.skipped + 1 if scale < before else 0
        checks.check_skipped(self.skipped, scale=scale)
        return not self.skipped

    def _watched_step(self, norm: float, rate: float) -> None:
        """Make an update; the first with a gradient must change some weight of some process."""
        if self._moved or norm == 0 or rate == 0:
            self.optimizer.step()
            return
        before = fingerprints(self.parameters)
        self.optimizer.step()
        unchanged = self.team.gather(before == fingerprints(self.parameters))
        checks.check_change(not all(unchanged), norm=norm, rate=rate)
        self._moved = True

    def state_dict(self) -> State:
        """The loss scaler's own state, which it has only with fp16, and how many updates in a row it has skipped."""
        return {**self.scaler.state_dict(), "skipped": self.skipped}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`; that of another precision changes nothing."""
        self.skipped = state["skipped"]
        if "scale" in state:
            self.scaler.load_state_dict(dict(state))

    def metrics(self, step: int, warn: Callable[[str], None]) -> dict[str, float]:
        """The learning rate, and the share of the trained numbers whose update `adam_epsilon` at least halved.

        AdamW divides by the root of a mean of squared gradients plus epsilon. Numbers that never had a gradient do not
        count, and the first step warns of nothing: there an adapter has hardly begun. Averages of 8 bits have no such
        share.
        """
        rate = {"learning_rate": self.rate(step * self.settings.updates_per_step - 1)}
        if self.settings.optimizer != "adamw":
            return rate
        beta, epsilon = self.settings.adam_beta2, self.settings.adam_epsilon
        # Of weights that all processes have, and of parts, which they add up.
        whole = torch.zeros(2, dtype=torch.int64, device=self.device)
        parts = whole.clone()
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        for state in (state for state in states if "exp_avg_sq" in state):  # a script may set another optimizer
            squares = local(state["exp_avg_sq"])
            steps = torch.as_tensor(state["step"], dtype=torch.float64)
            bound = epsilon**2 * (1 - beta**steps)
            moving = squares > 0
            both = torch.stack([(moving & (squares <= bound)).sum(), moving.sum()])
            counts = parts if is_sharded(state["exp_avg_sq"]) else whole
            counts += both.to(self.device)
        if self.sharded:
            parts = torch.tensor(self.team.gather(parts.tolist()), device=self.device).sum(0)
        small, moving = (whole + parts).tolist()  # waits for the device once
        share = small / max(1, moving)
        if share >= _MANY and step > 1 and not self._warned:
            self._warned = True
            warn(
                f"In step {step} AdamW's epsilon of {epsilon:g} at least halved the updates of {share:.0%} of the "
                "trained numbers: their gradients are so small that they hardly learn. Set trainer.adam_epsilon=1e-15, "
                "or give the rewards more weight."
            )
        return {"updates_swallowed": share, **rate}


def clip(parameters: Sequence[torch.nn.Parameter], limit: float, team: Team) -> float:
    """Scale the gradients of sharded and whole parameters to a norm of at most `limit`; returns the norm before.

    All processes call this. `limit` may be infinite.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    whole = [gradient for gradient in gradients if not is_sharded(gradient)]
    norm, foreach = torch.nn.utils.get_total_norm(whole), None
    if any(map(is_sharded, parameters)):
        shards = [local(gradient) for gradient in gradients if is_sharded(gradient)]
        part = float(torch.nn.utils.get_total_norm(shards))
        total = math.hypot(float(norm), *team.gather(part))
        norm = torch.tensor(total, dtype=torch.float64)
        foreach = False  # which cannot mix sharded gradients and whole ones
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm, foreach=foreach)
    return float(norm)
