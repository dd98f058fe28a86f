"""Checks of the weights: methods and modules, gradients, the reference policy, and files."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import torch
from torch import Tensor, nn

from grpokit.policy import Policy
from grpokit.training.contract import METHODS, missing_methods
from grpokit.types import Rollout
from grpokit_check.check import NotChecked, attempt, expect
from grpokit_check.policy.case import (
    ROUNDED,
    Case,
    all_logprobs,
    expect_close,
    parameters,
    perturb,
    scored_slices,
)

RISE = 1e-3
"""How much the gradient's steps change the mean log-prob: far above rounding in fp32, and small enough to be linear."""


def protocol(case: Case) -> None:
    """All methods are there, and `modules()` gives modules."""
    policy = case.factory()
    missing = missing_methods(policy)
    expect(not missing, f"the methods {', '.join(METHODS)}", f"none called {', '.join(missing)}",
           "a misspelt method; subclass grpokit.Policy")  # fmt: skip
    modules: Any = policy.modules()
    has_modules = isinstance(modules, dict) and modules and all(isinstance(m, nn.Module) for m in modules.values())
    expect(has_modules, "a mapping from names to torch modules from modules()", f"{type(modules).__name__}",
           "a bare module or a list of parameters")  # fmt: skip


def gradient(case: Case) -> None:
    """Every trainable parameter gets a gradient from the log-probs, which change along it as it predicts."""
    policy = case.build()
    rollout = case.shared(policy)
    trainable = parameters(policy)
    expect(trainable, "a trainable parameter", "none in modules()", "everything frozen, or modules() names another net")
    for p in trainable.values():
        p.grad = None
    weights = torch.linspace(0.5, 1.5, rollout.rows)[:, None] * rollout.mask.cpu() / rollout.mask.sum().cpu()
    for steps, new in scored_slices(policy, rollout):
        expect(new.logprobs.requires_grad, "log-probs with a graph", "none",
               "torch.no_grad(), detach() or inference mode in logprobs()")  # fmt: skip
        _weighted(new.logprobs, weights[:, steps]).backward()
    gradients = {name: p.grad for name, p in trainable.items() if p.grad is not None}
    missing = [name for name in trainable if name not in gradients]
    expect(not missing, "a gradient for every trainable parameter", f"none for {', '.join(missing[:5])}",
           "a parameter that logprobs() does not use (freeze it), a detach() before the log-probs, or prompts that do "
           "not reach it, such as texts without a picture")  # fmt: skip
    infinite = [name for name, grad in gradients.items() if not bool(grad.isfinite().all())]
    expect(not infinite, "finite gradients", f"NaN or infinity in {', '.join(infinite[:5])}",
           "a NaN under the mask; replace masked inputs with torch.where before the arithmetic")  # fmt: skip
    expect(any(bool(grad.any()) for grad in gradients.values()), "a gradient other than 0", "only zeros",
           "log-probs that do not depend on the weights")  # fmt: skip
    if case.low_precision:
        raise NotChecked(ROUNDED)
    alpha = RISE / sum(float(grad.double().square().sum()) for grad in gradients.values())
    means = []
    for factor in (alpha, -2 * alpha):  # one step up, then to the same distance below the start
        with torch.no_grad():
            for name, grad in gradients.items():
                trainable[name].add_(grad, alpha=factor)
        means.append(float(_weighted(all_logprobs(policy, rollout), weights)))
    rise = (means[0] - means[1]) / 2
    expect(0.5 * RISE <= rise <= 1.5 * RISE, f"log-probs that rise by {RISE:g} where their gradient predicts that",
           f"a change of {rise:+.2g}", "a gradient of the wrong sign, of other rows or of another scale")  # fmt: skip


def _weighted(logprobs: Tensor, weights: Tensor) -> Tensor:
    return torch.where(weights > 0, logprobs.cpu().double() * weights, 0.0).sum()


def reference(case: Case) -> None:
    """The reference policy is frozen; outside its context, also after an error, the policy is live again."""
    policy = case.build()
    rollout = case.shared(policy)
    live = all_logprobs(policy, rollout)
    with policy.reference():
        frozen = all_logprobs(policy, rollout)
    _expect_live(case, policy, rollout, live, "after the context")
    perturb(policy)
    updated = all_logprobs(policy, rollout)
    with policy.reference():
        again = all_logprobs(policy, rollout)
    expect_close(case, again, frozen, rollout.mask, "the same reference policy after an update of the live weights",
                 "a reference policy that shares its weights with the policy, or is copied in every call")  # fmt: skip
    _expect_live(case, policy, rollout, updated, "after an update and the context")
    with contextlib.suppress(InterruptedError), policy.reference():
        raise InterruptedError
    _expect_live(case, policy, rollout, updated, "after an error inside the context")


def _expect_live(case: Case, policy: Policy, rollout: Rollout, live: Tensor, when: str) -> None:
    expect_close(case, all_logprobs(policy, rollout), live, rollout.mask, f"the live policy {when}",
                 "a swap without try/finally; use grpokit.swapped")  # fmt: skip


def save_load(case: Case) -> None:
    """`load_state_dict` restores what `state_dict` gave, which is tensors and plain data."""
    policy = case.build()
    rollout = case.shared(policy)
    perturb(policy)
    saved = all_logprobs(policy, rollout)
    state = policy.state_dict()
    tensors = {name: x.detach().cpu().clone() for name, x in state.items() if isinstance(x, Tensor)}
    plain = {name: x for name, x in state.items() if not isinstance(x, Tensor)}
    same = attempt(lambda: json.loads(json.dumps(plain)) == plain) is True
    expect(bool(tensors) and same, "tensors by name, and plain data as JSON has it",
           f"{len(tensors)} tensors, and {plain!r}",
           "modules, arrays or tuples in state_dict(); nothing is pickled")  # fmt: skip
    other = case.build()
    other.load_state_dict({**plain, **tensors})
    perturb(policy, seed=2)
    policy.load_state_dict({**plain, **tensors})
    for which, loaded in (("a new policy", other), ("the same policy", policy)):
        expect_close(case, all_logprobs(loaded, rollout), saved, rollout.mask,
                     f"the saved log-probs after {which} has loaded the state",
                     "a module or a buffer that state_dict leaves out, or loading with strict=False")  # fmt: skip
