"""Checks of log-probs: that they are those of the rollout, of each row alone, and of what was drawn."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from grpokit.flow import gaussian_logprobs
from grpokit.policy import optional
from grpokit.training.contract import scorer
from grpokit.types import Ask, Trace
from grpokit_check.check import NotChecked, expect
from grpokit_check.policy.case import Case, all_logprobs, detached_slices, expect_close, perturb

ENOUGH_DECISIONS, MOST_ROLLOUTS, LARGEST_GROUP = 5000, 32, 64
"""To compare frequencies, rollouts are drawn until there are this many decisions, or this many rollouts."""

MOST_DEVIATIONS = 5.0
"""Standard errors by which the mean surprisal may differ from the mean entropy."""


def ratio_is_one(case: Case) -> None:
    """`logprobs` right after `rollout` gives the rollout's log-probs, for group ids in any order and new weights."""
    policy, seeds = case.build(), case.seeds()
    reversed_ids = replace(seeds, group_ids=seeds.group_ids.flip(0))
    for when, own_seeds in (("ascending group ids", seeds), ("descending ones after an update", reversed_ids)):
        rollout = case.rollout(policy, seeds=own_seeds)
        for steps, new in detached_slices(policy, rollout):
            expect_close(case, new.logprobs, rollout.old.logprobs[:, steps], rollout.mask[:, steps],
                         f"the rollout's log-probs again right after it, in {steps}, with {when}",
                         "log-probs before temperature, truncation or guidance, dropout, draws with the weights before "
                         "the update, or another row's prompt (trace.per_group is in ascending order of group "
                         "ids)")  # fmt: skip
        perturb(policy)
        optional(policy, "updated")(1)


def rows_independent(case: Case) -> None:
    """A row's log-probs are the same alone, in another order and among other rows."""
    policy = case.build()
    rollout = case.shared(policy)
    whole, count = all_logprobs(policy, rollout), rollout.rows
    selections = [[i] for i in range(count)] + [list(range(count))[::-1], list(range(0, count, 2))]
    for rows in map(torch.tensor, selections):
        expect_close(case, all_logprobs(policy, rollout.select(rows)), whole[rows], rollout.mask[rows],
                     f"the same log-probs in a batch of the rows {rows.tolist()}",
                     "positions that count padding, or statistics over the batch")  # fmt: skip


def logprobs_repeat(case: Case) -> None:
    """Two calls agree to the bit."""
    policy = case.build()
    rollout = case.shared(policy)
    first, second = all_logprobs(policy, rollout), all_logprobs(policy, rollout)
    expect_close(replace(case, tolerance=0.0), first, second, rollout.mask, "two calls that agree to the bit",
                 "active dropout or a running average; keep the modules in eval mode")  # fmt: skip


def mask(case: Case) -> None:
    """What the trace holds behind a row's last decision changes no log-prob; between decisions it may be an input."""
    policy = case.build()
    rollout = case.shared(policy)
    read = torch.arange(rollout.mask.shape[1]) < rollout.lengths[:, None]  # [B, T]

    def refilled(x: Tensor) -> Tensor:
        if x.shape[:2] != read.shape:
            return x
        stays = read.to(x.device).reshape(*read.shape, *[1] * (x.ndim - 2))
        return torch.where(stays, x, x[:, :1])  # a row's first value is a valid one

    trace = Trace(per_row={name: refilled(x) for name, x in rollout.trace.per_row.items()},
                  per_group=rollout.trace.per_group)  # fmt: skip
    changed = replace(rollout, trace=trace)
    expect_close(case, all_logprobs(policy, changed), all_logprobs(policy, rollout), rollout.mask,
                 "log-probs that do not depend on what the trace holds behind the last decision",
                 "attention to what follows the end, or a mask that leaves out a decision")  # fmt: skip


def slices(case: Case) -> None:
    """Step slices follow each other from 0 to T, and add up to the log-probs of the whole."""
    policy = case.build()
    rollout = case.shared(policy)
    length, end = rollout.mask.shape[1], 0
    for steps in policy.slices(rollout):
        start, stop, stride = steps.indices(length)
        follows = start == end and stop > start and stride == 1
        expect(follows, f"a slice that begins at {end}", f"{steps}", "slices that overlap, or leave decisions out")
        end = stop
    expect(end == length, f"slices up to {length}", f"a last slice that ends at {end}", "a last decision left out")
    with torch.no_grad():
        whole = policy.logprobs(rollout, slice(0, length)).logprobs
    expect_close(case, all_logprobs(policy, rollout), whole, rollout.mask,
                 "slices with the log-probs that all decisions have together",
                 "positions counted from the slice's start")  # fmt: skip


def trimmed(case: Case) -> None:
    """A slice that is cut short gives the log-probs of the whole, as in a batch whose longest row ends there."""
    policy = case.build()
    rollout = case.shared(policy)
    whole, score, length = all_logprobs(policy, rollout), scorer(policy), rollout.mask.shape[1]
    for end in sorted({1, length // 2, length - 1} - {0}):
        for steps in policy.slices(rollout):
            short = slice(steps.start, min(steps.stop, end))
            if short.start >= short.stop:
                continue
            with torch.no_grad():
                new = score(rollout, short, Ask(entropy="no")).logprobs
            expect(new.shape == whole[:, short].shape, f"log-probs of the shape {tuple(whole[:, short].shape)} for "
                   f"{short}, which is cut short", f"{tuple(new.shape)}", "a slice that is ignored")  # fmt: skip
            expect_close(case, new, whole[:, short], rollout.mask[:, short],
                         f"the same log-probs for {short} as for the whole, of which it is the beginning",
                         "positions counted from the end, or attention to later decisions")  # fmt: skip


def frequencies(case: Case) -> None:
    """Tokens are drawn as often as their log-probs say: their mean surprisal is the stated entropy.

    A decision's surprisal, minus its log-prob, has the stated entropy as its mean, whatever was drawn before. So their
    differences are uncorrelated numbers of mean 0, unless only the draws, or only the log-probs, have a temperature.
    """
    policy, group_size = case.build(), case.group_size
    parts: list[Tensor] = []
    for number in range(MOST_ROLLOUTS):
        rollout = case.rollout(policy, seeds=case.seeds(step=number, group_size=group_size))
        for steps, new in detached_slices(policy, rollout):
            if new.mean is not None:
                return  # the check `gaussian` compares draws with densities
            if new.entropy is None:
                raise NotChecked("logprobs gives no entropy to compare the draws with")
            parts.append((-new.logprobs - new.entropy)[rollout.mask[:, steps]].double())
        decisions = sum(map(len, parts))
        if decisions >= ENOUGH_DECISIONS:
            break
        wanted = group_size * ENOUGH_DECISIONS // max(1, decisions)  # where a sample has few decisions: more at once
        group_size = max(case.group_size, min(wanted, LARGEST_GROUP))
    differences = torch.cat(parts)
    mean, error = float(differences.mean()), float(differences.square().sum().sqrt() / len(differences))
    expect(abs(mean) <= MOST_DEVIATIONS * error + case.tolerance,
           f"draws whose mean surprisal is the stated entropy within {MOST_DEVIATIONS * error:.2g} nats",
           f"a difference of {mean:+.2g} nats over {len(differences)} decisions",
           "draws without the temperature, truncation or guidance that the log-probs have, or an entropy of another "
           "distribution")  # fmt: skip


def gaussian(case: Case) -> None:
    """Log-probs are the density per dimension under the mean and std of the same decisions."""
    policy = case.build()
    rollout = case.rollout(policy, seeds=case.seeds(group_size=max(case.group_size, 16)))
    squares: list[Tensor] = []
    dims = rollout.action_dims
    for steps, new in detached_slices(policy, rollout):
        if new.target is not None:
            raise NotChecked("its decisions have a target; the check `target` is for these")
        if new.mean is None or new.std is None:
            expect(new.mean is new.std, "mean and std, or neither", "one of them", "a missing field of Decisions")
            raise NotChecked("its decisions are not Gaussian: they have no mean and std")
        mask, mean, std, logprobs = rollout.mask[:, steps], new.mean, new.std, new.logprobs
        count = math.prod(mean.shape[2:])
        expect(mean.shape[:2] == mask.shape and count == dims, f"a mean of {dims} numbers (action_dims) per decision",
               f"the shape {tuple(mean.shape)}", "action_dims that counts something else")  # fmt: skip
        expect((std > 0)[mask].all(), "a standard deviation above 0", f"{float(std.min())}", "a noiseless last step")
        if case.decisions is not None:
            expect_close(case, gaussian_logprobs(case.decisions(rollout)[:, steps], mean, std), logprobs, mask,
                         "the log-probs of N(mean, std) at the drawn values, per dimension",
                         "a sum over dimensions, or another step's std")  # fmt: skip
        spread = std.expand_as(mean).log()
        logs = spread.flatten(2).mean(-1) if mean.ndim > 2 else spread
        squares.append((-2 * (logprobs + logs) - math.log(2 * math.pi))[mask])  # mean over dimensions of z^2
    implied = torch.cat(squares).double()
    mean_square, lowest = float(implied.mean()), float(implied.min())
    limit = 6 * math.sqrt(2 / (len(implied) * dims))
    expect(abs(mean_square - 1) <= limit and lowest >= -1e-3,
           f"log-probs, mean and std that agree: a mean squared distance from the mean of 1 ± {limit:.2g} stds",
           f"{mean_square:.3g} (the lowest is {lowest:.3g})",
           "a std other than that of the draws, or log-probs summed over dimensions and not averaged")  # fmt: skip


def target(case: Case) -> None:
    """Scores that stand for log-probs rise where means come nearer to their targets, which stay where they are."""
    policy = case.build()
    rollout = case.shared(policy)
    before = detached_slices(policy, rollout)
    perturb(policy)
    for (steps, old), (_, new) in zip(before, detached_slices(policy, rollout), strict=True):
        if old.target is None or new.target is None or old.mean is None or new.mean is None:
            raise NotChecked("its decisions have no target")
        expect(old.target.shape == old.mean.shape and torch.equal(old.target, new.target),
               f"targets of the shape {tuple(old.mean.shape)} of the means, the same with other weights",
               f"other ones in {steps}", "a target that the weights made")  # fmt: skip
        squares = [(mean - old.target).square().flatten(2).mean(-1) for mean in (old.mean, new.mean)]
        nearer, risen = (squares[0] - squares[1]).double(), (new.logprobs - old.logprobs).double()
        against = rollout.mask[:, steps] & (nearer.abs() > case.tolerance) & (nearer * risen < 0)
        expect(case.low_precision or not against.any(), "scores that rise where a mean comes nearer to its target",
               f"{int(against.sum())} that fall in {steps}", "the target of another row or decision")  # fmt: skip
