"""A toy that learns in a second: a table of logits learns to write ones. The doctor trains it, and so do checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from grpokit.policy import Policy
from grpokit.reference import frozen_copy, swapped
from grpokit.sampling import sample_categorical, uniforms
from grpokit.types import Ask, Decisions, Prompt, Rollout, Sample, Seeds, Trace

_CHOICES, _LENGTH = 3, 4


class Table(Policy):
    """Draws four numbers from 0 to 2, each from logits of its own; a 0 ends a row, so lengths are unequal."""

    def __init__(self) -> None:
        start = torch.linspace(-0.4, 0.5, _LENGTH * _CHOICES, dtype=torch.float64)
        self.table = nn.ParameterList([nn.Parameter(start.reshape(_LENGTH, _CHOICES))])

    def rollout(self, prompts: Sequence[Prompt], group_size: int, *, seeds: Seeds, evaluate: bool = False) -> Rollout:
        """As `Policy`."""
        seeds = seeds.to(self.table[0].device)
        logits = self.table[0].repeat(len(seeds.row), 1)  # [T, choices] -> [B T, choices]
        flat = sample_categorical(logits, uniforms(seeds.row, _LENGTH).flatten())
        choices, logprobs = (x.reshape(-1, _LENGTH) for x in flat)  # [B, T]
        before = torch.nn.functional.pad(choices, (1, 0), value=1)[:, :-1]
        mask = (before != 0).cumprod(-1).bool()
        groups = seeds.group_ids.repeat_interleave(group_size)
        samples = [
            Sample(
                prompt=prompts[row // group_size], output="".join(map(str, choices[row][mask[row]].tolist())), group=g
            )
            for row, g in enumerate(groups.tolist())
        ]
        return Rollout(
            samples=samples,
            groups=groups,
            old=Decisions(logprobs=logprobs),
            mask=mask,
            max_decisions=_LENGTH,
            trace=Trace(per_row={"choices": choices}),
        )

    def logprobs(self, rollout: Rollout, steps: slice, *, ask: Ask = Ask()) -> Decisions:
        """As `Policy`."""
        logprobs = self.table[0][steps].log_softmax(-1)  # [t, choices]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        choices = rollout.trace.per_row["choices"][:, steps]
        chosen = logprobs.expand(len(choices), -1, -1).gather(-1, choices[..., None])[..., 0]
        return Decisions(logprobs=chosen, entropy=entropy.expand_as(chosen))

    @contextmanager
    def reference(self) -> Iterator[None]:
        """As `Policy`."""
        self.frozen: nn.Module = getattr(self, "frozen", None) or frozen_copy(self.table)
        with swapped(self, "table", self.frozen):
            yield

    def modules(self) -> Mapping[str, nn.Module]:
        """As `Policy`."""
        return {"table": self.table}

    def state_dict(self) -> Any:
        """As `Policy`."""
        return self.table.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """As `Policy`."""
        self.table.load_state_dict(state)


def ones(samples: Sequence[Sample]) -> list[float]:
    """The share of ones in a text."""
    return [sample.output.count("1") / _LENGTH for sample in samples]


def toy_prompts(split: str = "train") -> list[str]:
    """Four prompts, for training and for evaluation."""
    return ["a", "b", "c", "d"]
