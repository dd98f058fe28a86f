"""Prompts, their pictures and their completions as tensors, as a rollout's trace holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.types import Rollout
from grpokit_hf.tokens import packing
from grpokit_lm.pictures import following, pictures_of


@dataclass(frozen=True, kw_only=True)
class Completions(packing.Completions):
    """Completions of prompts that may have pictures.

    Attributes:
        pictures: for each prompt, further arguments of the model, such as `pixel_values`; all empty without pictures.
    """

    pictures: Sequence[Mapping[str, Tensor]] = ()

    @property
    def sees(self) -> bool:
        """Whether a prompt has pictures."""
        return any(self.pictures)

    def positions_of(self, prompt: int, count: int) -> Tensor:
        """[3, count] or [count] int64 on the CPU: positions of a prompt's tokens and of those that follow."""
        return torch.arange(count) if self.positions is None else self.positions[prompt][:, :count]

    @classmethod
    def of(cls, rollout: Rollout, device: torch.device, stop: int) -> Completions:
        """The completions of a rollout's rows, up to the decision `stop`."""
        mask, ends = rollout.host_mask[:, :stop], rollout.lengths.clamp(max=stop)
        kept, places = rollout.trace.per_row.get("kept"), rollout.trace.per_group.get("positions")
        lengths = rollout.trace.per_group["prompt_length"].tolist()
        return cls(
            prompts=rollout.trace.per_group["prompt"].to(device),
            prompt_lengths=lengths,
            tokens=rollout.trace.per_row["tokens"][:, :stop].to(device),
            lengths=ends.tolist(),
            decided=None if torch.equal(mask.sum(1), ends) else mask,
            groups=rollout.group_index.tolist(),
            kept=None if kept is None else kept[:, :stop].to(device),
            pictures=pictures_of(rollout.trace, device),
            positions=None
            if places is None
            else [
                following(own[:length].T, stop)
                for own, length in zip(places.cpu(), lengths, strict=True)  # a checkpoint's come on the device
            ],
        )
