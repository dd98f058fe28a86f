"""Prompts and their completions as tensors, as a rollout's trace holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit.types import Rollout
from grpokit_lm.pictures import following, pictures_of


@dataclass(frozen=True, kw_only=True)
class Completions:
    """P prompts and b completions. Lengths and groups are host numbers, so cutting never waits for a device.

    Attributes:
        prompts: [P, S] int64, padded on the right.
        prompt_lengths: P lengths, each at least 1.
        tokens: [b, T] int64, padded on the right.
        lengths: b lengths, 0 for a completion that has nothing to score.
        groups: for each completion, the index of its prompt.
        kept: [b, T, ...], the sets that tokens were drawn from (`token_sampling.Draw.kept`); None for all tokens.
        pictures: for each prompt, further arguments of the model, such as `pixel_values`; all empty without pictures.
        positions: [P, 3, S] int64 on the CPU, of the prompts' tokens on three axes; None: a position is an index.
    """

    prompts: Tensor
    prompt_lengths: Sequence[int]
    tokens: Tensor
    lengths: Sequence[int]
    groups: Sequence[int]
    kept: Tensor | None = None
    pictures: Sequence[Mapping[str, Tensor]] = ()
    positions: Tensor | None = None

    @property
    def sees(self) -> bool:
        """Whether a prompt has pictures."""
        return any(self.pictures)

    def positions_of(self, prompt: int, count: int) -> Tensor:
        """[3, count] or [count] int64 on the CPU: positions of a prompt's tokens and of those that follow."""
        if self.positions is None:
            return torch.arange(count)
        length = self.prompt_lengths[prompt]
        return following(self.positions[prompt, :, :length], count - length)

    @classmethod
    def of(cls, rollout: Rollout, device: torch.device, stop: int) -> Completions:
        """The completions of a rollout's rows, up to the decision `stop`."""
        kept, places = rollout.trace.per_row.get("kept"), rollout.trace.per_group.get("positions")
        return cls(
            prompts=rollout.trace.per_group["prompt"].to(device),
            prompt_lengths=rollout.trace.per_group["prompt_length"].tolist(),
            tokens=rollout.trace.per_row["tokens"][:, :stop].to(device),
            lengths=rollout.lengths.clamp(max=stop).tolist(),
            groups=rollout.group_index.tolist(),
            kept=None if kept is None else kept[:, :stop].to(device),
            pictures=pictures_of(rollout.trace, device),
            positions=None if places is None else places.cpu().transpose(1, 2),  # a checkpoint's come on the device
        )


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where n packed decisions stand in a table [b, t].

    Attributes:
        row: [n] int64.
        column: [n] int64.
        shape: (b, t).
    """

    row: Tensor
    column: Tensor
    shape: tuple[int, int]

    def table(self, values: Tensor) -> Tensor:
        """values [n] -> [b, t], zero where nothing was decided."""
        return values.new_zeros(self.shape).index_put((self.row, self.column), values)

    def pick(self, table: Tensor) -> Tensor:
        """table [b, t] -> [n]."""
        return table[self.row, self.column]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Completions without padding: the tokens of each prompt, followed by the inputs of its completions.

    The last token of a prompt is the first input of each of its completions. So the input in column k of a completion
    predicts its decision k, and no hidden state of a prompt is needed twice.

    Attributes:
        source: [N] int64, indices into the prompts' and then the completions' tokens, all flattened.
        prompts: the shared tokens of each prompt, all but its last.
        samples: for each prompt, the lengths of its completions.
        decided: [n] int64, indices into the N hidden states, of the decisions in question.
        places: of the same decisions.
        positions: [3, N] int64 on the CPU; None: a token's position is its index.
        rows: the completions in their order here.
        ends: where the decisions of each of them end among the n.
    """

    source: Tensor
    prompts: Sequence[int]
    samples: Sequence[Sequence[int]]
    decided: Tensor
    places: Places
    positions: Tensor | None
    rows: Sequence[int]
    ends: Sequence[int]


def pack(completions: Completions, start: int, *, width: int) -> Pack | None:
    """Arrange completions for one pass; None if no decision is left.

    Args:
        completions: b of them.
        start: the first decision that is to be scored.
        width: t, columns of the resulting tables.
    """
    by_prompt: dict[int, list[int]] = {}
    for row, (prompt, length) in enumerate(zip(completions.groups, completions.lengths, strict=True)):
        if length > start:
            by_prompt.setdefault(prompt, []).append(row)
    if not by_prompt:
        return None
    slot, columns, behind = completions.prompts.shape[1], completions.tokens.shape[1], completions.prompts.numel()
    groups = sorted(by_prompt.items())
    source: list[Tensor] = []
    decided, places, ends, samples, prompts, positions = [], [], [0], [], [], []
    position = 0
    for prompt, rows in groups:
        shared = completions.prompt_lengths[prompt] - 1
        first = prompt * slot
        source.append(torch.arange(first, first + shared))
        prompts.append(shared)
        span = None if completions.positions is None else completions.positions_of(prompt, shared + 1 + columns)
        positions += [] if span is None else [span[:, :shared]]
        samples.append([completions.lengths[row] for row in rows])
        position += shared
        for row in rows:
            length, begin = completions.lengths[row], behind + row * columns
            positions += [] if span is None else [span[:, shared : shared + length]]
            source += [torch.tensor([first + shared]), torch.arange(begin, begin + length - 1)]
            decided.append(torch.arange(position + start, position + length))
            places.append(torch.stack([torch.full((length - start,), row), torch.arange(length - start)]))
            ends.append(ends[-1] + length - start)
            position += length
    device = completions.tokens.device
    where = torch.cat(places, 1).to(device, non_blocking=True)
    return Pack(
        source=torch.cat(source).to(device, non_blocking=True),
        prompts=prompts,
        samples=samples,
        decided=torch.cat(decided).to(device, non_blocking=True),
        places=Places(row=where[0], column=where[1], shape=(len(completions.lengths), width)),
        positions=torch.cat(positions, 1) if positions else None,
        rows=[row for _, rows in groups for row in rows],
        ends=ends[1:],
    )
