"""Checks of everything but `rollout`: log-probs, their slices and gradient, the reference, the weights on disk."""

from __future__ import annotations

import contextlib
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpokit.flow import gaussian_logprobs
from grpokit.objectives import GRPO
from grpokit.policy import METHODS, Policy, missing_methods
from grpokit.testing.check import expect
from grpokit.testing.policy.case import Case, all_logprobs, gap, parameters, perturb, views
from grpokit.types import Rollout, Seeds, Trace


def protocol(case: Case) -> None:
    """All methods are there, and `modules()` gives modules."""
    policy = case.factory()
    missing = missing_methods(policy)
    expect(not missing, f"the methods {', '.join(METHODS)}", f"none called {', '.join(missing)}",
           "a misspelt method; subclass grpokit.Policy")  # fmt: skip
    modules: Any = policy.modules()
    good = isinstance(modules, dict) and modules and all(isinstance(m, nn.Module) for m in modules.values())
    expect(good, "a mapping from names to torch modules from modules()", f"{type(modules).__name__}",
           "a bare module or a list of parameters")  # fmt: skip


def ratio_is_one(case: Case) -> None:
    """Replay right after rollout gives the rollout's log-probs, for groups in any order of ids."""
    policy, seeds = case.factory(), case.seeds()
    backwards = Seeds(row=seeds.row, group=seeds.group, group_ids=seeds.group_ids.flip(0))
    for order, given in (("ascending", seeds), ("descending", backwards)):
        rollout = case.rollout(policy, seeds=given)
        for steps in policy.slices(rollout):
            with torch.no_grad():
                new = policy.logprobs(rollout, steps).logprobs
            found = gap(new, rollout.old.logprobs[:, steps], rollout.mask[:, steps])
            expect(found <= case.tolerance, f"a gap of log-probs of at most {case.tolerance:g} right after the rollout",
                   f"{found:.3g} in {steps}, group ids {order}",
                   "log-probs before temperature, truncation or guidance, dropout, or another row's prompt "
                   "(trace.per_group goes by ascending id)")  # fmt: skip


def rows_independent(case: Case) -> None:
    """A row's log-probs are the same alone, in another order and among other rows."""
    policy = case.factory()
    rollout = case.rollout(policy)
    whole, count = all_logprobs(policy, rollout), rollout.rows
    selections = [[i] for i in range(count)] + [list(range(count))[::-1], list(range(0, count, 2))]
    for rows in map(torch.tensor, selections):
        found = gap(all_logprobs(policy, rollout.select(rows)), whole[rows], rollout.mask[rows])
        expect(found <= case.tolerance, f"the same log-probs in a batch of the rows {rows.tolist()}",
               f"a gap of {found:.3g}", "positions that count padding, or statistics over the batch")  # fmt: skip


def logprobs_repeat(case: Case) -> None:
    """Two calls agree to the bit."""
    policy = case.factory()
    rollout = case.rollout(policy)
    first, second = all_logprobs(policy, rollout), all_logprobs(policy, rollout)
    found = gap(first, second, rollout.mask)
    expect(found == 0, "two equal calls, bit for bit", f"a gap of {found:.3g}",
           "dropout, or a running average, that is on; keep the modules in eval mode")  # fmt: skip


def masked_out(case: Case) -> None:
    """What stands under the mask changes neither a decision's log-prob nor the loss."""
    policy = case.factory()
    rollout = case.rollout(policy)
    mask = rollout.mask

    def refilled(x: Tensor) -> Tensor:
        if x.shape[:2] != mask.shape:
            return x
        kept = mask.to(x.device).reshape(*mask.shape, *[1] * (x.ndim - 2))
        return torch.where(kept, x, x[:, :1])  # a row's first value is a valid one

    trace = Trace(per_row={name: refilled(x) for name, x in rollout.trace.per_row.items()},
                  per_group=rollout.trace.per_group)  # fmt: skip
    changed = replace(rollout, trace=trace)
    found = gap(all_logprobs(policy, changed), all_logprobs(policy, rollout), mask)
    cause = "a bidirectional look at what follows the end, or a mask that leaves out a decision"
    expect(found <= case.tolerance, "log-probs that do not depend on what the trace holds under the mask",
           f"a gap of {found:.3g}", cause)  # fmt: skip
    losses = [_loss(policy, r) for r in (rollout, changed)]
    expect(math.isfinite(losses[0]) and abs(losses[0] - losses[1]) <= case.tolerance, f"the loss {losses[0]:.6g}",
           f"{losses[1]:.6g}", cause)  # fmt: skip


def _loss(policy: Policy, rollout: Rollout) -> float:
    advantages = torch.linspace(-1, 1, rollout.rows)
    total = 0.0
    for steps, new in views(policy, rollout):
        old, mask = rollout.old.select(decisions=steps), rollout.mask[:, steps]
        total += float(GRPO()(new, old, advantages.to(old.logprobs), mask).value.detach().sum())
    return total


def slices(case: Case) -> None:
    """Step slices follow each other from 0 to T, and add up to the log-probs of the whole."""
    policy = case.factory()
    rollout = case.rollout(policy)
    length, at = rollout.mask.shape[1], 0
    pieces = list(policy.slices(rollout))
    for piece in pieces:
        start, stop, stride = piece.indices(length)
        good = start == at and stop > start and stride == 1
        expect(good, f"a slice that begins at {at}", f"{piece}", "slices that overlap, or leave decisions out")
        at = stop
    expect(at == length, f"slices up to {length}", f"the last one ends at {at}", "a last decision that was forgotten")
    with torch.no_grad():
        whole = policy.logprobs(rollout, slice(0, length)).logprobs
    found = gap(whole, all_logprobs(policy, rollout), rollout.mask)
    expect(found <= case.tolerance, "slices that add up to the log-probs of all decisions", f"a gap of {found:.3g}",
           "positions counted from the slice's start")  # fmt: skip


def gaussian(case: Case) -> None:
    """Log-probs are the density under the mean and std beside them, per dimension."""
    policy = case.factory()
    rollout = case.rollout(policy, seeds=case.seeds(group_size=max(case.group_size, 16)))
    squares: list[Tensor] = []
    dims = rollout.action_dims
    for steps, view in views(policy, rollout):
        if view.mean is None or view.std is None:
            expect(view.mean is view.std, "mean and std, or neither", "one of them", "a forgotten field of Decisions")
            return
        mask = rollout.mask[:, steps]
        mean, std, logprobs = view.mean.detach(), view.std.detach(), view.logprobs.detach()
        count = math.prod(mean.shape[2:])
        expect(mean.shape[:2] == mask.shape and count == dims, f"a mean of {dims} numbers (action_dims) per decision",
               f"the shape {tuple(mean.shape)}", "action_dims that counts something else")  # fmt: skip
        expect((std > 0)[mask].all(), "a standard deviation above 0", f"{float(std.min())}", "a noiseless last step")
        if case.decisions is not None:
            found = gap(gaussian_logprobs(case.decisions(rollout)[:, steps], mean, std), logprobs, mask)
            expect(found <= case.tolerance, "the log-probs of N(mean, std) at the drawn values, per dimension",
                   f"a gap of {found:.3g}", "a sum over dimensions, or another step's std")  # fmt: skip
        spread = std.expand_as(mean).log()
        logs = spread.flatten(2).mean(-1) if mean.ndim > 2 else spread
        squares.append((-2 * (logprobs + logs) - math.log(2 * math.pi))[mask])  # mean over dimensions of z^2
    implied = torch.cat(squares).double()
    mean_square, lowest = float(implied.mean()), float(implied.min())
    limit = 6 * math.sqrt(2 / (len(implied) * dims))
    expect(abs(mean_square - 1) <= limit and lowest >= -1e-3,
           f"log-probs, mean and std that agree: a mean squared distance from the mean of 1 ± {limit:.2g} stds",
           f"{mean_square:.3g} (the lowest is {lowest:.3g})",
           "a std that is not the one drawn with, or log-probs summed over dimensions and not averaged")  # fmt: skip


def gradient(case: Case) -> None:
    """Every trainable parameter gets a gradient from the log-probs."""
    policy = case.factory()
    rollout = case.rollout(policy)
    trained = parameters(policy)
    expect(trained, "a trainable parameter", "none in modules()", "everything frozen, or modules() names another net")
    for p in trained.values():
        p.grad = None
    for steps, view in views(policy, rollout):
        expect(view.logprobs.requires_grad, "log-probs with a graph", "none",
               "torch.no_grad(), detach() or inference mode in logprobs()")  # fmt: skip
        mask = rollout.mask[:, steps]
        factors = torch.linspace(0.5, 1.5, rollout.rows).to(view.logprobs)[:, None]
        torch.where(mask, view.logprobs * factors, 0.0).sum().backward()
    left_out = [name for name, p in trained.items() if p.grad is None]
    expect(not left_out, "a gradient for every trainable parameter", f"none for {', '.join(left_out[:5])}",
           "a parameter that logprobs() does not use (freeze it), or a detach() on the way")  # fmt: skip
    slopes = {name: p.grad for name, p in trained.items() if p.grad is not None}
    strange = [name for name, slope in slopes.items() if not bool(slope.isfinite().all())]
    expect(not strange, "finite gradients", f"NaN or infinity in {', '.join(strange[:5])}",
           "a NaN under the mask; replace masked inputs with torch.where before the arithmetic")  # fmt: skip
    expect(any(bool(slope.any()) for slope in slopes.values()), "a gradient other than 0", "only zeros",
           "log-probs that do not depend on the weights")  # fmt: skip


def reference(case: Case) -> None:
    """The reference is frozen, and the policy is itself again outside, also after an error."""
    policy = case.factory()
    rollout = case.rollout(policy)
    live = all_logprobs(policy, rollout)
    with policy.reference():
        frozen = all_logprobs(policy, rollout)
    _expect_live(case, policy, rollout, live, "after the context")
    perturb(policy)
    moved = all_logprobs(policy, rollout)
    with policy.reference():
        again = all_logprobs(policy, rollout)
    found = gap(again, frozen, rollout.mask)
    expect(found <= case.tolerance, "the same reference after an update of the live weights", f"a gap of {found:.3g}",
           "a reference that shares its weights with the policy, or is copied anew each time")  # fmt: skip
    _expect_live(case, policy, rollout, moved, "after an update and the context")
    with contextlib.suppress(InterruptedError), policy.reference():
        raise InterruptedError
    _expect_live(case, policy, rollout, moved, "after an error inside the context")


def _expect_live(case: Case, policy: Policy, rollout: Rollout, live: Tensor, when: str) -> None:
    found = gap(all_logprobs(policy, rollout), live, rollout.mask)
    expect(found <= case.tolerance, f"the live policy {when}", f"a gap of {found:.3g}",
           "a swap without try/finally; use grpokit.swapped")  # fmt: skip


def save_load(case: Case) -> None:
    """What `save` wrote, `load` restores, and it is safetensors and JSON."""
    policy = case.factory()
    rollout = case.rollout(policy)
    perturb(policy)
    trained = all_logprobs(policy, rollout)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy.save(folder)
        files = sorted(f.name for f in folder.rglob("*") if f.is_file())
        others = [f for f in files if not f.endswith((".safetensors", ".json"))]
        expect(files and not others, "only .safetensors and .json files", f"{others or 'no file'}",
               "torch.save or pickle; use safetensors.torch.save_file")  # fmt: skip
        fresh = case.factory()
        fresh.load(folder)
        perturb(policy, seed=2)
        policy.load(folder)
    for which, one in (("a new policy", fresh), ("the policy itself", policy)):
        found = gap(all_logprobs(one, rollout), trained, rollout.mask)
        expect(found <= case.tolerance, f"that {which} is after load what was saved", f"a gap of {found:.3g}",
               "a module or a buffer that save leaves out, or load with strict=False")  # fmt: skip


def learns(case: Case, steps: int, learning_rate: float) -> None:
    """Plain policy gradient raises a toy reward: the mean of the decisions in the trace."""
    policy = case.factory()
    optimizer = torch.optim.Adam(parameters(policy).values(), lr=learning_rate)
    before, spread = _toy_scores(case, policy)
    for step in range(steps):
        rollout = case.rollout(policy, seeds=case.seeds(step=step + 1, group_size=16))
        scores = _toy_reward(rollout).reshape(len(case.prompts), -1)
        advantages = ((scores - scores.mean(1, keepdim=True)) / (scores.std() + 1e-6)).flatten()
        optimizer.zero_grad()
        for part, view in views(policy, rollout):
            mask = rollout.mask[:, part]
            value = torch.where(mask, -view.logprobs * advantages.to(view.logprobs)[:, None], 0.0).sum()
            (value / rollout.mask.sum()).backward()
        optimizer.step()
    after, _ = _toy_scores(case, policy)
    expect(after > before + 0.3 * spread, f"a toy reward above {before:.3g} by 0.3 of its spread {spread:.3g}",
           f"{after:.3g} after {steps} updates", "a gradient of the wrong sign, or of other rows")  # fmt: skip


def _toy_scores(case: Case, policy: Policy) -> tuple[float, float]:
    scores = _toy_reward(case.rollout(policy, seeds=case.seeds(group_size=64)))
    return float(scores.mean()), float(scores.std())


def _toy_reward(rollout: Rollout) -> Tensor:
    for x in rollout.trace.per_row.values():
        if x.ndim > 1:
            values = x.double().flatten(2).mean(-1) if x.ndim > 2 else x.double()
            if values.shape != rollout.mask.shape:
                return values[:, -1]
            return torch.where(rollout.mask, values, 0.0).sum(-1) / rollout.mask.sum(-1)
    raise ValueError("the trace holds no tensor [B, T, ...] that a toy reward could rise with")
