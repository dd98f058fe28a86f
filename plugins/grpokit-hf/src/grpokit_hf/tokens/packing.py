"""Packed scoring: prompts and their completions in one row without padding, from tokens to tables of log-probs.

A policy of tokens tells what it wrote (`Completions`) and hands over its decoder and its output layer; `score` gives
the log-probs of the stored decisions again. Lengths and groups are host numbers, so cutting never waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.types import Ask, Decisions
from grpokit_hf.tokens.fused_head import FusedHead, fused_kl
from grpokit_hf.tokens.linear_layers import Casts
from grpokit_hf.tokens.packed_attention import SharedPrompts, run

Inputs = Callable[[Tensor], tuple[Tensor, Mapping[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Completions:
    """P prompts and b completions.

    Attributes:
        prompts: [P, S] int64, padded on the right.
        prompt_lengths: P lengths, each at least 1.
        tokens: [b, T] int64, padded on the right.
        lengths: b lengths, 0 for a completion that has nothing to score.
        groups: for each completion, the index of its prompt.
        kept: [b, T, ...], the sets that tokens were drawn from (`drawing.Draw.kept`); None for all tokens.
        positions: for each prompt, [3, n] int64 on the CPU: the positions on three axes of its tokens and of those that
            follow, of which T - 1 are read; None: a token's position is its index.
        decided: [b, T] bool on the CPU, the tokens that are decisions; None for all up to the lengths. The others are
            read and not scored.
    """

    prompts: Tensor
    prompt_lengths: Sequence[int]
    tokens: Tensor
    lengths: Sequence[int]
    groups: Sequence[int]
    kept: Tensor | None = None
    positions: Sequence[Tensor] | None = None
    decided: Tensor | None = None


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
        """values [n, ...] -> [b, t, ...], zero where nothing was decided."""
        return values.new_zeros(*self.shape, *values.shape[1:]).index_put((self.row, self.column), values)

    def pick(self, table: Tensor) -> Tensor:
        """table [b, t, ...] -> [n, ...]."""
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
    """

    source: Tensor
    prompts: Sequence[int]
    samples: Sequence[Sequence[int]]
    decided: Tensor
    places: Places
    positions: Tensor | None


def pack(completions: Completions, start: int, *, width: int) -> Pack | None:
    """Arrange completions for one pass; None if no decision is left.

    Args:
        completions: b of them.
        start: the first decision that is to be scored.
        width: t, columns of the resulting tables.
    """
    groups = _with_decisions(completions, start)
    if not groups:
        return None
    slot, columns = completions.prompts.shape[1], completions.tokens.shape[1]
    behind = completions.prompts.numel()
    source: list[Tensor] = []
    decided: list[Tensor] = []
    places: list[Tensor] = []
    positions: list[Tensor] = []
    prompts: list[int] = []
    samples: list[list[int]] = []
    position = 0
    for prompt, rows in groups:
        shared = completions.prompt_lengths[prompt] - 1
        first = prompt * slot
        source.append(torch.arange(first, first + shared))
        prompts.append(shared)
        span = None if completions.positions is None else completions.positions[prompt]
        if span is not None:
            positions.append(span[:, :shared])
        samples.append([completions.lengths[row] for row in rows])
        position += shared
        for row in rows:
            length = completions.lengths[row]
            begin = behind + row * columns
            if span is not None:
                positions.append(span[:, shared : shared + length])
            source.append(torch.tensor([first + shared]))
            source.append(torch.arange(begin, begin + length - 1))
            column = torch.arange(start, length)
            if completions.decided is not None:
                column = column[completions.decided[row, start:length]]
            decided.append(position + column)
            places.append(torch.stack([torch.full_like(column, row), column - start]))
            position += length
    shape = (len(completions.lengths), width)
    device = completions.tokens.device
    where = torch.cat(places, 1).to(device, non_blocking=True)
    return Pack(
        source=torch.cat(source).to(device, non_blocking=True),
        prompts=prompts,
        samples=samples,
        decided=torch.cat(decided).to(device, non_blocking=True),
        places=Places(row=where[0], column=where[1], shape=shape),
        positions=torch.cat(positions, 1) if positions else None,
    )


def _with_decisions(completions: Completions, start: int) -> list[tuple[int, list[int]]]:
    """The prompts in order, each with those of its completions that have decisions from `start` on."""
    by_prompt: dict[int, list[int]] = {}
    for row, length in enumerate(completions.lengths):
        if length <= start:
            continue
        if completions.decided is None or bool(completions.decided[row, start:length].any()):
            by_prompt.setdefault(completions.groups[row], []).append(row)
    return sorted(by_prompt.items())


def score(
    completions: Completions,
    start: int,
    *,
    width: int,
    decoder: Any,
    layer: Any,
    head: FusedHead,
    casts: Casts,
    ask: Ask,
    scale: float = 1.0,
    softcap: float | None = None,
    forbidden: Tensor | None = None,
    inputs: Inputs | None = None,
) -> Decisions:
    """Score decisions `start` to `start + width` of all completions in one packed pass.

    Args:
        completions: b of them.
        start: the first decision.
        width: t.
        decoder: a transformers model without its head, after `packed_attention.install`.
        layer: the output layer, with a weight [V, H], and a bias [V] or None.
        head: gives the log-probs.
        casts: keeps the weight's copy in the type of a mixed precision.
        ask: what the caller will read.
        scale: factor of the logits: 1 / temperature, times the model's own.
        softcap: c of c * tanh(logit / c), before the scale; None for none.
        forbidden: [V] bool, tokens that are never drawn.
        inputs: what the decoder reads in place of tokens, such as embeddings of pictures: from indices [N] into the
            prompts' and then the completions' tokens, all flattened, to embeddings [N, H] and further arguments of the
            decoder.

    Returns:
        Log-probs and, if asked for, entropies and KLs [b, t], and hidden states [b, t, H]: zero where nothing was
        decided.
    """
    plan = pack(completions, start, width=width)
    if plan is None:
        shape = (len(completions.lengths), width)
        return Decisions(logprobs=torch.zeros(shape, device=completions.tokens.device))
    kept = None
    if completions.kept is not None:
        kept = plan.places.pick(completions.kept[:, start:])
    hidden, weight = _hidden(completions, plan, decoder, inputs), casts(layer.weight)
    how: dict[str, Any] = {"scale": scale, "softcap": softcap, "kept": kept, "forbidden": forbidden}
    targets = plan.places.pick(completions.tokens[:, start:])
    logprobs, entropy = head(hidden, targets, weight, layer.bias, entropy=ask.entropy, **how)
    kl = None
    if ask.against is not None:
        _check_frozen(layer)
        others = plan.places.pick(ask.against)
        kl = fused_kl(hidden, others, weight, layer.bias, **how)
    return Decisions(
        logprobs=plan.places.table(logprobs),
        entropy=None if entropy is None else plan.places.table(entropy),
        distribution=plan.places.table(hidden) if ask.distribution else None,
        kl=None if kl is None else plan.places.table(kl),
    )


def _check_frozen(layer: Any) -> None:
    """Refuse to compare hidden states of two models by an output layer that is only the one's."""
    if layer.weight.requires_grad:
        raise UsageError(
            "Whole distributions of tokens are compared by one output layer, which must stay as it is. Train an "
            "adapter, such as lora: {r: 16}, or set policy.fast=false."
        )


def _hidden(completions: Completions, plan: Pack, decoder: Any, inputs: Inputs | None) -> Tensor:
    """The last hidden states of all decisions: [N, H]."""
    device = completions.tokens.device
    arrangement = SharedPrompts(plan.prompts, plan.samples, device=device)
    positions = plan.positions if plan.positions is not None else arrangement.positions()
    further: Mapping[str, Any] = {}
    if inputs is None:
        every = torch.cat([completions.prompts.flatten(), completions.tokens.flatten()])
        tokens = every[plan.source]
    else:
        tokens, further = inputs(plan.source)
    positions = positions.to(device, non_blocking=True)
    hidden = run(decoder, tokens, positions, arrangement, **further)
    return hidden[plan.decided]
