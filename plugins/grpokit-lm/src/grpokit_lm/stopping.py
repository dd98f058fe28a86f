"""When a completion ends: at a stop token, or at the token that completes a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpokit import UsageError
from grpokit.settings import Settings


@dataclass(frozen=True, kw_only=True)
class StopSettings(Settings):
    """What ends a completion.

    Attributes:
        stop: texts that end a completion, at the token that completes one.
        stop_tokens: further tokens that end a completion, as text or ids, beside the model's own end tokens.
        ignore_eos: no token ends a completion, so all have `max_new_tokens`; not with `stop` or `stop_tokens`.
        mask_truncated: a completion that did not end by itself is not trained on.
    """

    stop: Sequence[str] = ()
    stop_tokens: Sequence[str | int] = ()
    ignore_eos: bool = False
    mask_truncated: bool = False

    def check_together(self) -> None:
        """Refuse ends that `ignore_eos` excludes.

        Raises:
            UsageError: with what to write.
        """
        if self.ignore_eos and (self.stop or self.stop_tokens):
            raise UsageError("With ignore_eos no token ends a completion. Leave it out, or stop and stop_tokens.")


class Stops:
    """Finds the ends of completions.

    Args:
        tokens: ids that end a completion, itself the last decision.
        texts: strings that end it; the token that completes one is the last decision.
        decode: token ids -> text, needed for `texts`.

    Raises:
        UsageError: a stop string is empty, or no text.
    """

    def __init__(
        self, tokens: Sequence[int], texts: Sequence[str] = (), decode: Callable[[Sequence[int]], str] | None = None
    ) -> None:
        for text in texts:
            if not isinstance(text, str) or not text:
                raise UsageError(f"stop must hold texts of at least one character, got {text!r}.")
        self.tokens, self.texts, self.decode = torch.tensor(sorted(set(tokens)), dtype=torch.int64), list(texts), decode
        self._lookback = max((len(text.encode()) for text in texts), default=0)  # a token may be a single byte
        self._last = {text[-1] for text in texts}
        self._completing: dict[int, bool] = {}

    def ended(self, tokens: Tensor, first: int) -> Tensor:
        """[B] bool on the CPU: does one of the tokens from column `first` on end its completion? tokens: [B, t]."""
        known = min(first, self._lookback)  # columns that were looked at before, and may hold the beginning of a text
        tokens = tokens[:, first - known :].cpu()  # the one time that the host waits for the device
        new = torch.isin(tokens[:, known:], self.tokens).any(1)
        if self.texts:
            for row, written in enumerate(tokens.tolist()):
                new[row] |= self._first_end(written, known) is not None
        return new

    def completed_by_last(self, tokens: Sequence[int]) -> bool:
        """Whether the last of a turn's tokens ends it; it did not end before."""
        if tokens[-1] in self.tokens:
            return True
        return bool(self.texts) and self._first_end(tokens, len(tokens) - 1) is not None

    def lengths(self, tokens: Tensor) -> tuple[list[int], list[bool]]:
        """For each completion in tokens [B, T]: its length, end included, and whether it has ended."""
        tokens = tokens.cpu()
        hits = torch.isin(tokens, self.tokens)
        columns = tokens.shape[1]
        lengths = torch.where(hits.any(1), hits.int().argmax(1) + 1, columns).tolist()
        ended = hits.any(1).tolist()
        for row, written in enumerate(tokens.tolist() if self.texts else []):
            length = self._first_end(written[: lengths[row]])
            if length is not None:
                lengths[row], ended[row] = length, True
        return lengths, ended

    def _may_complete(self, token: int) -> bool:
        """Whether a token can be the one that completes a stop string: few can, and only then is a text decoded.

        Twice in a row it also shows a space before it, which some tokenizers leave out at the beginning of a text. The
        sign of an incomplete character stands for part of one.
        """
        if token not in self._completing:
            assert self.decode is not None
            text = self.decode([token, token])
            self._completing[token] = "\ufffd" in text or any(last in text for last in self._last)
        return self._completing[token]

    def _has_text(self, tokens: Sequence[int]) -> bool:
        assert self.decode is not None
        text = self.decode(tokens)
        return any(stop in text for stop in self.texts)

    def _first_end(self, tokens: Sequence[int], first: int = 0) -> int | None:
        """The number of tokens after which a stop string is complete, if one of those from `first` on completes it."""
        for last in range(first, len(tokens)):
            if self._may_complete(tokens[last]) and self._has_text(tokens[max(0, last - self._lookback) : last + 1]):
                return last + 1
        return None
