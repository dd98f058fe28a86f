"""How much JSON of another machine may hold, since a few bytes of it can take a hundred of memory."""

from __future__ import annotations

LISTS = 1_000_000  # and objects: each takes 60 bytes or more, and 3 of the text
VALUES = 4_000_000  # each takes up to 60 bytes, or 180 with its key
LIMITS = f"{LISTS:,} lists and objects or {VALUES:,} values"


def within_limits(text: bytes | bytearray) -> bool:
    """Whether JSON can be read without filling the memory; brackets and commas in texts count, too."""
    return text.count(b"[") + text.count(b"{") <= LISTS and text.count(b",") < VALUES
