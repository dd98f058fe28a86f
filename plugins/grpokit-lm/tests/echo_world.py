"""A world for tests: it says how many letters it has read, and ends the conversation behind a long turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpokit import Prompt


class Echo:
    """Args: long: the letters of a turn behind which it ends the conversation."""

    def __init__(self, long: int = 10) -> None:
        self.long = long
        self.read: list[int] = []

    def start(self, prompt: Prompt, seed: int) -> str:
        return f"{prompt.text}? {seed % 7}"

    def reply(self, text: str) -> str | None:
        self.read.append(len(text))
        return None if len(text) >= self.long else f"no, {len(text)}"

    def facts(self) -> Mapping[str, Any]:
        return {"return": float(sum(self.read)), "read": self.read}


class Odd(Echo):
    def __init__(self, message: Any) -> None:
        super().__init__()
        self.message = message

    def start(self, prompt: Prompt, seed: int) -> Any:
        return self.message
