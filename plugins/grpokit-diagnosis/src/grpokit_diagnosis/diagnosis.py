"""A run, the symptom that it has, and what it comes from."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpokit import UsageError
from grpokit.config import presets
from grpokit.config.schema import RunConfig
from grpokit.errors import plural
from grpokit.report.verdict import headline, moved_monitors
from grpokit.run_folder.reader import RunHistory, read_run
from grpokit_diagnosis.evidence import Cause, Evidence, Look
from grpokit_diagnosis.looks import looks
from grpokit_diagnosis.symptom import NOT_HELD_BACK, Symptom, recent, symptom

if TYPE_CHECKING:  # a report is written without torch
    from grpokit_diagnosis.probe.measure import Measured

_CAUSES = 3  # that are named


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        run: the run.
        phase: the latest one, which this is about; empty in a run without phases.
        symptom: what its reward did.
        looks: all that was looked at, in the order in which a signal goes.
        measured: by a probe; None without one.
    """

    run: RunHistory
    phase: str
    symptom: Symptom
    looks: Sequence[Look]
    measured: Measured | None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """The diagnosis for a terminal."""
        yield str(self.symptom)
        yield self._basis()
        if self.run.message:
            yield f"The run stopped: {self.run.message}"
        for number, cause in enumerate(self.causes, 1):
            yield f"\n{number}. {cause.title}"
            yield _wrapped(cause.figures, "   ")
            yield _wrapped(cause.advice, "   ")
            minutes = f"about {minutes_of(self.run):.0f} min"
            yield f"   To check, {minutes if cause.overrides else f'once that is changed, {minutes}'}:"
            yield f"   {check_of(self.run, cause)}"
        if not self.causes:
            yield f"\n{self.answer}"
        for heading, listed in (("seen as well", self.other), ("looked at and fine", self.fine)):
            if listed:
                yield f"\n{heading}"
                yield from (_wrapped(f"{look.topic}: {look.figures}", "  ") for look in listed)

    def _basis(self) -> str:
        """What it rests on."""
        steps = f"{plural(len(self.run.metrics), 'step')}{f' of the phase {self.phase}' if self.phase else ''}"
        if self.measured is None:
            return f"Read from the log of {steps}. --probe measures as well."
        return (
            f"Read from the log of {steps}, and from {plural(self.measured.steps, 'step')} taken again with the "
            f"weights after step {self.measured.completed}. It took as long as {self.measured.cost:.0f} steps."
        )

    @property
    def causes(self) -> list[Cause]:
        """At most three, the first one first; without a flat or falling curve, only what is a fault all the same."""
        found = [look for look in self.looks if look.cause]
        certain = [look for look in found if look.cause and (look.cause.always or look.of_evaluation)]
        if self.symptom.course in NOT_HELD_BACK:
            found = [look for look in certain if not look.of_evaluation]
        if self.symptom.course in ("unseen", "apart"):  # the training itself is well
            found = certain or found
        causes: dict[str, Cause] = {}
        for look in found:
            assert look.cause
            known = causes.setdefault(look.cause.id, look.cause)
            seen = f"{known.figures}; {look.figures}" if known.figures else look.figures
            causes[look.cause.id] = replace(known, figures=seen)
        return [*causes.values()][:_CAUSES]

    @property
    def answer(self) -> str:
        """The first cause as a sentence, or that there is none."""
        if self.causes:
            return self.causes[0].title
        moved = [f"{sentence}." for sentence in moved_monitors(headline(self.run))]
        monitors = " ".join(moved) or "A monitor (weight: 0) that scores held-out prompts shows what is learned."
        nothing = {
            "rising": "Nothing holds it back.",
            "unscored": monitors,
            "learning": monitors,
            "untrained": "Its loss says how the run goes, and monitors (weight: 0) show what is learned.",
            "unknown": "That is too little to name a cause.",
        }
        return nothing.get(self.symptom.course, "No cause was found in what was looked at.")

    @property
    def other(self) -> list[Look]:
        """What is not as it should be, and is not named: the reward rose all the same, or there are other causes."""
        named = {cause.id for cause in self.causes}
        return [look for look in self.looks if look.cause is not None and look.cause.id not in named]

    @property
    def fine(self) -> list[Look]:
        """What was looked at and holds nothing back."""
        return [look for look in self.looks if look.cause is None]

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "run": str(place_of(self.run)),
            "steps": self.run.steps,
            "course": self.symptom.course,
            "symptom": str(self.symptom),
            "answer": self.answer,
            "probed": self.measured is not None,
            "causes": [asdict(cause) for cause in self.causes],
            "checks": [check_of(self.run, cause) for cause in self.causes],
            "other": [{"topic": look.topic, "figures": look.figures} for look in self.other],
            "fine": [{"topic": look.topic, "figures": look.figures} for look in self.fine],
            "measured": None if self.measured is None else _plain(asdict(self.measured)),
        }


def check_of(run: RunHistory, cause: Cause) -> str:
    """The command that trains a run again with what a cause advises."""
    own = place_of(run)
    return shlex.join(["grpokit", "train", str(own), *cause.overrides, f"run.dir={own}-{cause.id}"])


def minutes_of(run: RunHistory) -> float:
    """How long training it again takes, at least 1."""
    seconds = recent(run.metrics, "step_time")
    return 1.0 if math.isnan(seconds) else max(1.0, (run.planned or run.steps) * seconds / 60)


def place_of(run: RunHistory) -> Path:
    """A run's folder as one types it here: from the current folder, where it is inside."""
    folder, here = run.folder.resolve(), Path.cwd()
    return folder.relative_to(here) if here in folder.parents else folder


def _wrapped(text: str, indent: str) -> str:
    """A text in lines that fit a notebook's cell."""
    return textwrap.fill(text, 84, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def _plain(value: Any) -> Any:
    """The same for JSON, which has no infinite number and no key but a text."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def diagnose(run: Path | str, *, probe: bool = False, say: Callable[[str], None] = lambda line: None) -> Diagnosis:
    """Find out why a run's reward does not move; `print` shows the result.

    Args:
        run: the run's folder.
        probe: also measure, with the policy and the rewards of the run.
        say: gets a line about what is done.

    Raises:
        UsageError: it is not a run folder, or its parts cannot be built again.
    """
    return diagnosis_of(read_run(Path(run)), probe=probe, say=say)


def diagnosis_of(run: RunHistory, *, probe: bool, say: Callable[[str], None]) -> Diagnosis:
    """The diagnosis of a run that was read."""
    if "sources" in run.settings:
        raise UsageError(f"{run.folder} is the result of an evaluation. Name the run: grpokit diagnose RUN.")
    config, _ = presets.read_config(run.folder)
    views = {phase.name: own for phase, own in config.phased()}
    phase = next(iter(views))
    if run.stretches:
        phase = run.stretches[-1][0]
        run = _of_phase(run, phase)
    seen = symptom(run)
    measured = _measured(run, phase, seen, config, say) if probe else None
    evidence = Evidence(run=run, config=views[phase], symptom=seen, measured=measured)
    place = list(views).index(phase)
    found = []
    for look in looks(evidence):
        found.append(_with_keys_of_phase(config, place, look) if phase else look)
    return Diagnosis(run=run, phase=phase, symptom=seen, looks=found, measured=measured)


def _of_phase(run: RunHistory, phase: str) -> RunHistory:
    """What a run says of a phase: its steps and rewards, and the evaluations since it began."""
    own = next(each for each in run.settings["phases"] if each["name"] == phase)
    rewards = run.settings["rewards"] if own.get("rewards") is None else own["rewards"]
    metrics = [row for row in run.metrics if row["phase"] == phase]
    first = metrics[0]["step"]
    start = max((row["step"] for row in run.evaluations if row["step"] < first), default=first)
    return replace(
        run,
        settings={**run.settings, "rewards": rewards, "phases": None},
        metrics=metrics,
        evaluations=[row for row in run.evaluations if row["step"] >= start],
    )


def _with_keys_of_phase(config: RunConfig, place: int, look: Look) -> Look:
    """The look, with the keys that its advice sets where the phase at this place has its own."""
    if look.cause is None:
        return look
    phase = config.phases[place]
    overrides = []
    for word in look.cause.overrides:
        of_objective = word.startswith("trainer.objective.") and "objective" not in phase.trainer.model_fields_set
        own = word.startswith("trainer.") and not of_objective
        own = own or (word.startswith("rewards.") and phase.rewards is not None)
        overrides.append(f"phases.{place}.{word}" if own else word)
    return replace(look, cause=replace(look.cause, overrides=overrides))


def _measured(run: RunHistory, phase: str, seen: Symptom, config: RunConfig, say: Callable[[str], None]) -> Measured:
    """What a probe measures: from the last weights, or from those before the reward fell or had risen."""
    from grpokit_diagnosis.probe.measure import measure

    places: dict[int, Path | None] = {**dict(run.checkpoints), 0: None}  # an emergency may have left one after step 0
    before = run.metrics[0]["step"] - 1 if run.metrics else 0
    latest = {"falling": seen.best, "rising": (before + run.steps) // 2}.get(seen.course, run.steps)
    usable = [step for step in places if step <= latest]
    last = places[max(places)]
    ends = None
    doubted = seen.course in ("unseen", "flat", "slow", "apart")
    if doubted and before in places and last is not None and max(places) > before:
        ends = (places[before], last)
    return measure(
        config,
        phase,
        places[max(usable)],
        ends,
        changed=lambda word: presets.read_config(run.folder, [word])[0],
        say=say,
    )
