"""What an actor does: it builds a reward by its name, and scores what the run sends.

Samples come from the run that started the actor, in Ray's own form. Answers go back as JSON in bytes, so that nothing
which a reward makes is unpickled in the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from grpokit import Sample
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

    def score(self, samples: list[Sample]) -> bytes:
        """The answer to samples."""
        return as_json(answer(self.reward, samples))
