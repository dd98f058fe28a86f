"""Tokens that a model's text format is made of, such as the end of a message: no prompt may have them in its text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from grpokit.errors import UsageError, shown


class OwnTokens:
    """Refuses texts that would be read as part of a model's own format.

    Args:
        tokenizer: of transformers.
        ids: the tokens.
    """

    def __init__(self, tokenizer: Any, ids: Collection[int]) -> None:
        self.ids = frozenset(ids)
        self._tokenizer = tokenizer
        self._first = {name[0] for name in tokenizer.convert_ids_to_tokens(sorted(self.ids)) if name}

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
                f"The prompt {shown(text)} has {name!r} in its text, which is a token of the model's own. {remedy}"
            )
