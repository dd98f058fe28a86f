"""What the policy and an engine say to each other, wherever the engine runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter on its way to an engine.

    Attributes:
        version: of the policy's weights.
        number: 1 for the first; an engine tells adapters apart by it, or by the name.
        name: another one for each adapter.
        folder: holds it, as peft writes it.
    """

    version: int
    number: int
    name: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Row:
    """A completion that is asked for: the prompt's token ids, and the seed to draw with."""

    prompt: Sequence[int]
    seed: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A completion of n tokens.

    Attributes:
        tokens: n ids.
        logprobs: n log-probs that the engine states for them.
        likeliest: for each token the likeliest ones in its place, id -> log-prob; empty if none were asked for.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    likeliest: Sequence[Mapping[int, float]] = field(default=())


class Host(Protocol):
    """Where an engine runs.

    Attributes:
        name: for messages, such as "engine at http://gpu-2:8000".
        overlaps: whether it can draw while the policy learns.
    """

    name: str
    overlaps: bool

    def load(self, adapter: Adapter) -> None:
        """Make an adapter ready."""

    def unload(self, adapter: Adapter) -> None:
        """An adapter is needed no more."""

    def begin(
        self, adapter: Adapter, rows: Sequence[Row], options: Mapping[str, Any]
    ) -> Sequence[Future[Sequence[Answer]]]:
        """Begin to draw.

        Args:
            adapter: with this one.
            rows: B of them.
            options: in the words of vLLM's `SamplingParams`, which are those of its server, too.

        Returns:
            Parts, which together have an answer for each row.
        """

    def awake(self) -> AbstractContextManager[Any]:
        """Inside, the engine has the memory that it draws with."""
