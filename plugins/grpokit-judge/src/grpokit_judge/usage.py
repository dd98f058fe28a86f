"""Tokens and money that the judge has used, counted from the answers and shown on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpokit import RewardError
from grpokit.errors import plural


@dataclass(kw_only=True)
class Usage:
    """A count for all threads of a judge.

    Attributes:
        input_price: dollars, or another currency, for a million tokens that are sent; None: not known.
        output_price: likewise, for a million tokens of answers.
        max_cost: what may be spent; None: there is no limit.
        every: seconds from one line on stderr to the next.
        answers: so many came.
        retries: so many requests were sent once more.
        unread: so many answers had no rating.
        input_tokens: as the server counts them.
        output_tokens: likewise.
        uncounted: so many answers came without a count.
    """

    input_price: float | None = None
    output_price: float | None = None
    max_cost: float | None = None
    every: float = 60.0
    answers: int = 0
    retries: int = 0
    unread: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    uncounted: int = 0
    _shown: float = field(default_factory=time.monotonic)
    _lock: Any = field(default_factory=threading.Lock)

    @property
    def cost(self) -> float | None:
        """What was spent, in the prices' currency; None without prices."""
        if self.input_price is None or self.output_price is None:
            return None
        return (self.input_tokens * self.input_price + self.output_tokens * self.output_price) / 1e6

    def add(self, usage: Any) -> None:
        """Count an answer; `usage` is the field of that name in it, which some servers leave out.

        Raises:
            RewardError: it is left out, so that `max_cost` would never be reached.
        """
        tokens = usage if isinstance(usage, Mapping) else {}
        with self._lock:
            self.answers += 1
            self.uncounted += not _count(tokens.get("prompt_tokens"))
            self.input_tokens += _count(tokens.get("prompt_tokens"))
            self.output_tokens += _count(tokens.get("completion_tokens"))
        if self.max_cost is not None and self.uncounted:
            raise RewardError(
                "max_cost cannot be kept, since the server's answers do not say how many tokens they took "
                "(usage.prompt_tokens). Remove max_cost, and look at the cost where the service shows it."
            )

    def note(self, *, retries: int = 0, unread: int = 0) -> None:
        """Count what went wrong on the way."""
        with self._lock:
            self.retries += retries
            self.unread += unread

    def check(self) -> None:
        """Stop where the money is spent.

        Raises:
            RewardError: `max_cost` is reached.
        """
        if self.max_cost is not None and self.cost is not None and self.cost >= self.max_cost:
            raise RewardError(f"{self.cost:.4f} of max_cost = {self.max_cost:g} is spent ({self}). Raise it to go on.")

    def show(self, *, now: bool = False) -> None:
        """Write the line, if `every` seconds have passed since the last one."""
        with self._lock:
            if not now and time.monotonic() - self._shown < self.every:
                return
            self._shown = time.monotonic()
        if self.answers:
            print(f"grpokit-judge: {self}", file=sys.stderr)

    def __str__(self) -> str:
        tokens = f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out"
        cost = "" if self.cost is None else f", cost {self.cost:.4f}"
        more = "".join(
            f", {number:,} {what}"
            for number, what in (
                (self.retries, "sent again"),
                (self.unread, "without a rating"),
                (self.uncounted, "without a count of tokens"),
            )
            if number
        )
        return f"{plural(self.answers, 'answer')}, {tokens}{cost}{more}"


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
