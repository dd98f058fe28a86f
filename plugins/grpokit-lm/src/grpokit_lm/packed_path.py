"""The fast path: prompts read once per group, packed scoring without padding, a head that never makes all logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grpokit.policies.fused_head import FusedHead
from grpokit.policies.group_decoding import Drawn, Written, decode
from grpokit.policies.linear_layers import Casts, for_decoding
from grpokit.policies.packed_attention import SharedPrompts, install, run
from grpokit.types import Ask, Decisions
from grpokit_lm.completions import Completions, Pack, pack
from grpokit_lm.embedding import arguments, embedded
from grpokit_lm.head import Head
from grpokit_lm.pictures import Reading


class PackedPath:
    """Writes and scores with a transformers model whose attention `grpokit.policies.packed_attention` replaces.

    Args:
        model: a causal LM; its attention is replaced on the spot.
        check_every: tokens between two looks at which samples have ended; None for what suits the device.
    """

    cut_by, packs = "group", True

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
        """Write samples: `grpokit.policies.group_decoding.decode`, where `draw` gets logits [b, V], not hidden states.

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
        plan = pack(completions, start, width=width)
        if plan is None:
            return Decisions(logprobs=torch.zeros(len(completions.lengths), width, device=completions.tokens.device))
        arrangement = SharedPrompts(plan.prompts, plan.samples, device=completions.tokens.device)
        positions = plan.positions if plan.positions is not None else arrangement.positions()
        tokens, further = torch.cat([completions.prompts.flatten(), completions.tokens.flatten()])[plan.source], {}
        if completions.sees:
            stacked = self._embedded(completions)[plan.source]
            tokens, further = stacked[:, 0], arguments(stacked[:, 1:])
        decoder, device = self.model.get_decoder(), completions.tokens.device
        positions = positions.to(device, non_blocking=True)
        hidden = run(decoder, tokens, positions, arrangement, **further)[plan.decided]
        head = Head(self.model)
        layer: Any = head.layer
        logprobs, entropy = self.fused(
            hidden,
            plan.places.pick(completions.tokens[:, start:]),
            self.casts(layer.weight),
            layer.bias,
            scale=head.scale / temperature,
            softcap=head.softcap,
            kept=None if completions.kept is None else plan.places.pick(completions.kept[:, start:]),
            entropy=ask.entropy,
            slope=_slope(plan, ask),
            ends=plan.ends,
        )
        return Decisions(
            logprobs=plan.places.table(logprobs), entropy=None if entropy is None else plan.places.table(entropy)
        )

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


def _slope(plan: Pack, ask: Ask) -> Callable[[Tensor, int], Tensor] | None:
    """The prediction for packed log-probs, from the one for tables; None where completions are not in order."""
    predict, rows = ask.slope, plan.rows
    if predict is None or list(rows) != sorted(rows):
        return None
    ends = [0, *plan.ends]

    def slope(logprobs: Tensor, begin: int) -> Tensor:
        end = begin + len(logprobs)
        first, last = rows[ends.index(begin)], rows[ends.index(end) - 1]  # between them some may have no decisions
        row, column = plan.places.row[begin:end] - first, plan.places.column[begin:end]
        table = logprobs.new_zeros(last - first + 1, plan.places.shape[1]).index_put((row, column), logprobs)
        return predict(table, slice(first, last + 1))[row, column]

    return slope
