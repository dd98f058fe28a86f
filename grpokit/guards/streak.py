"""Counts steps in a row from which nothing was learned."""

from __future__ import annotations

from grpokit.guards.observer import Observer
from grpokit.training.state import State


class Streak(Observer):
    """What guards share that warn of such a step once, and end the run after `most` in a row; None for no limit."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.count = 0
        self.warned = False

    def count_one(self) -> bool:
        """Count a step; returns whether the limit is reached."""
        self.count += 1
        return self.most is not None and self.count >= self.most

    def warn_once(self, sentence: str) -> list[str]:
        """The warning with what follows, the first time."""
        if self.warned:
            return []
        self.warned = True
        limit = "" if self.most is None else f" If this goes on for {self.most} steps, the run stops."
        return [sentence + limit]

    def state_dict(self) -> State:
        """The count, and whether it has warned."""
        return {"count": self.count, "warned": self.warned}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`."""
        self.count, self.warned = state["count"], state["warned"]
