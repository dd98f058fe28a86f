"""The plain path, for models whose attention cannot be replaced: padded batches, transformers' cache, dense logits.

Texts are scored with the padding on their right, where no causal model sees it. Writing needs it on the left, and a
model that handles masks and positions; one that does not reads the whole text again for every token.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grpokit.policy import CutBy
from grpokit.types import Ask, Decisions
from grpokit_hf.tokens.group_decoding import Drawn, Written
from grpokit_hf.tokens.linear_layers import Casts, for_scoring
from grpokit_hf.tokens.ragged import padded
from grpokit_hf.tokens.truncation import restrict
from grpokit_lm.completions import Completions
from grpokit_lm.pictures import Reading, joined


class PlainPath:
    """Writes and scores with any causal LM of transformers.

    Args:
        model: a causal LM.
        cached: write with the model's cache. Without it every token reads the whole text again, which is exact for
            every causal model.
    """

    cut_by: CutBy = "length"
    packs = False

    def __init__(self, model: Any, *, cached: bool = True) -> None:
        self.model: Any = model
        self.cached, self.casts = cached, Casts()

    def write(
        self,
        prompts: Sequence[Reading],
        group_size: int,
        *,
        max_new_tokens: int,
        draw: Callable[[Tensor, int, Tensor], Drawn],
        ended: Callable[[Tensor, int], Tensor],
    ) -> Written:
        """Write samples in one batch; arguments as `PackedPath.write`."""
        each = [prompt for prompt in prompts for _ in range(group_size)]
        rows = torch.arange(len(each), device=prompts[0].tokens.device)
        done = torch.zeros(len(each), dtype=torch.bool)
        tokens = rows.new_zeros(len(each), 0)
        logprobs = torch.zeros(len(each), 0, device=rows.device)
        read = _WithCache(self.model, each, max_new_tokens) if self.cached else _WithoutCache(self.model, each)
        with torch.no_grad(), for_scoring(self.model, lean=False, casts=self.casts):
            for t in range(max_new_tokens):
                drawn = draw(read(tokens).float(), t, rows)
                tokens = torch.cat([tokens, drawn.tokens[:, None]], 1)
                logprobs = torch.cat([logprobs, drawn.logprobs[:, None]], 1)
                done |= ended(tokens, t).cpu()
                if bool(done.all()):
                    break
        return Written(tokens=tokens, logprobs=logprobs)

    def score(self, completions: Completions, start: int, *, width: int, temperature: float, ask: Ask) -> Decisions:
        """Score decisions `start` to `start + width` of all completions: [b, t]."""
        device, columns = completions.tokens.device, completions.tokens.shape[1]
        groups, lengths = completions.groups, [completions.prompt_lengths[prompt] for prompt in completions.groups]
        column = torch.arange(start, start + width, device=device)
        logits = _logits(
            self.model,
            [completions.prompts[prompt, :n] for prompt, n in zip(groups, lengths, strict=True)],
            completions.tokens,
            pictures=[completions.pictures[prompt] for prompt in groups] if completions.sees else [],
            positions=[
                completions.positions_of(prompt, n + columns) for prompt, n in zip(groups, lengths, strict=True)
            ],
            at=_column(lengths, device) - 1 + column,
        )
        decided = column < _column(completions.lengths, device)
        if completions.decided is not None:
            decided &= completions.decided[:, start : start + width].to(device, non_blocking=True)
            logits = torch.where(decided[..., None], logits, 0.0)  # whatever they are there, no gradient comes of it
        logits = logits.float() / temperature  # [b, t, V]
        if completions.kept is not None:
            logits = restrict(logits.flatten(0, 1), completions.kept[:, start:].flatten(0, 1)).view(logits.shape)
        logprobs = logits.log_softmax(-1)
        targets = completions.tokens[:, start : start + width, None]
        entropy = None if ask.entropy == "no" else -(logprobs.exp() * logprobs).sum(-1)
        kl = None
        if ask.against is not None:
            terms = logprobs.exp() * (logprobs - ask.against)  # [b, t, V]
            kl = torch.where(decided, terms.sum(-1), 0.0)
        return Decisions(
            logprobs=torch.where(decided, logprobs.gather(-1, targets)[..., 0], 0.0),
            entropy=None if entropy is None else torch.where(decided, entropy, 0.0),
            distribution=logprobs if ask.distribution else None,
            kl=kl,
        )


class _WithCache:
    """The logits [B, V] of the next tokens, from the tokens so far [B, t]: each call reads one more column.

    Args:
        model: a causal LM.
        prompts: B of them, which are padded on the left.
        further: the most tokens that follow.
    """

    def __init__(self, model: Any, prompts: Sequence[Reading], further: int) -> None:
        longest = max(len(prompt.tokens) for prompt in prompts)
        self.model, self.cache = model, None
        able = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.last_only: dict[str, Any] = {"logits_to_keep": 1} if able else {}
        self.prompts = _on_the_left([prompt.tokens for prompt in prompts], longest)
        self.real = _on_the_left([torch.ones_like(prompt.tokens) for prompt in prompts], longest)  # [B, S + t]
        positions = _on_the_left([prompt.span(further) for prompt in prompts], longest + further)
        self.positions = positions.movedim(0, -2).to(self.prompts.device)  # [B, S + T] or [3, B, S + T]
        self.pictures = joined([p.pictures for p in prompts], [longest - len(p.tokens) for p in prompts], longest)

    def __call__(self, tokens: Tensor) -> Tensor:
        new = tokens[:, -1:] if tokens.shape[1] else self.prompts
        self.real = torch.cat([self.real, torch.ones_like(tokens[:, -1:])], 1)
        end = self.real.shape[1]
        output = self.model(
            input_ids=new,
            attention_mask=self.real,
            position_ids=self.positions[..., end - new.shape[1] : end],
            past_key_values=self.cache,
            use_cache=True,
            **({} if tokens.shape[1] else self.pictures),
            **self.last_only,
        )
        self.cache = output.past_key_values
        logits: Tensor = output.logits[:, -1]
        return logits


class _WithoutCache:
    """The same, for a model whose cache cannot be used: each call reads the whole texts."""

    def __init__(self, model: Any, prompts: Sequence[Reading]) -> None:
        self.model, self.prompts = model, prompts
        self.pictures = [p.pictures for p in prompts] if any(p.pictures for p in prompts) else []

    def __call__(self, tokens: Tensor) -> Tensor:
        lengths, columns = [len(p.tokens) for p in self.prompts], tokens.shape[1]
        logits = _logits(
            self.model,
            [prompt.tokens for prompt in self.prompts],
            tokens,
            pictures=self.pictures,
            positions=[prompt.span(columns) for prompt in self.prompts],
            at=_column(lengths, tokens.device) - 1 + columns,
        )
        return logits[:, 0]


def _logits(
    model: Any,
    prompts: Sequence[Tensor],
    tokens: Tensor,
    *,
    pictures: Sequence[Mapping[str, Tensor]],
    positions: Sequence[Tensor],
    at: Tensor,
) -> Tensor:
    """Logits from prompts and what follows them, padded on the right: [b, n, V].

    Args:
        model: a causal LM.
        prompts: b of them.
        tokens: [b, t].
        pictures: of each prompt; empty if none has any.
        positions: of each text, [n] or [3, n].
        at: [b, n], the tokens in each text that are asked for.
    """
    texts = padded([torch.cat(parts) for parts in zip(prompts, tokens, strict=True)])
    given: dict[str, Any] = {}
    if positions[0].ndim > 1:  # else they are what every model takes by itself
        given["position_ids"] = (
            padded([each.T for each in positions]).movedim(-1, 0).to(texts.device, non_blocking=True)
        )
    if not pictures:
        with _head_at(model, at):
            return _rows(model(input_ids=texts, use_cache=False, **given).logits, at)
    ends = _column([len(prompt) for prompt in prompts], texts.device)
    written = torch.arange(texts.shape[1], device=texts.device) >= ends
    given |= joined(pictures, [0] * len(prompts), texts.shape[1])
    with _embedded(model, texts, written), _head_at(model, at):
        return _rows(model(input_ids=texts.masked_fill(written, 0), use_cache=False, **given).logits, at)


@contextmanager
def _head_at(model: Any, at: Tensor) -> Iterator[None]:
    """Inside the context, the output layer reads only these tokens, [b, n], so the logits of others are never made."""
    hook = model.get_output_embeddings().register_forward_pre_hook(
        lambda layer, given: (_rows(given[0], at), *given[1:]), prepend=True
    )
    try:
        yield
    finally:
        hook.remove()


def _rows(x: Tensor, at: Tensor) -> Tensor:
    """x [b, S, ...] at the columns `at` [b, n]; x as it is where that was done before."""
    if x.shape[1] == at.shape[1]:
        return x
    return x[torch.arange(len(x), device=x.device)[:, None], at]


@contextmanager
def _embedded(model: Any, texts: Tensor, written: Tensor) -> Iterator[None]:
    """Inside the context, the model embeds these tokens where they were `written`, whatever it is given there.

    A completion may have the token that stands for a picture. While it was written that was a token like any other,
    so the model must not look for the picture's features now.
    """

    def read(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        own = given[0].shape == texts.shape
        return (torch.where(written, texts, given[0]) if own else given[0],)

    hook = model.get_input_embeddings().register_forward_pre_hook(read)
    try:
        yield
    finally:
        hook.remove()


def _column(numbers: Sequence[int], device: torch.device) -> Tensor:
    """[b, 1] int64 on a device, without waiting for it."""
    return torch.tensor(numbers)[:, None].to(device, non_blocking=True)


def _on_the_left(rows: Sequence[Tensor], width: int) -> Tensor:
    """Tensors [..., n], padded with zeros on the left: [b, ..., width]."""
    return torch.stack([torch.nn.functional.pad(row, (width - row.shape[-1], 0)) for row in rows])
