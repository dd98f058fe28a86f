"""The plain path, for models whose attention cannot be replaced: padded batches, transformers' cache, all logits."""

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
    """

    cut_by = "length"

    def __init__(self, model: Any) -> None:
        self.model: Any = model

    def write(
        self,
        prompts: Sequence[Tensor],
        group_size: int,
        *,
        max_new_tokens: int,
        draw: Callable[[Tensor, int, Tensor], Drawn],
        ended: Callable[[Tensor, int], Tensor],
    ) -> Written:
        """Write samples in a batch that is padded on the left; arguments as `PackedPath.write`."""
        device = prompts[0].device
        longest = max(map(len, prompts))
        tokens = torch.stack([torch.nn.functional.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
        real = torch.stack([torch.arange(longest, device=device) >= longest - len(prompt) for prompt in prompts])
        tokens, real = tokens.repeat_interleave(group_size, 0), real.repeat_interleave(group_size, 0)
        rows = torch.arange(len(tokens), device=device)
        done = torch.zeros(len(tokens), dtype=torch.bool)
        written, logprobs = tokens.new_zeros(len(tokens), 0), torch.zeros(len(tokens), 0, device=device)
        cache: Any = None
        with torch.no_grad():
            for t in range(max_new_tokens):
                positions = (real.long().cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
                output = self.model(
                    input_ids=tokens,
                    attention_mask=real.long(),
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                )
                cache = output.past_key_values
                drawn = draw(output.logits[:, -1].float(), t, rows)
                written = torch.cat([written, drawn.tokens[:, None]], 1)
                logprobs = torch.cat([logprobs, drawn.logprobs[:, None]], 1)
                done |= ended(written, t).cpu()
                if bool(done.all()):
                    break
                tokens, real = drawn.tokens[:, None], torch.cat([real, real.new_ones(len(real), 1)], 1)
        return Written(tokens=written, logprobs=logprobs)

    def score(self, completions: Completions, start: int, *, width: int, temperature: float, ask: Ask) -> Decisions:
        """Score decisions `start` to `start + width` of all completions: [b, t]."""
        device = completions.tokens.device
        longest = max(completions.prompt_lengths[prompt] for prompt in completions.groups)
        rows = []
        for row, prompt in enumerate(completions.groups):
            length = completions.prompt_lengths[prompt]
            text = torch.cat([completions.prompts[prompt, :length], completions.tokens[row]])
            rows.append(torch.nn.functional.pad(text, (longest - length, 0)))
        begins = torch.tensor([longest - completions.prompt_lengths[p] for p in completions.groups], device=device)
        place = torch.arange(longest + completions.tokens.shape[1], device=device)
        ends = longest + torch.tensor(list(completions.lengths), device=device)
        real = (place >= begins[:, None]) & (place < ends[:, None])
        logits = self.model(
            input_ids=torch.stack(rows),
            attention_mask=real.long(),
            position_ids=(place - begins[:, None]).clamp(min=0),
            use_cache=False,
        ).logits[:, longest - 1 + start : longest - 1 + start + width]
        logits = logits.float() / temperature  # [b, t, V]
        if completions.kept is not None:
            logits = restrict(logits.flatten(0, 1), completions.kept[:, start:].flatten(0, 1)).view(logits.shape)
        logprobs = logits.log_softmax(-1)
        targets = completions.tokens[:, start : start + width, None]
        decided = (place[longest + start : longest + start + width] < ends[:, None]).view(len(rows), width)
        entropy = None if ask.entropy == "no" else -(logprobs.exp() * logprobs).sum(-1)
        return Decisions(
            logprobs=torch.where(decided, logprobs.gather(-1, targets)[..., 0], 0.0),
            entropy=None if entropy is None else torch.where(decided, entropy, 0.0),
        )
