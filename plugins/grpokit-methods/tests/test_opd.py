"""On-policy distillation: the exact KL of steps, the expected gradient of tokens, and the distance of copies."""

from __future__ import annotations

import pytest
import torch
from noised_copies import ADVANTAGES, EVERY, REFERENCE_VELOCITY, SOME, VELOCITY, by_differences, view, wave
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from grpokit import Decisions, objectives
from grpokit.flow import gaussian_logprobs
from grpokit_methods.opd import OPD

SHAPE = (6, 2, 3)


def steps(mean: Tensor, std: Tensor) -> Decisions:
    """Gaussian steps [6, 2] in three dimensions."""
    return Decisions(logprobs=gaussian_logprobs(wave(9, *SHAPE), mean, std), mean=mean, std=std)


@pytest.mark.parametrize("mask", [EVERY, SOME], ids=["all", "some"])
def test_the_kl_of_a_step_is_exact(mask: Tensor) -> None:
    """Per dimension, as torch.distributions has it, with the teacher's own std too."""
    mean = wave(1, *SHAPE).requires_grad_()
    std, other_std = 0.4 + 0.1 * wave(2, 6, 2, 1).abs(), 0.5 + 0.1 * wave(3, 6, 2, 1).abs()
    new, teacher = steps(mean, std), steps(wave(4, *SHAPE), other_std)
    loss = OPD()(new, new.detach(), torch.zeros(6), mask, teacher)

    def page(means: Tensor) -> Tensor:
        exact = kl_divergence(Normal(means, std), Normal(wave(4, *SHAPE), other_std)).mean(-1)
        return torch.where(mask, exact, 0.0)

    torch.testing.assert_close(loss.value, page(mean), rtol=0, atol=1e-12)
    assert torch.equal(loss.stats["opd/kl"], loss.value.detach())
    (slope,) = torch.autograd.grad(loss.value.sum(), mean)
    differences = by_differences(lambda m: float(page(torch.from_numpy(m)).sum()), mean)
    torch.testing.assert_close(slope, differences, rtol=0, atol=1e-8)


def test_a_step_of_the_ode_counts_as_one_of_unit_variance() -> None:
    mean, theirs, unit = wave(1, *SHAPE), wave(4, *SHAPE), torch.ones(6, 2, 1).double()
    new, teacher = (Decisions(logprobs=torch.zeros(6, 2).double(), mean=m, std=unit) for m in (mean, theirs))
    loss = OPD()(new, new, torch.zeros(6), EVERY, teacher)
    torch.testing.assert_close(loss.value, (mean - theirs).square().mean(-1) / 2, rtol=0, atol=1e-15)


def test_a_copy_is_compared_by_its_velocity() -> None:
    velocity = VELOCITY.clone().requires_grad_()
    loss = OPD()(view(velocity), view(VELOCITY), torch.zeros(6), EVERY, view(REFERENCE_VELOCITY))
    expected = (velocity - REFERENCE_VELOCITY).square().mean(-1)
    torch.testing.assert_close(loss.value, expected, rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(loss.value.sum(), velocity)
    torch.testing.assert_close(slope, 2 * (VELOCITY - REFERENCE_VELOCITY) / 3, rtol=0, atol=1e-12)


def test_the_gradient_of_a_token_is_that_of_the_reverse_kl_in_expectation() -> None:
    """Every token of a vocabulary of five is drawn once, and counts with its probability; the ratio is away from 1."""
    logits, old_logits, teacher_logits = (wave(number, 5) for number in (1, 2, 3))
    logits.requires_grad_()
    teacher = teacher_logits.log_softmax(-1)
    for before, is_on_policy in ((logits.detach(), True), (old_logits, False)):
        old = before.log_softmax(-1)
        new = logits.log_softmax(-1)
        column = [Decisions(logprobs=x[:, None]) for x in (new, old, teacher)]
        loss = OPD()(column[0], column[1], torch.zeros(5), torch.ones(5, 1).bool(), column[2])
        expected_loss = (old.exp() * loss.value[:, 0]).sum()
        (slope,) = torch.autograd.grad(expected_loss, logits, retain_graph=True)
        if is_on_policy:
            exact = (new.exp() * (new - teacher)).sum()
            drawn_kl = (old.exp() * loss.stats["opd/kl"][:, 0]).sum()
            assert drawn_kl.item() == pytest.approx(exact.item(), abs=1e-14)
        else:  # the advantages are those of the policy that drew
            exact = (new.exp() * (old - teacher)).sum()
        (expected,) = torch.autograd.grad(exact, logits)
        torch.testing.assert_close(slope, expected, rtol=0, atol=1e-14)


def test_a_student_that_is_its_teacher_has_no_loss_and_no_gradient() -> None:
    mean = wave(1, *SHAPE).requires_grad_()
    new = steps(mean, 0.4 * torch.ones(6, 2, 1).double())
    velocity = VELOCITY.clone().requires_grad_()
    for decisions, leaf in ((new, mean), (view(velocity), velocity)):
        teacher = decisions.detach()
        loss = OPD()(decisions, teacher, ADVANTAGES, EVERY, teacher)
        (slope,) = torch.autograd.grad(loss.value.sum(), leaf)
        assert not loss.value.any()
        assert not slope.any()
    tokens = Decisions(logprobs=wave(1, 6, 2).requires_grad_())
    assert not OPD()(tokens, tokens.detach(), ADVANTAGES, EVERY, tokens.detach()).value.any()


def test_rows_without_advantage_learn() -> None:
    """Another objective would leave them out."""
    mean = wave(1, *SHAPE).requires_grad_()
    std = 0.4 * torch.ones(6, 2, 1).double()
    new, teacher = steps(mean, std), steps(wave(4, *SHAPE), std)
    values = [
        objective(new, new.detach(), torch.zeros(6), EVERY, teacher).value for objective in (OPD(), objectives.GRPO())
    ]
    assert bool((values[0] > 0.01).all())
    assert not values[1].any()
