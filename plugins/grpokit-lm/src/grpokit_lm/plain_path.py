"""The plain path, for models whose attention cannot be replaced: padded batches, transformers' cache, dense logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from grpokit.policies.group_decoding import Drawn, Written
from grpokit.policies.truncation import restrict
from grpokit.types import Ask, Decisions
from grpokit_lm.completions import Completions
from grpokit_lm.pictures import Reading, following, joined


class PlainPath:
    """Writes and scores with any causal LM of transformers.

    Args:
        model: a causal LM.
    """

    cut_by = "length"

    def __init__(self, model: Any) -> None:
        self.model: Any = model

    def write(
        self,
        prompts: Sequence[Reading],
        group_size: int,
        *,
        max_new_tokens: int,
        draw: Callable[[Tensor, int, Tensor], Drawn],
        ended: Callable[[Tensor, int], Tensor],
    ) -> Written:
        """Write samples in a batch that is padded on the left; arguments as `PackedPath.write`."""
        device = prompts[0].tokens.device
        each = [prompt for prompt in prompts for _ in range(group_size)]
        longest = max(len(prompt.tokens) for prompt in each)
        tokens = _on_the_left([prompt.tokens for prompt in each], longest)
        real = _on_the_left([torch.ones_like(prompt.tokens) for prompt in each], longest)  # [B, S]
        spans = [torch.arange(len(prompt.tokens)) if prompt.positions is None else prompt.positions for prompt in each]
        positions = _on_the_left([following(span, max_new_tokens) for span in spans], longest + max_new_tokens)
        positions = positions.movedim(0, -2).to(device)  # [B, S + T] or [3, B, S + T]
        given = joined([p.pictures for p in each], [longest - len(p.tokens) for p in each], longest)
        rows = torch.arange(len(tokens), device=device)
        done = torch.zeros(len(tokens), dtype=torch.bool)
        written, logprobs = tokens.new_zeros(len(tokens), 0), torch.zeros(len(tokens), 0, device=device)
        cache: Any = None
        with torch.no_grad():
            for t in range(max_new_tokens):
                logits, output = self._logits(
                    1,
                    input_ids=tokens,
                    attention_mask=real,
                    position_ids=positions[..., real.shape[1] - tokens.shape[1] : real.shape[1]],
                    past_key_values=cache,
                    use_cache=True,
                    **given,
                )
                cache, given = output.past_key_values, {}
                drawn = draw(logits[:, -1].float(), t, rows)
                written = torch.cat([written, drawn.tokens[:, None]], 1)
                logprobs = torch.cat([logprobs, drawn.logprobs[:, None]], 1)
                done |= ended(written, t).cpu()
                if bool(done.all()):
                    break
                tokens, real = drawn.tokens[:, None], torch.cat([real, real.new_ones(len(real), 1)], 1)
        return Written(tokens=written, logprobs=logprobs)

    def score(self, completions: Completions, start: int, *, width: int, temperature: float, ask: Ask) -> Decisions:
        """Score decisions `start` to `start + width` of all completions: [b, t]."""
        device, columns = completions.tokens.device, completions.tokens.shape[1]
        lengths = [completions.prompt_lengths[prompt] for prompt in completions.groups]
        longest = max(lengths)
        prompts = [completions.prompts[p, :n] for p, n in zip(completions.groups, lengths, strict=True)]
        tokens = torch.cat([_on_the_left(prompts, longest), completions.tokens], 1)
        spans = [completions.positions_of(p, n + columns) for p, n in zip(completions.groups, lengths, strict=True)]
        positions = _on_the_left(spans, longest + columns).movedim(0, -2).to(device)
        before = [longest - length for length in lengths]
        place = torch.arange(longest + columns, device=device)
        ends = longest + torch.tensor(list(completions.lengths), device=device)
        real = (place >= torch.tensor(before, device=device)[:, None]) & (place < ends[:, None])
        pictures = [completions.pictures[p] for p in completions.groups] if completions.sees else []
        with self._reading(tokens, longest) if pictures else nullcontext():
            logits, _ = self._logits(
                columns + 1 - start,
                input_ids=_without_placeholders(tokens, longest) if pictures else tokens,
                attention_mask=real.long(),
                position_ids=positions,
                use_cache=False,
                **joined(pictures, before, longest + columns),
            )
        logits = logits[:, :width].float() / temperature  # [b, t, V]
        if completions.kept is not None:
            logits = restrict(logits.flatten(0, 1), completions.kept[:, start:].flatten(0, 1)).view(logits.shape)
        logprobs = logits.log_softmax(-1)
        targets = completions.tokens[:, start : start + width, None]
        decided = (place[longest + start : longest + start + width] < ends[:, None]).view(len(lengths), width)
        entropy = None if ask.entropy == "no" else -(logprobs.exp() * logprobs).sum(-1)
        return Decisions(
            logprobs=torch.where(decided, logprobs.gather(-1, targets)[..., 0], 0.0),
            entropy=None if entropy is None else torch.where(decided, entropy, 0.0),
        )

    def _logits(self, count: int, **given: Any) -> tuple[Tensor, Any]:
        """The logits [b, count, V] of the last tokens, without the others where the model can; and its whole output."""
        able = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        output = self.model(**given, **({"logits_to_keep": count} if able else {}))
        return output.logits[:, -count:], output

    @contextmanager
    def _reading(self, tokens: Tensor, longest: int) -> Iterator[None]:
        """Inside the context, the model embeds these tokens behind a prompt, whatever it is given there.

        A completion may have the token that stands for a picture. While it was written that was a token like any other,
        so the model must not look for the picture's features now.
        """

        def read(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor]:
            same = given[0].shape == tokens.shape
            return (torch.cat([given[0][:, :longest], tokens[:, longest:]], 1) if same else given[0],)

        hook = self.model.get_input_embeddings().register_forward_pre_hook(read)
        try:
            yield
        finally:
            hook.remove()


def _without_placeholders(tokens: Tensor, longest: int) -> Tensor:
    """The tokens with 0 behind the prompt, which no model takes for a picture."""
    return torch.nn.functional.pad(tokens[:, :longest], (0, tokens.shape[1] - longest))


def _on_the_left(rows: Sequence[Tensor], width: int) -> Tensor:
    """Tensors [..., n], padded with zeros on the left: [b, ..., width]."""
    return torch.stack([torch.nn.functional.pad(row, (width - row.shape[-1], 0)) for row in rows])
