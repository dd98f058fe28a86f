"""A model of two halves, each of which writes a digit, and a policy for each half; with rewards for either digit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from grpokit import Decisions, Policy, Prompt, Rollout, Sample, Seeds, Trace, frozen_copy, swapped
from grpokit.sampling import sample_categorical, uniforms

DIGITS = 5


class Half(nn.Module):
    """The logits of a digit, for each of 16 prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, DIGITS)
        nn.init.zeros_(self.table.weight)


class Writer(Policy):
    """Its samples draw the digit of one half; the digit of the other is shared by a group.

    Args:
        halves: both.
        own: index of the half that learns.
    """

    def __init__(self, halves: Sequence[Half], own: int) -> None:
        self.halves, self.own, self.half = halves, own, halves[own]
        self.frozen: Half | None = None
        self.versions: list[int] = []

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        numbers = torch.tensor([int(prompt.text) for prompt in prompts]).repeat_interleave(group_size)
        draws = [uniforms(seeds.group.repeat_interleave(group_size), 1)[:, 0]] * 2
        draws[self.own] = uniforms(seeds.row, 1)[:, 0]
        pairs = [sample_categorical(half.table(numbers), draw) for half, draw in zip(self.halves, draws, strict=True)]
        digits, logprobs = pairs[self.own]
        groups = seeds.group_ids.repeat_interleave(group_size)
        samples = [
            Sample(prompt=prompts[row // group_size], output=f"{int(a)}{int(b)}", group=int(groups[row]))
            for row, (a, b) in enumerate(zip(pairs[0][0], pairs[1][0], strict=True))
        ]
        return Rollout(
            samples=samples,
            groups=groups,
            old=Decisions(logprobs=logprobs[:, None].detach()),
            mask=torch.ones(len(numbers), 1, dtype=torch.bool),
            max_decisions=1,
            trace=Trace(per_row={"digits": digits, "numbers": numbers}),
        )

    def logprobs(self, rollout: Rollout, steps: slice) -> Decisions:
        row = rollout.trace.per_row
        logprobs = self.half.table(row["numbers"]).log_softmax(-1).gather(-1, row["digits"][:, None])
        return Decisions(logprobs=logprobs[:, steps])

    @contextmanager
    def reference(self) -> Iterator[None]:
        if self.frozen is None:
            self.frozen = frozen_copy(self.half)
        with swapped(self, "half", self.frozen):
            yield

    def modules(self) -> dict[str, nn.Module]:
        return {"half": self.halves[self.own]}

    def updated(self, version: int) -> None:
        self.versions.append(version)

    def state_dict(self) -> Any:
        return self.halves[self.own].state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.halves[self.own].load_state_dict(state)


def both() -> dict[str, Policy]:
    """A policy for each half."""
    halves = [Half(), Half()]
    return {"first": Writer(halves, 0), "second": Writer(halves, 1)}


def one() -> Policy:
    """The first half alone."""
    return both()["first"]


def misnamed() -> dict[str, Policy]:
    """A name that no folder can have."""
    return {"a/b": one()}


def none() -> dict[str, Policy]:
    return {}


def first_is_high(samples: Sequence[Sample]) -> list[float]:
    return [int(str(sample.output)[0]) / (DIGITS - 1) for sample in samples]


def second_is_high(samples: Sequence[Sample]) -> list[float]:
    return [int(str(sample.output)[1]) / (DIGITS - 1) for sample in samples]
