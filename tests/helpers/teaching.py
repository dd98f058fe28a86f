"""What must hold of every policy that has teachers: trained adapters around its own base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpokit import Ask, Decisions, Policy, Prompt, Rollout, UsageError
from grpokit.sampling import derive_seeds

RANKS = {"a": 2, "b": 3}
STUDENT = 4


def scored(policy: Policy, rollout: Rollout) -> Decisions:
    with torch.no_grad():
        return policy.logprobs(rollout, slice(0, rollout.mask.shape[1]), ask=Ask(entropy="no", moments=True))


def drawn(policy: Policy, prompts: Sequence[Prompt]) -> Rollout:
    seeds = derive_seeds(1, stream="train", step=0, prompts=len(prompts), group_size=2)
    return policy.rollout(prompts, 2, seeds=seeds)


def trained(policy: Any, seed: int) -> Any:
    """The policy, whose adapter has learnt something."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return policy


def of_base(model: torch.nn.Module) -> dict[int, torch.nn.Parameter]:
    """The weights that no adapter has, by their place in memory."""
    return {p.data_ptr(): p for name, p in model.named_parameters() if "lora_" not in name}


def assert_teaches(make: Callable[..., Any], prompts: Sequence[Prompt], folder: Path, **options: Any) -> None:
    """Export two policies as teachers of a third.

    Args:
        make: a policy with these options, such as `lora`, in fp32.
        prompts: three. The first one names the second teacher, the next one the first, and the last one none: its
            group has the id 2, so it is the first one's turn.
        folder: where the teachers go.
        options: for all.
    """
    alone: dict[str, Any] = {}
    for seed, (name, rank) in enumerate(RANKS.items()):
        alone[name] = trained(make(lora={"r": rank}, **options), seed)
        (folder / name).mkdir(parents=True)
        alone[name].export(folder / name)
    student = make(lora={"r": STUDENT}, teachers={name: folder / name for name in RANKS}, **options)
    student = trained(student, 5)
    named = [replace(prompt, meta={"teacher": name}) for prompt, name in zip(prompts, "ba", strict=False)]
    rollout = drawn(student, [*named, prompts[2]])
    before = scored(student, rollout)
    with student.reference():
        told = scored(student, rollout)
    after, expected = scored(student, rollout), {name: scored(policy, rollout) for name, policy in alone.items()}
    assert torch.equal(before.logprobs, after.logprobs)
    for row, name in enumerate("bbaaaa"):
        other = "a" if name == "b" else "b"
        torch.testing.assert_close(told.logprobs[row], expected[name].logprobs[row], rtol=1e-6, atol=1e-6)
        field = "logprobs" if told.mean is None else "mean"
        mine = getattr(told, field)[row]
        torch.testing.assert_close(mine, getattr(expected[name], field)[row], rtol=1e-5, atol=1e-5)
        for others in (expected[other], before):
            assert float((mine - getattr(others, field)[row]).abs().max()) > 1e-5

    if told.mean is None:
        assert_compares(student, rollout)
    base = of_base(student.model)
    for model in student._teachers.models.values():
        assert of_base(model).keys() <= base.keys()
        assert not any(p.requires_grad for p in model.parameters())
    assert student.state_dict().keys() == make(lora={"r": STUDENT}, **options).state_dict().keys()
    with pytest.raises(UsageError, match=r"names the teacher 'c'.* The policy's teachers are a, b\."):
        student.check([replace(prompts[0], meta={"teacher": "c"})])


def assert_compares(student: Any, rollout: Rollout) -> None:
    """The KL of whole distributions is 0 from its own, and above 0 from a teacher's, to which its gradient leads."""
    steps = slice(0, rollout.mask.shape[1])
    with torch.no_grad():
        own = student.logprobs(rollout, steps, ask=Ask(entropy="no", distribution=True)).distribution
        with student.reference():
            theirs = student.logprobs(rollout, steps, ask=Ask(entropy="no", distribution=True)).distribution
        itself = student.logprobs(rollout, steps, ask=Ask(entropy="no", against=own)).kl
    assert float(itself.abs().max()) < 1e-6
    kl = student.logprobs(rollout, steps, ask=Ask(entropy="no", against=theirs)).kl
    distance = kl.detach()
    assert float(distance[rollout.mask].min()) > 0
    learning = [p for p in student.model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(kl.sum(), learning, allow_unused=True)
    length = sum(float(g.square().sum()) for g in gradients if g is not None)
    step = 0.01 * float(distance.sum()) / length
    with torch.no_grad():
        for p, g in zip(learning, gradients, strict=True):
            if g is not None:
                p.sub_(step * g)
        after = student.logprobs(rollout, steps, ask=Ask(entropy="no", against=theirs)).kl
        for p, g in zip(learning, gradients, strict=True):
            if g is not None:
                p.add_(step * g)
    fall = float((distance - after).sum())
    torch.testing.assert_close(fall, 0.01 * float(distance.sum()), rtol=0.05, atol=0.0)
