"""The fast path: prompts read once per group, packed scoring without padding, a head that never makes all logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpokit.policies.fused_head import FusedHead
from grpokit.policies.group_decoding import Drawn, Written, decode
from grpokit.policies.linear_layers import for_decoding
from grpokit.policies.packed_attention import SharedPrompts, install, run
from grpokit.types import Ask, Decisions
from grpokit_lm.completions import Completions, Pack, pack
from grpokit_lm.head import Head


class PackedPath:
    """Writes and scores with a transformers model whose attention `grpokit.policies.packed_attention` replaces.

    Args:
        model: a causal LM; its attention is replaced on the spot.
        check_every: tokens between two looks at which samples have ended; None for what suits the device.
    """

    cut_by = "group"

    def __init__(self, model: Any, *, check_every: int | None = None) -> None:
        install(model)
        self.model: Any = model
        self.check_every, self.fused = check_every, FusedHead()

    def write(
        self,
        prompts: Sequence[Tensor],
        group_size: int,
        *,
        max_new_tokens: int,
        draw: Callable[[Tensor, int, Tensor], Drawn],
        ended: Callable[[Tensor, int], Tensor],
    ) -> Written:
        """See `decode`; the layers compute with copies that are quick for few rows."""
        with torch.inference_mode(), for_decoding(self.model, rows=len(prompts) * group_size):
            written = self.decode(prompts, group_size, max_new_tokens=max_new_tokens, draw=draw, ended=ended)
        return Written(tokens=written.tokens.clone(), logprobs=written.logprobs.clone())  # usable with autograd

    def decode(
        self,
        prompts: Sequence[Tensor],
        group_size: int,
        *,
        max_new_tokens: int,
        draw: Callable[[Tensor, int, Tensor], Drawn],
        ended: Callable[[Tensor, int], Tensor],
    ) -> Written:
        """See `grpokit.policies.group_decoding.decode`; `draw` gets logits [b, V] in place of hidden states."""
        head = Head(self.model)
        return decode(
            self.model.get_decoder(),
            prompts,
            group_size,
            max_new_tokens=max_new_tokens,
            draw=lambda hidden, t, rows: draw(head.logits(hidden), t, rows),
            ended=ended,
            check_every=self.check_every or (1 if prompts[0].device.type == "cpu" else 16),
        )

    def score(self, completions: Completions, start: int, *, width: int, temperature: float, ask: Ask) -> Decisions:
        """Score decisions `start` to `start + width` of all completions: [b, t]."""
        plan = pack(completions, start, width=width)
        if plan is None:
            return Decisions(logprobs=torch.zeros(len(completions.lengths), width, device=completions.tokens.device))
        arrangement = SharedPrompts(plan.prompts, plan.samples, device=completions.tokens.device)
        positions = arrangement.positions().to(completions.tokens.device)
        tokens = torch.cat([completions.prompts.flatten(), completions.tokens.flatten()])[plan.source]
        hidden = run(self.model.get_decoder(), tokens, positions, arrangement)[plan.decided]
        head = Head(self.model)
        layer: Any = head.layer
        logprobs, entropy = self.fused(
            hidden,
            plan.places.pick(completions.tokens[:, start:]),
            layer.weight,
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


def _slope(plan: Pack, ask: Ask) -> Callable[[Tensor, int], Tensor] | None:
    """The prediction for packed log-probs, from the one for tables; None where completions are not in order."""
    predict, rows = ask.slope, plan.rows
    if predict is None or list(rows) != list(range(rows[0], rows[0] + len(rows))):
        return None
    ends = [0, *plan.ends]

    def slope(logprobs: Tensor, begin: int) -> Tensor:
        first, last = ends.index(begin), ends.index(begin + len(logprobs))
        row = plan.places.row[begin : begin + len(logprobs)] - rows[first]
        column = plan.places.column[begin : begin + len(logprobs)]
        table = logprobs.new_zeros(last - first, plan.places.shape[1]).index_put((row, column), logprobs)
        return predict(table, slice(rows[first], rows[last - 1] + 1))[row, column]

    return slope
