"""What is known of the tokens of a text before it is tokenized, and tokens that no prompt may have in its text."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection
from typing import Any

from grpokit.errors import UsageError, brief


def most_tokens(text: str) -> float:
    """No fewer tokens than a tokenizer makes of a text: one for each byte, also where it takes letters apart.

    Infinite for a text without a letter or digit, which may leave no token, and for one with an unpaired surrogate.

    >>> most_tokens("caf\u00e9"), most_tokens("\u20ac 5"), most_tokens("\u200b")
    (6, 5, inf)
    """
    if not any(map(str.isalnum, text)):
        return math.inf
    try:
        return len(unicodedata.normalize("NFKD", text).encode())
    except UnicodeEncodeError:
        return math.inf


class OwnTokens:
    """Refuses or escapes texts that would be read as part of a model's own format.

    Args:
        tokenizer: of transformers.
        ids: the tokens.
    """

    def __init__(self, tokenizer: Any, ids: Collection[int]) -> None:
        self.ids = frozenset(ids)
        self._tokenizer = tokenizer
        self._names = [name for name in tokenizer.convert_ids_to_tokens(sorted(self.ids)) if name]
        self._first = {name[0] for name in self._names}

    def escaped(self, text: str) -> str:
        """A text with a space inside each of the tokens' names, so that it holds none of them."""
        for name in sorted(self._names, key=len, reverse=True):
            text = text.replace(name, f"{name[0]} {name[1:]}")
        return text

    def refuse(self, text: str, *, remedy: str = "Take it out.") -> None:
        """Make sure that a text holds none of the tokens.

        Args:
            text: of a prompt.
            remedy: the end of the message.

        Raises:
            UsageError: names the first of them.
        """
        if self._first.isdisjoint(text):  # nearly all: they need not be tokenized
            return
        own = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        names = self._tokenizer.convert_ids_to_tokens([token for token in own if token in self.ids])
        name = next((name for name in names if name in text), None)  # what is unknown is a token that is not in it
        if name is not None:
            raise UsageError(
                f"The prompt {brief(text)} has {name!r} in its text, which is a token of the model's own. {remedy}"
            )
