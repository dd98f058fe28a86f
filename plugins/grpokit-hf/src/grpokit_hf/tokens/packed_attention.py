"""Attention over packed tokens, for Hugging Face decoders: no padding, and each prompt only once.

Everything in a decoder but attention treats each token alone. So the tokens of a whole batch may stand in one row
[1, N], and attention alone must know which token sees which. A function that transformers calls in place of its own
does that here, and a `Packed` object that travels through the model's keyword arguments tells it how the tokens are
arranged. The samples of a prompt share the prompt's hidden states, keys and values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from grpokit.errors import UsageError
from grpokit_hf.cpu import causal_blocks
from grpokit_hf.cpu.products import filled, spare_rows

NAME = "grpokit_packed"

ALIKE, NEGLIGIBLE = 0.85, 32  # samples are alike from this share of the longest less so many tokens on


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a layer of the model adds to plain attention.

    Attributes:
        scale: factor of the scores.
        window: how many keys a query sees at most, its own included; None for all.
        softcap: c of c * tanh(score / c); None for none.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None


class Packed(ABC):
    """An arrangement of packed tokens, with the attention that it needs.

    Attributes:
        may_spare (bool): whether further tokens may follow that belong to nobody.
        spare (int): how many of those there are; what attention gives for them has no meaning.
    """

    may_spare = False
    spare = 0

    @abstractmethod
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """Attention of one layer: query [N, H, D], key and value [N, K, D] -> [N, H, D]."""


class SharedPrompts(Packed):
    """Prompts and their samples, for scoring: each sample sees its prompt and its own past.

    The tokens of a prompt are followed by those of its samples, one sample after the other.

    Args:
        prompts: tokens of each prompt; 0 is allowed.
        samples: for each prompt, the tokens of each of its samples, at least one.
    """

    may_spare = True

    def __init__(self, prompts: Sequence[int], samples: Sequence[Sequence[int]], *, device: torch.device) -> None:
        self.blocks: list[_Block] = []
        start = 0
        for prompt, lengths in zip(prompts, samples, strict=True):
            self.blocks.append(_Block(start, prompt, list(lengths), device))
            start = self.blocks[-1].stop

    def positions(self) -> Tensor:
        """[N] int64 on the CPU: each token's place in its sequence."""
        parts: list[Tensor] = []
        for block in self.blocks:
            prompt = block.begin - block.start
            parts.append(torch.arange(prompt))
            parts += [torch.arange(prompt, prompt + length) for length in block.lengths]
        return torch.cat(parts)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Packed`."""
        parts: list[Tensor] = []
        for block in self.blocks:
            parts += block.attend(query, key, value, rules)
        if self.spare:
            heads, width = query.shape[1], value.shape[2]
            parts.append(query.new_zeros(self.spare, heads, width))
        return torch.cat(parts)  # [N, H, D]


class _Block:
    """A prompt and its samples.

    Samples of about the same length go through attention together. They are padded on the right to the longest of them,
    where no query sees the padding.
    """

    def __init__(self, start: int, prompt: int, lengths: list[int], device: torch.device) -> None:
        self.lengths = lengths
        self.start = start
        self.begin = start + prompt
        self.stop = self.begin + sum(lengths)
        batches = _alike(lengths)
        self.shapes = [(len(batch), lengths[batch[0]]) for batch in batches]  # samples, tokens of the longest
        self.padded = min(lengths) < max(lengths)
        if self.padded:
            of_sample = torch.arange(sum(lengths)).split(lengths)
            tokens: list[Tensor] = []
            places = torch.empty(sum(lengths), dtype=torch.int64)
            begun = 0
            for batch in batches:
                own = torch.cat([of_sample[sample] for sample in batch])
                fillers, real = padding([lengths[sample] for sample in batch], own.device)
                tokens.append(own[fillers])
                places[own] = begun + real
                begun += len(fillers)
            self.tokens = torch.cat(tokens).to(device, non_blocking=True)  # fills each place of all batches
            self.places = places.to(device, non_blocking=True)  # [sum(lengths)], of each token

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> list[Tensor]:
        """The outputs [n, H, D] of the prompt, if it has tokens, and of its samples."""
        outputs: list[Tensor] = []
        if self.start < self.begin:
            here = slice(self.start, self.begin)
            q, k, v = (x[here].transpose(0, 1)[None] for x in (query, key, value))  # [1, H, S, D]
            output = causal_attention(q, k, v, rules)
            outputs.append(output[0].transpose(0, 1))  # [S, H, D]
        parts = []
        batches = zip(self._batches(query), self._batches(key), self._batches(value), strict=True)
        for own_query, own_key, own_value in batches:
            if outputs:
                own_key = torch.cat([k.expand(len(own_key), -1, -1, -1), own_key], 2)  # [b, K, S + T, D]
                own_value = torch.cat([v.expand(len(own_value), -1, -1, -1), own_value], 2)
            output = causal_attention(own_query, own_key, own_value, rules)
            parts.append(output.transpose(1, 2).flatten(0, 1))
        if self.padded:
            return [*outputs, _Taken.apply(torch.cat(parts), self.places, None)]  # type: ignore[no-untyped-call]
        return outputs + parts

    def _batches(self, x: Tensor) -> Iterator[Tensor]:
        """Of packed queries, keys or values [N, H, D] what each batch of samples has, [b, H, T, D]."""
        own = x[self.begin : self.stop]
        if self.padded:
            own = _Taken.apply(own, self.tokens, self.places)  # type: ignore[no-untyped-call]
        parts = own.split([rows * longest for rows, longest in self.shapes])
        for part, shape in zip(parts, self.shapes, strict=True):
            yield part.view(*shape, *x.shape[1:]).transpose(1, 2)


class _Taken(torch.autograd.Function):
    """x[index], whose gradient takes no sums: for each row of x there is one place whose gradient counts.

    Without `places`, index has no row twice, and the gradient of the others is 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, places: Tensor | None) -> Tensor:
        ctx.save_for_backward(index, places)
        ctx.shape = x.shape
        return x[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        index, places = ctx.saved_tensors
        if places is not None:
            return gradient[places], None, None
        return gradient.new_zeros(ctx.shape).index_copy_(0, index, gradient), None, None


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Samples in batches of about the same length, the longest first, without those that have no tokens."""
    batches: list[list[int]] = []
    with_tokens = [sample for sample, length in enumerate(lengths) if length]
    for sample in sorted(with_tokens, key=lambda sample: -lengths[sample]):
        if batches and lengths[sample] >= ALIKE * lengths[batches[-1][0]] - NEGLIGIBLE:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def padding(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """From rows packed one behind the other to rows padded on the right, and back, without waiting for the device.

    Returns:
        For each padded place the token that fills it, [rows * longest], token 0 where none does; and for each token its
        padded place, [N].
    """
    place, counts = torch.arange(max(lengths)), torch.tensor(lengths)
    real = place < counts[:, None]  # [rows, longest]
    first = counts.cumsum(0) - counts  # [rows]
    tokens = torch.where(real, first[:, None] + place, 0).flatten()
    places = real.flatten().nonzero()[:, 0]
    return tokens.to(device, non_blocking=True), places.to(device, non_blocking=True)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
    """Attention in which the last query sees all keys, the one before it all but the last, and so on.

    Args:
        query: [B, H, T, D].
        key, value: [B, K, S, D] with S >= T; each serves H / K heads.
        rules: of the layer.

    Returns:
        [B, H, T, D].
    """
    queries, keys = query.shape[2], key.shape[2]
    window = rules.window if rules.window is not None and rules.window < keys else None
    if rules.softcap is None and causal_blocks.apply_to(query, value):
        return causal_blocks.attention(query, key, value, scale=rules.scale, window=window)
    if window is None and rules.softcap is None:
        if queries == keys:
            return _product(query, key, value, rules, is_causal=True)
        return _product(query, key, value, rules, attn_mask=causal_lower_right(queries, keys))
    place = torch.arange(keys, device=query.device)
    distance = place[-queries:, None] - place  # [T, S]
    visible = distance >= 0
    if window is not None:
        visible &= distance < window
    return masked_attention(query, key, value, visible, rules)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, rules: Rules) -> Tensor:
    """Attention with a mask.

    Args:
        query: [B, H, T, D].
        key, value: [B, K, S, D]; each serves H / K heads.
        visible: bool, broadcastable to [B, H, T, S], True where a query sees a key; None for all.
        rules: of the layer; the window is not looked at.

    Returns:
        [B, H, T, D].
    """
    if rules.softcap is None:
        return _product(query, key, value, rules, attn_mask=visible)
    key, value = causal_blocks.for_each_head(query, key, value)
    scores = query @ key.transpose(-1, -2) * (rules.scale / rules.softcap)
    scores = rules.softcap * torch.tanh(scores)
    if visible is not None:
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)  # a query that sees nothing stays finite
    return scores.softmax(-1, dtype=torch.float32).to(value) @ value


def _product(query: Tensor, key: Tensor, value: Tensor, rules: Rules, **mask: Any) -> Tensor:
    kernels: AbstractContextManager[Any] = nullcontext()
    if query.device.type == "cuda" and _flash(query, key, value, **mask):
        kernels = sdpa_kernel(SDPBackend.FLASH_ATTENTION)  # cuDNN would make a plan for each new length
    elif query.device.type == "cuda":
        # The other kernel that does without a table [B, H, T, S] has no heads that share their keys.
        key, value = causal_blocks.for_each_head(query, key, value)
    shared = query.shape[1] != key.shape[1]
    with kernels:
        return F.scaled_dot_product_attention(query, key, value, scale=rules.scale, enable_gqa=shared, **mask)


def _flash(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> bool:
    """Whether flash attention computes this: torch knows what the GPU and its settings allow."""
    table = attn_mask if type(attn_mask) is Tensor else None  # a rule for who sees whom is none
    shared = query.shape[1] != key.shape[1]
    return can_use_flash_attention(SDPAParams(query, key, value, table, 0.0, is_causal, shared))


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Packed | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls: query [1, H, N, D] -> [1, N, H, D].

    Without `packed` it is plain attention, so the model still works for everybody else.

    Raises:
        UsageError: the layer wants something that is not supported here, such as attention sinks or dropout.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rules = Rules(scale=scale, window=sliding_window, softcap=softcap)
    if packed is None and softcap is not None:
        if attention_mask is None:
            return causal_attention(query, key, value, rules).transpose(1, 2), None
        return masked_attention(query, key, value, attention_mask, rules).transpose(1, 2), None
    if packed is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
        return result
    strange = [name for name in ("s_aux", "position_bias") if others.get(name) is not None]
    if strange or dropout:
        raise UsageError(f"Packed attention has no {', '.join(strange) or 'dropout'}.")
    kind = query.device.type  # under autocast, rotated queries and keys come in fp32, and values do not
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    q, k, v = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))  # [1, H, N, D] -> [N, H, D]
    return packed.attend(module.layer_idx, q, k, v, rules)[None], None


def install(model: Any) -> None:
    """Let a transformers model call `attention`; calls without `packed` give what they gave before."""
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def run(decoder: Any, tokens: Tensor, positions: Tensor, packed: Packed, **further: Any) -> Tensor:
    """The last hidden states of packed tokens.

    Args:
        decoder: a transformers model without its head, after `install`.
        tokens: [N] int64, or their embeddings [N, H].
        positions: [N] int64, or [3, N] where the model wants three.
        packed: how the tokens are arranged.
        further: arguments of the decoder.

    Returns:
        [N, H].
    """
    count = len(tokens)
    packed.spare = 0
    if packed.may_spare and not further:
        packed.spare = spare_rows(count, next(decoder.parameters()))
    tokens = filled(tokens, count + packed.spare)
    positions = F.pad(positions, (0, packed.spare))
    kind = "input_ids" if tokens.ndim == 1 else "inputs_embeds"
    no_mask = torch.zeros(1, 1, 1, 1, device=tokens.device)  # four dimensions: transformers makes none of its own
    hidden: Tensor = decoder(
        **{kind: tokens[None]},
        **further,
        attention_mask=no_mask,
        position_ids=positions[..., None, :],
        use_cache=False,
        packed=packed,
    ).last_hidden_state
    return hidden[0, :count]
