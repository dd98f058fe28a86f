"""Draws tokens by a policy's settings, and keeps what their log-probs need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from grpokit.policies.token_sampling import Draw, draw
from grpokit.policies.truncation import forbid


class Sampler:
    """Draws the next tokens, and keeps what a truncated distribution needs to be scored again.

    Args:
        chances: [B, T] uniform numbers.
        temperature: 0 takes the most likely token.
        scored_at: the temperature of the log-probs.
        truncation: top_k, top_p and min_p.
        forbidden: [V] bool, tokens that are never drawn; None for none.
    """

    def __init__(
        self,
        chances: Tensor,
        *,
        temperature: float,
        scored_at: float,
        truncation: Mapping[str, Any],
        forbidden: Tensor | None = None,
    ) -> None:
        self.chances, self.temperature, self.scored_at, self.truncation = chances, temperature, scored_at, truncation
        self.forbidden = forbidden
        self._kept: list[tuple[Tensor, Tensor]] = []  # for each token, its rows and their sets

    def __call__(self, logits: Tensor, t: int, rows: Tensor) -> Draw:
        """logits [b, V], the token's index, its rows [b] -> tokens and log-probs."""
        if self.temperature == 0:
            logits = logits if self.forbidden is None else forbid(logits.clone(), self.forbidden)
            tokens = logits.argmax(-1)
            logprobs = (logits / self.scored_at).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
            return Draw(tokens=tokens, logprobs=logprobs)
        drawn = draw(
            logits,
            self.chances[rows, t],
            temperature=self.temperature,
            forbidden=self.forbidden,
            **self.truncation,
        )
        if drawn.kept is not None:
            self._kept.append((rows, drawn.kept))
        return drawn

    def kept(self) -> dict[str, Tensor]:
        """The sets that tokens were drawn from, for the trace: [B, t, ...], no wider than what was written."""
        if not self._kept:
            return {}
        sets = self._kept[0][1]
        table = sets.new_zeros(len(self.chances), len(self._kept), sets.shape[1])
        while self._kept:  # each set is let go once it is in the table
            rows, sets = self._kept.pop()
            table[rows, len(self._kept)] = sets
        return {"kept": table}
