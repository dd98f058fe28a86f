"""What a pass asks a policy for, and that it never waits for the device."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpokit import Ask, Decisions, Modifier, Observer, Prompt, Rollout, Seeds, Signal, Trainer, objectives
from grpokit.group_statistics import Groups
from grpokit.objectives import Loss, Objective
from grpokit.training import gradient, logprob_passes
from grpokit.training.checked_policy import CheckedPolicy
from grpokit.training.step import LearningStep, Step
from tiny_policies import TinyGaussian, TinyTokens, digit_sum, nearness

PROMPTS = [str(i) for i in range(12)]


class Asked(TinyTokens):
    """Keeps what it was asked for, and whether with gradient."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asks: list[tuple[str, bool, bool]] = []

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        self.asks.append((ask.entropy, ask.moments, torch.is_grad_enabled()))
        return super().logprobs(rollout, steps)


class AskedGaussian(TinyGaussian, Asked):
    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        self.asks.append((ask.entropy, ask.moments, torch.is_grad_enabled()))
        return super().logprobs(rollout, steps)


class Graphs(TinyTokens):
    """Counts how many of its graphs are alive when the next pass begins."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.graphs: list[weakref.ref[torch.Tensor]] = []
        self.alive: list[int] = []

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        self.alive.append(sum(graph() is not None for graph in self.graphs))
        decisions = super().logprobs(rollout, steps)
        self.graphs.append(weakref.ref(decisions.logprobs))
        return decisions


def test_a_graph_is_gone_before_the_next_pass() -> None:
    """What it still holds after the backward pass, such as gradients of an output layer, would lie beside the next."""
    policy = Graphs(slices=2)
    Trainer(policy, [digit_sum], PROMPTS, micro_batch_size=4, device="cpu").step()
    assert len(policy.alive) > 8
    assert set(policy.alive) == {0}


@pytest.mark.parametrize(
    ("policy", "objective", "expected"),
    [
        (Asked(), objectives.GRPO(kl_coef=0.1), {("no", False, False), ("value", False, True)}),
        (Asked(), objectives.GRPO(entropy_coef=0.1), {("grad", False, True)}),
        # whole sequences in slices: the first pass reads the entropy, the second has its gradient
        (Asked(slices=2), objectives.GSPO(entropy_coef=0.1), {("grad", False, False), ("grad", False, True)}),
        (Asked(slices=2), objectives.GSPO(), {("value", False, False), ("no", False, True)}),
        (AskedGaussian(), objectives.GRPO(kl="gaussian", kl_coef=0.1), {("no", True, False), ("value", True, True)}),
    ],
)
def test_a_policy_is_asked_for_what_the_loss_reads(
    policy: Asked, objective: objectives.Objective, expected: set[tuple[str, bool, bool]]
) -> None:
    reward = nearness if isinstance(policy, TinyGaussian) else digit_sum
    Trainer(policy, [reward], PROMPTS, objective=objective, device="cpu").step()
    probe = {("no", False, False)} if objective.needs_reference else set()  # the reference's sample
    assert set(policy.asks) - probe == expected - probe
    assert expected <= set(policy.asks)


class Referred(TinyGaussian):
    """Counts the slices that the reference scores, and notes whether their moments were asked for."""

    def __init__(self) -> None:
        super().__init__(dtype=torch.float64)
        self.referring = False
        self.asks: list[bool] = []

    @contextmanager
    def reference(self) -> Iterator[None]:
        self.referring = True
        with super().reference():
            yield
        self.referring = False

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        if self.referring and rollout.rows > 1:  # one row is the probe's
            self.asks.append(ask.moments)
        return super().logprobs(rollout, steps)


@pytest.mark.parametrize("objective", [objectives.GRPO, objectives.GSPO])
def test_the_references_moments_are_found_once_for_a_rollout(
    objective: type[objectives.GRPO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 slices of 2 micro-batches: once if the means fit, else once in each of the two updates; with equal weights."""
    weights, counts = [], []
    for bound in (2**30, 0):
        monkeypatch.setattr(logprob_passes, "_KEPT_BYTES", bound)
        policy = Referred()
        trainer = Trainer(
            policy, [nearness], PROMPTS, objective=objective(kl="gaussian", kl_coef=0.5), prompts_per_step=2,
            group_size=4, micro_batch_size=4, updates_per_rollout=2, learning_rate=0.05, device="cpu",
        )  # fmt: skip
        trainer.step()
        counts.append(len(policy.asks))
        assert all(policy.asks)
        trainer.step()
        weights.append(policy.net.weight.detach().clone())
    assert counts == [4 * 2, 4 * 2 * 2]
    assert torch.equal(*weights)


class Storing(TinyGaussian):
    """Its rollouts hold the means."""

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        rollout = super().rollout(prompts, group_size, seeds=seeds, evaluate=evaluate)
        return replace(rollout, old=self._steps(rollout.trace, slice(0, self.length)).detach())


def test_a_guarded_ratio_has_the_old_means() -> None:
    """A pass before the first of two updates finds them where the rollout does not hold them."""
    passes, weights = [], []
    for kind in (Storing, TinyGaussian):
        policy = kind(dtype=torch.float64)
        objective = objectives.GRPO(ratio="guard", clip_range=0.01)
        Trainer(
            policy, [nearness], PROMPTS, objective=objective, updates_per_rollout=2, micro_batch_size=64,
            learning_rate=0.05, device="cpu",
        ).step()  # fmt: skip
        passes.append(len(policy.scored))
        weights.append(policy.net.weight.detach())
    assert passes == [4 * 2, 4 * 3]
    assert torch.allclose(*weights, rtol=0, atol=1e-12)


class Waits(TorchDispatchMode):
    """Counts operations whose result the host must know before it can go on."""

    WORDS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal", "is_nonzero", "bincount")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)
        if by_mask or name.strip("_").rstrip("2") in {word.strip("_") for word in self.WORDS}:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_the_counter_sees_what_waits() -> None:
    x = torch.tensor([1.0, 0.0, 1.0])
    with Waits() as waits:
        float(x.sum()), x[x > 0], x.nonzero(), x.unique(), bool(x.any()), torch.equal(x, x)
        x[[0, 1]], x[:2], torch.where(x > 0, x, 0.0), x.amax()
    assert len(waits.found) == 6


@pytest.mark.parametrize(
    ("policy", "objective"),
    [
        (TinyTokens(slices=3), objectives.GRPO(kl_coef=0.1, entropy_coef=0.1)),
        (TinyTokens(slices=3), objectives.GSPO(kl_coef=0.1)),
        (TinyGaussian(), objectives.GRPO(kl="gaussian", kl_coef=0.1)),
    ],
)
def test_scoring_and_backward_never_wait_for_the_device(
    policy: TinyTokens, objective: objectives.Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    waits = Waits()

    def counted(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        def inside(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            with waits:
                return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, inside)

    reward = nearness if isinstance(policy, TinyGaussian) else digit_sum
    trainer = Trainer(
        policy, [reward], PROMPTS, objective=objective, micro_batch_size=3, minibatches=2, updates_per_rollout=2,
        device="cpu",
    )  # fmt: skip
    trainer.step()  # the probe of the reference is taken once
    counted(gradient, "_add_up")
    counted(CheckedPolicy, "all_logprobs")
    trainer.step()
    assert waits.found == []
    assert set(calls) == {"_add_up"} | ({"all_logprobs"} if objective.kl_coef else set())


class Rivals(Objective):
    """The lead of each sample over the reference is compared with that of its group, with gradient through both."""

    reads_reference = True
    whole_groups = True

    def policy_loss(
        self,
        ratio: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        new: Decisions,
        old: Decisions,
        *,
        reference: Decisions | None = None,
        groups: torch.Tensor | None = None,
    ) -> Loss:
        lead = new.logprobs - torch.where(mask, reference.logprobs, 0.0)
        value = -ratio * advantages + (lead - Groups(groups).mean(lead, mask)).square()
        return Loss(value=value * (advantages != 0), stats={"rivals/lead": lead.detach()})


def page_of_rivals(step: LearningStep, policy: TinyTokens, kl_coef: float) -> torch.Tensor:
    """The loss of an update, row by row, from a single pass over all of its rows."""
    batch, total = step.minibatch, torch.zeros((), dtype=torch.float64)
    rollout, rows = batch.rollout, batch.rollout.rows
    new = policy.logprobs(rollout, slice(0, 7)).logprobs
    with policy.reference(), torch.no_grad():
        reference = policy.logprobs(rollout, slice(0, 7)).logprobs
    lead = new - reference
    for row, t in rollout.mask.nonzero().tolist():
        members = [i for i in range(rows) if rollout.groups[i] == rollout.groups[row] and rollout.mask[i, t]]
        advantage = step.signal.advantages[batch.numbers[row]]
        share = lead[row, t] - torch.stack([lead[i, t] for i in members]).mean()
        ratio = (new[row, t] - batch.old.logprobs[row, t]).exp()
        loss = (share.square() - ratio * advantage) if advantage else 0.0
        if kl_coef:
            d = reference[row, t] - new[row, t]
            loss = loss + kl_coef * (d.exp() - d - 1)
        factor = step.signal.weights[batch.numbers[row]]
        total = total + factor * loss / (rows * rollout.mask[row].sum())
    return total


class Pages(Observer):
    """How far the loss and the gradient of each update are from those of the page."""

    def __init__(self, policy: TinyTokens, kl_coef: float) -> None:
        self.policy, self.kl_coef = policy, kl_coef
        self.differences: list[float] = []
        self.rows: list[int] = []

    def differentiated(self, step: LearningStep) -> Sequence[str]:
        self.rows.append(step.minibatch.rollout.rows)
        loss = page_of_rivals(step, self.policy, self.kl_coef)
        self.differences.append(abs(loss.item() - sum(step.losses[-1])))
        parameters = list(self.policy.net.parameters())
        if not self.rows[-1]:
            assert all(p.grad is None for p in parameters)
            return ()
        slopes = torch.autograd.grad(loss, parameters)
        self.differences += [float((p.grad - slope).abs().max()) for p, slope in zip(parameters, slopes, strict=True)]
        return ()


class Fewer(Modifier):
    """Leaves out one group, half of the next one, and counts another one twice."""

    def rows(self, signal: Signal, step: Step) -> Signal:
        group, place = torch.arange(len(signal.weights)) // 4, torch.arange(len(signal.weights)) % 4
        weights = torch.where(group == 2, 2.0, 1.0) * (group != 0) * ((group != 1) | (place < 2))
        return replace(signal, weights=weights.double())


@pytest.mark.parametrize("fewer", [False, True], ids=["all rows", "fewer"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_a_loss_of_whole_groups_is_that_of_all_their_rows(size: int, kl_coef: float, fewer: bool) -> None:
    """Whatever the micro-batches and slices; the groups of an update may have lost all rows of this process."""
    policy = TinyTokens(dtype=torch.float64, slices=3)
    pages = Pages(policy, kl_coef)
    trainer = Trainer(
        policy, [digit_sum], PROMPTS, objective=Rivals(kl_coef=kl_coef), prompts_per_step=4, group_size=4,
        micro_batch_size=size, minibatches=4 if fewer else 2, updates_per_rollout=2, learning_rate=0.02,
        modifiers=[Fewer()] if fewer else [], observers={"pages": pages}, device="cpu",
    )  # fmt: skip
    reports = [trainer.step() for _ in range(2)]
    assert max(pages.differences) < 1e-12
    assert sorted(pages.rows[:4]) == ([0, 2, 4, 4] if fewer else [8] * 4)
    assert all(report.metrics["rivals/lead"] != 0 for report in reports)
