"""Which phase of a run learns when: in the order of a list, or as somebody chooses before each stretch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpokit.errors import UsageError, counted


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
        rounds: how often the list of phases is gone through.
        choose: gives the name of the next phase; None for the order of the list. Then a run has as many steps as with
            the list, but a phase may have more or fewer of them.

    Attributes:
        stretches: begun so far; the last one may be under way.
    """

    def __init__(self, steps: Mapping[str, int], *, rounds: int, choose: Callable[[], str] | None = None) -> None:
        self._steps, self._rounds, self._choose = dict(steps), rounds, choose
        self.stretches: list[Stretch] = []

    @property
    def total(self) -> int:
        """Steps of all rounds; stretches that were begun with other steps count with theirs."""
        if self._choose:
            return self._rounds * sum(self._steps.values())
        begun = self.stretches[: len(self._listed)]
        return sum(stretch.planned for stretch in begun) + sum(self._steps[name] for name in self._to_come)

    @property
    def completed(self) -> int:
        """Steps taken so far."""
        return sum(stretch.steps for stretch in self.stretches)

    def of(self, phase: str) -> int:
        """The steps that a phase may take in all."""
        return self.total if self._choose else self._steps[phase] * self._rounds

    def under_way(self, finished: Sequence[str]) -> Stretch | None:
        """The stretch that the next step belongs to; begins one if none is under way, and None at the end.

        Args:
            finished: phases that have nothing left to learn, which are skipped.
        """
        if not self.goes_on(finished):
            return None
        if self._last_goes_on(finished):
            return self.stretches[-1]
        left = [name for name in self._steps if name not in finished]
        if self._choose is not None:
            phase = left[0] if len(left) == 1 else self._choose()
            if phase not in left:
                raise UsageError(f"The phase '{phase}' was chosen; expected one of {', '.join(map(repr, left))}.")
            self._begin(phase)
            return self.stretches[-1]
        while True:
            self._begin(self._to_come[0])
            if self.stretches[-1].phase in left:
                return self.stretches[-1]

    def goes_on(self, finished: Sequence[str]) -> bool:
        """Whether a step follows, if the phases `finished` are skipped."""
        if self._last_goes_on(finished):
            return True
        left = [name for name in self._steps if name not in finished]
        if self._choose is not None:
            return bool(left) and self.completed < self.total
        return any(name in left for name in self._to_come)

    def stepped(self) -> None:
        """Count a step of the stretch under way."""
        self.stretches[-1].steps += 1

    @property
    def _listed(self) -> list[str]:
        """The phase of each stretch, in the order of the list."""
        return list(self._steps) * self._rounds

    @property
    def _to_come(self) -> list[str]:
        """Those that have not begun."""
        return self._listed[len(self.stretches) :]

    def _begin(self, phase: str) -> None:
        self.stretches.append(Stretch(phase=phase, planned=self._steps[phase]))

    def _last_goes_on(self, finished: Sequence[str]) -> bool:
        """Whether the latest stretch has steps left."""
        if not self.stretches or self.stretches[-1].phase in finished:
            return False
        last = self.stretches[-1]
        return last.steps < last.planned and self.completed < self.total

    def state(self) -> list[dict[str, Any]]:
        """All stretches as plain data, but for those at the end that have no step yet: they are begun again."""
        stretches = [vars(stretch).copy() for stretch in self.stretches]
        while stretches and not stretches[-1]["steps"]:
            stretches.pop()
        return stretches

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Take over a result of `state`; a stretch that does not say what was planned has the steps of now."""
        self.stretches = [Stretch(**{"planned": self._steps[stretch["phase"]], **stretch}) for stretch in state]

    def describe(self) -> str:
        """The order of phases in words."""
        names = [f"'{name}' ({counted(steps, 'step')})" for name, steps in self._steps.items()]
        if self._choose is not None:
            return (
                f"{counted(self.total, 'step')} of the phases {', '.join(names)}, each chosen by what moves the reward"
            )
        return f"{counted(self._rounds, 'round')} of the phases {', then '.join(names)} = {counted(self.total, 'step')}"
