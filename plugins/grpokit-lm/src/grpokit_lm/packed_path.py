"""The fast path: prompts read once per group, packed scoring without padding, a head that never makes all logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from grpokit.policy import CutBy
from grpokit.types import Ask, Decisions
from grpokit_hf.tokens import packing
from grpokit_hf.tokens.fused_head import FusedHead
from grpokit_hf.tokens.group_decoding import Drawn, Written, decode
from grpokit_hf.tokens.linear_layers import Casts, for_decoding
from grpokit_hf.tokens.packed_attention import install
from grpokit_lm.completions import Completions
from grpokit_lm.embedding import arguments, embedded
from grpokit_lm.head import Head
from grpokit_lm.pictures import Reading


class PackedPath:
    """Writes and scores with a transformers model whose attention `grpokit_hf.tokens.packed_attention` replaces.

    Args:
        model: a causal LM; its attention is replaced on the spot.
        check_every: tokens between two looks at which samples have ended; None for what suits the device.
    """

    cut_by: CutBy = "group"
    packs = True

    def __init__(self, model: Any, *, check_every: int | None = None) -> None:
        install(model)
        self.model: Any = model
        self.check_every, self.fused, self.casts = check_every, FusedHead(), Casts()

    def write(
        self,
        prompts: Sequence[Reading],
        group_size: int,
        *,
        max_new_tokens: int,
        draw: Callable[[Tensor, int, Tensor], Drawn],
        ended: Callable[[Tensor, int], Tensor],
        copies: bool | None = None,
    ) -> Written:
        """Write samples: `grpokit_hf.tokens.group_decoding.decode`, where `draw` gets logits [b, V], not hidden states.

        Args:
            prompts: P of them.
            group_size: G.
            max_new_tokens: the most tokens of a sample.
            draw: as there.
            ended: as there.
            copies: whether the layers compute with copies that are quick for few rows; None where the device is quicker
                with them.
        """
        head, decoder = Head(self.model), self.model.get_decoder()
        inputs, further = [prompt.tokens for prompt in prompts], {}
        layers = nn.ModuleList([decoder, head.layer])
        with torch.inference_mode(), for_decoding(layers, rows=len(prompts) * group_size, copies=copies):
            if any(prompt.pictures for prompt in prompts):
                stacked = embedded(self.model, inputs, [prompt.pictures for prompt in prompts])
                inputs, further = [x[:, 0] for x in stacked], arguments(torch.cat(stacked)[:, 1:])
            written = decode(
                decoder,
                inputs,
                group_size,
                max_new_tokens=max_new_tokens,
                draw=lambda hidden, t, rows: draw(head.logits(hidden), t, rows),
                ended=ended,
                positions=[prompt.span(max_new_tokens - 1) for prompt in prompts],
                check_every=self.check_every or (1 if inputs[0].device.type == "cpu" else 16),
                **further,
            )
        return Written(tokens=written.tokens.clone(), logprobs=written.logprobs.clone())  # usable with autograd

    def score(self, completions: Completions, start: int, *, width: int, temperature: float, ask: Ask) -> Decisions:
        """Score decisions `start` to `start + width` of all completions: [b, t]."""
        head = Head(self.model)
        return packing.score(
            completions,
            start,
            width=width,
            decoder=self.model.get_decoder(),
            layer=head.layer,
            head=self.fused,
            casts=self.casts,
            ask=ask,
            scale=head.scale / temperature,
            softcap=head.softcap,
            inputs=partial(self._inputs, completions) if completions.sees else None,
        )

    def _inputs(self, completions: Completions, source: Tensor) -> tuple[Tensor, Mapping[str, Any]]:
        """What the decoder reads where prompts have pictures."""
        stacked = self._embedded(completions)[source]
        return stacked[:, 0], arguments(stacked[:, 1:])

    def _embedded(self, completions: Completions) -> Tensor:
        """The embeddings of all prompts and completions, flattened: [P * S + b * T, 1 + K, H]."""
        lengths, slot = completions.prompt_lengths, completions.prompts.shape[1]
        prompts = [tokens[:length] for tokens, length in zip(completions.prompts, lengths, strict=True)]
        rows = torch.stack(
            [
                nn.functional.pad(x, (0, 0, 0, 0, 0, slot - len(x)))
                for x in embedded(self.model, prompts, completions.pictures)
            ]
        )
        written = self.model.get_input_embeddings()(completions.tokens.flatten())[:, None]
        behind = (0, 0, 0, rows.shape[2] - 1)
        return torch.cat([rows.flatten(0, 1), nn.functional.pad(written, behind)])
