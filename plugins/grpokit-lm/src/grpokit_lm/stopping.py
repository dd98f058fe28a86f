"""When a completion ends: at a stop token, or at the token that completes a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Stops:
    """Finds the ends of completions.

    Args:
        tokens: ids that end a completion, itself the last decision.
        texts: strings that end it; the token that completes one is the last decision.
        decode: token ids -> text, needed for `texts`.
    """

    def __init__(
        self, tokens: Sequence[int], texts: Sequence[str] = (), decode: Callable[[Sequence[int]], str] | None = None
    ) -> None:
        self.tokens, self.texts, self.decode = torch.tensor(sorted(set(tokens)), dtype=torch.int64), list(texts), decode
        self._lookback = max((len(text.encode()) for text in texts), default=0)  # a token may be a single byte

    def ended(self, tokens: Tensor, first: int) -> Tensor:
        """[B] bool on the CPU: does one of the tokens from column `first` on end its completion? tokens: [B, t]."""
        new = torch.isin(tokens[:, first:], self.tokens.to(tokens.device)).any(1).cpu()
        if self.texts:
            recent = tokens[:, max(0, first - self._lookback) :].tolist()
            new |= torch.tensor([self._has_text(row) for row in recent])
        return new

    def lengths(self, tokens: Tensor) -> tuple[list[int], list[bool]]:
        """For each completion in tokens [B, T]: its length, end included, and whether it has ended."""
        hits = torch.isin(tokens, self.tokens.to(tokens.device)).cpu()
        columns = tokens.shape[1]
        lengths = torch.where(hits.any(1), hits.int().argmax(1) + 1, columns).tolist()
        ended = hits.any(1).tolist()
        for row, written in enumerate(tokens.tolist() if self.texts else []):
            length = self._first_end(written[: lengths[row]])
            if length is not None:
                lengths[row], ended[row] = length, True
        return lengths, ended

    def _has_text(self, tokens: Sequence[int]) -> bool:
        assert self.decode is not None
        text = self.decode(tokens)
        return any(stop in text for stop in self.texts)

    def _first_end(self, tokens: Sequence[int]) -> int | None:
        """The number of tokens after which a stop string is complete, by bisection: text only grows."""
        if not self._has_text(tokens):
            return None
        low, high = 0, len(tokens)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._has_text(tokens[:middle]) else (middle, high)
        return high
