"""Which phase of a run learns when: the list of phases, in its order, as often as there are rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpokit.errors import plural
from grpokit.training.state import State


@dataclass(kw_only=True)
class Stretch:
    """Consecutive steps of one phase.

    Attributes:
        phase: its name.
        planned: the steps that it was begun for.
        steps: taken so far.
    """

    phase: str
    planned: int
    steps: int = 0


class Course:
    """The stretches of a run.

    Args:
        steps: for each phase the steps of a stretch.
        rounds: how many times the list of phases is repeated.

    Attributes:
        stretches: of all rounds, in their order.
    """

    def __init__(self, steps: Mapping[str, int], *, rounds: int) -> None:
        self._steps = dict(steps)
        self._rounds = rounds
        self._listed = [*steps.items()] * rounds
        self.load_state_dict({"stretches": []})

    @property
    def total(self) -> int:
        """Steps of all rounds; stretches that were begun with other steps count with theirs."""
        return sum(stretch.planned for stretch in self.stretches[: len(self._listed)])

    @property
    def completed(self) -> int:
        """Steps taken so far."""
        return sum(stretch.steps for stretch in self.stretches)

    @property
    def begun(self) -> list[Stretch]:
        """The stretches up to the latest one that has a step."""
        places = [place for place, stretch in enumerate(self.stretches) if stretch.steps]
        last = max(places, default=-1)
        return self.stretches[: last + 1]

    def under_way(self, finished: Sequence[str]) -> Stretch | None:
        """The stretch that the next step belongs to; None at the end.

        Args:
            finished: phases that have nothing left to learn, which are skipped.
        """
        latest = max(0, len(self.begun) - 1)
        for stretch in self.stretches[latest : len(self._listed)]:
            if stretch.steps < stretch.planned and stretch.phase not in finished:
                return stretch
        return None

    def state_dict(self) -> State:
        """All stretches that have begun."""
        return {"stretches": [vars(stretch).copy() for stretch in self.begun]}

    def load_state_dict(self, state: State) -> None:
        """Load a result of `state_dict`."""
        begun = [Stretch(**stretch) for stretch in state["stretches"]]
        ahead = self._listed[len(begun) :]
        self.stretches = begun + [Stretch(phase=name, planned=steps) for name, steps in ahead]

    def describe(self) -> str:
        """The order of phases in words."""
        names = [f"'{name}' ({plural(steps, 'step')})" for name, steps in self._steps.items()]
        return f"{plural(self._rounds, 'round')} of the phases {', then '.join(names)} = {plural(self.total, 'step')}"
