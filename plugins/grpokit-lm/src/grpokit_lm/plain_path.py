"""The plain path, for models whose attention cannot be replaced: padded batches, transformers' cache, all logits.

Texts are scored with the padding on their right, where no causal model sees it. Writing needs it on the left, and a
model that handles masks and positions; one that does not reads the whole text again for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpokit.policies.group_decoding import Drawn, Written
from grpokit.policies.truncation import restrict
from grpokit.types import Ask, Decisions
from grpokit_lm.completions import Completions


class PlainPath:
    """Writes and scores with any causal LM of transformers.

    Args:
        model: a causal LM.
        cached: write with the model's cache. Without it every token reads the whole text again, which is exact for
            every causal model.
    """

    cut_by = "length"

    def __init__(self, model: Any, *, cached: bool = True) -> None:
        self.model: Any = model
        self.cached = cached

    def write(
        self,
        prompts: Sequence[Tensor],
        group_size: int,
        *,
        max_new_tokens: int,
        draw: Callable[[Tensor, int, Tensor], Drawn],
        ended: Callable[[Tensor, int], Tensor],
    ) -> Written:
        """Write samples in one batch; arguments as `PackedPath.write`."""
        texts = [prompt for prompt in prompts for _ in range(group_size)]
        rows = torch.arange(len(texts), device=prompts[0].device)
        done = torch.zeros(len(texts), dtype=torch.bool)
        tokens = rows.new_zeros(len(texts), 0)
        logprobs = torch.zeros(len(texts), 0, device=rows.device)
        read = _WithCache(self.model, texts) if self.cached else _Anew(self.model, texts)
        with torch.no_grad():
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
        device = completions.tokens.device
        begins = [completions.prompt_lengths[prompt] for prompt in completions.groups]
        texts = [
            torch.cat([completions.prompts[prompt, :begin], tokens])
            for prompt, begin, tokens in zip(completions.groups, begins, completions.tokens, strict=True)
        ]
        rows = torch.arange(len(texts), device=device)[:, None]
        column = torch.arange(start, start + width, device=device)
        read = torch.tensor(begins, device=device)[:, None] - 1 + column  # [b, t], the token before each decision
        logits = self.model(input_ids=_on_the_left(texts), use_cache=False).logits[rows, read]
        logits = logits.float() / temperature  # [b, t, V]
        if completions.kept is not None:
            logits = restrict(logits.flatten(0, 1), completions.kept[:, start:].flatten(0, 1)).view(logits.shape)
        logprobs = logits.log_softmax(-1)
        targets = completions.tokens[:, start : start + width, None]
        decided = column < torch.tensor(list(completions.lengths), device=device)[:, None]
        entropy = None if ask.entropy == "no" else -(logprobs.exp() * logprobs).sum(-1)
        return Decisions(
            logprobs=torch.where(decided, logprobs.gather(-1, targets)[..., 0], 0.0),
            entropy=None if entropy is None else torch.where(decided, entropy, 0.0),
        )


class _WithCache:
    """The logits [B, V] of the next tokens, from the tokens so far [B, t]: each call reads one more column.

    Args:
        model: a causal LM.
        texts: B prompts, which are padded on the left.
    """

    def __init__(self, model: Any, texts: Sequence[Tensor]) -> None:
        longest = max(map(len, texts))
        place = torch.arange(longest, device=texts[0].device)
        self.model, self.cache = model, None
        self.prompts = torch.stack([torch.nn.functional.pad(text, (longest - len(text), 0)) for text in texts])
        self.real = torch.stack([place >= longest - len(text) for text in texts]).long()  # [B, S + t]

    def __call__(self, tokens: Tensor) -> Tensor:
        new = tokens[:, -1:] if tokens.shape[1] else self.prompts
        self.real = torch.cat([self.real, torch.ones_like(tokens[:, -1:])], 1)
        output = self.model(
            input_ids=new,
            attention_mask=self.real,
            position_ids=(self.real.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = output.past_key_values
        logits: Tensor = output.logits[:, -1]
        return logits


class _Anew:
    """The same, for a model whose cache cannot be used: each call reads the whole texts, padded on the right."""

    def __init__(self, model: Any, texts: Sequence[Tensor]) -> None:
        self.model, self.texts = model, texts

    def __call__(self, tokens: Tensor) -> Tensor:
        texts = [torch.cat(parts) for parts in zip(self.texts, tokens, strict=True)]
        last = torch.tensor([len(text) - 1 for text in texts], device=tokens.device)
        rows = torch.arange(len(texts), device=tokens.device)
        logits: Tensor = self.model(input_ids=_on_the_left(texts), use_cache=False).logits[rows, last]
        return logits


def _on_the_left(texts: Sequence[Tensor]) -> Tensor:
    """[B, longest], each text from the left, with padding behind it that no causal model sees."""
    return torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True)
