"""What an actor does: it builds a reward by its name, and scores what the run sends.

Samples come as `pickle` from the run that started the actor. Answers go back as JSON in bytes, so that nothing which a
reward makes is unpickled in the run.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import Any

from grpokit.errors import typed_line
from grpokit.rewards.answers import answer, as_json, build


class Replica:
    """One copy of a reward.

    Args:
        use: a plugin's name for it, or "package.module:function".
        params: for its factory.
    """

    def __init__(self, use: str, params: Mapping[str, Any]) -> None:
        self.reward, self.message = build(use, params)

    def built(self) -> bytes:
        """Whether the reward stands, or why not."""
        return as_json(self.message)

    def process(self) -> int:
        """The number of the actor's process on its machine."""
        return os.getpid()

    def score(self, data: bytes) -> bytes:
        """The answer to pickled samples."""
        try:
            samples = pickle.loads(data)  # noqa: S301  # of the run that started this actor
        except BaseException as error:  # a sample's class may not be importable here
            unread = f"samples cannot be read in its replica ({typed_line(error)}). Remove `placement`"
            return as_json(("error", "UsageError", unread))
        return as_json(answer(self.reward, samples))
