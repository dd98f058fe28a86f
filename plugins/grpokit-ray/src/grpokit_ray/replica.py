"""What an actor does: it builds a reward by its name, and scores what the run sends.

Samples come from the run that started the actor, in Ray's own form. Answers go back as JSON in bytes, so that nothing
which a reward makes is unpickled in the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from grpokit import Sample
from grpokit.rewards.calling import build, call_reward
from grpokit.rewards.submission import to_message


class Replica:
    """One copy of a reward.

    Args:
        use: a plugin's name for it, or "package.module:function".
        params: for its factory.
    """

    def __init__(self, use: str, params: Mapping[str, Any]) -> None:
        self.reward, self.portion = build(use, params)

    def built(self) -> bytes:
        """Whether the reward stands, or why not."""
        return json.dumps(to_message(self.portion)).encode()

    def process(self) -> int:
        """The number of the actor's process on its machine."""
        return os.getpid()

    def score(self, rows: list[int], samples: list[Sample]) -> bytes:
        """The answer to the samples of some rows."""
        return json.dumps(to_message(call_reward(self.reward, rows, samples))).encode()
