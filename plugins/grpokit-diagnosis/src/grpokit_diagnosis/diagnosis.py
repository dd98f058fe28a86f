"""A run, the symptom that it has, and what it comes from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpokit.config import presets
from grpokit.config.schema import RunConfig
from grpokit.run_folder.reader import RunHistory
from grpokit_diagnosis.evidence import Evidence, Look
from grpokit_diagnosis.looks import looks
from grpokit_diagnosis.symptom import Symptom, recent, symptom

if TYPE_CHECKING:  # a report is written without torch
    from grpokit_diagnosis.probe.measure import Measured

_CAUSES = 3  # that are named


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        run: the run.
        symptom: what its reward did.
        looks: all that was looked at, in the order in which a signal goes.
        measured: by a probe; None without one.
    """

    run: RunHistory
    symptom: Symptom
    looks: Sequence[Look]
    measured: Measured | None

    @property
    def causes(self) -> list[Look]:
        """The looks at causes, at most three; where the reward rose, only at what is a fault all the same."""
        found = [look for look in self.looks if look.cause]
        if self.symptom.course == "rising":
            found = [look for look in found if look.cause and look.cause.always]
        if self.symptom.course == "unseen":  # the training itself is well
            found.sort(key=lambda look: not (look.cause and (look.cause.always or look.of_evaluation)))
        return found[:_CAUSES]

    @property
    def fine(self) -> list[Look]:
        """What was looked at and is no cause."""
        causes = self.causes
        return [look for look in self.looks if look not in causes]

    def check(self, overrides: Sequence[str]) -> str:
        """The command that trains with changes, and the time that it takes."""
        own = self.run.folder
        words = ["grpokit", "train", str(own), *overrides, f"run.dir={own}-changed"]
        minutes = self.run.steps * recent(self.run.metrics, "step_time") / 60
        return f"{shlex.join(words)}  (about {max(1, minutes):.0f} min)"

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        causes = []
        for look in self.causes:
            assert look.cause
            cause = look.cause
            causes.append(
                {
                    "id": cause.id,
                    "title": cause.title,
                    "figures": look.figures,
                    "lost": round(cause.lost, 3),
                    "advice": cause.advice,
                    "overrides": list(cause.overrides),
                    "check": self.check(cause.overrides) if cause.overrides else None,
                }
            )
        return {
            "run": str(self.run.folder),
            "steps": self.run.steps,
            "course": self.symptom.course,
            "symptom": str(self.symptom),
            "probed": self.measured is not None,
            "cost": None if self.measured is None else round(self.measured.cost, 1),
            "causes": causes,
            "fine": [{"topic": look.topic, "figures": look.figures} for look in self.fine],
        }


def diagnose(run: RunHistory, *, probe: bool = False, say: Callable[[str], None] = lambda line: None) -> Diagnosis:
    """Find out why a run's reward does not move.

    Args:
        run: the run.
        probe: also measure, with the policy and the rewards of the run.
        say: gets a line about what is done.

    Raises:
        UsageError: its parts cannot be built again.
    """
    seen = symptom(run)
    config, _ = presets.read_config(run.folder)
    measured = _measured(run, seen, config, say) if probe else None
    evidence = Evidence(run=run, config=config, symptom=seen, measured=measured)
    return Diagnosis(run=run, symptom=seen, looks=list(looks(evidence)), measured=measured)


def _measured(run: RunHistory, seen: Symptom, config: RunConfig, say: Callable[[str], None]) -> Measured:
    """What a probe measures, from the last weights, or from the last ones before the reward fell."""
    from grpokit_diagnosis.probe.measure import measure

    places = [place for _, place in run.checkpoints]
    usable = [place for step, place in run.checkpoints if seen.course != "falling" or step <= seen.best]
    doubted = seen.course in ("unseen", "flat", "slow")
    return measure(
        config,
        usable[-1] if usable else None,
        places[-1] if doubted and places else None,
        changed=lambda word: presets.read_config(run.folder, [word])[0],
        say=say,
    )
