"""Whether the evaluation can see what training has gained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpokit_diagnosis.evidence import Cause, Evidence, Look

if TYPE_CHECKING:
    from grpokit.evaluation.paired import Change
    from grpokit_diagnosis.probe.gains import Gain

_SEEN = 0.5  # of the gain with the settings of training


def evaluation_looks(evidence: Evidence) -> Iterator[Look]:
    """Its settings and its size."""
    measured = evidence.measured
    if evidence.symptom.course == "apart" and not (measured and measured.gained):
        yield _apart()
    if measured and measured.training and measured.evaluation:
        yield _settings(evidence, measured.training, measured.evaluation, gained=measured.gained)
        change = evidence.symptom.held_out
        if change and change.width is not None:
            yield _power(evidence, change, measured.training, measured.evaluation, gained=measured.gained)


def _apart() -> Look:
    return Look(
        topic="training and held-out prompts",
        figures="the reward of the training prompts rose, and that of the held-out ones fell",
        cause=Cause(
            id="overfitted",
            title="What it learned does not carry over to held-out prompts.",
            advice="Train on more prompts, or on prompts that are more like the held-out ones. run.best keeps the "
            "checkpoint with the best evaluation.",
        ),
        of_evaluation=True,
    )


def _settings(evidence: Evidence, training: Gain, evaluation: Gain, *, gained: bool) -> Look:
    figures = (
        f"on the same held-out prompts the reward changed by {training.change:+.3g} ± {training.width:.2g} with the "
        f"settings of training, by {evaluation.change:+.3g} ± {evaluation.width:.2g} with those of evaluations"
    )
    cause = None
    if gained and evaluation.change < _SEEN * training.change:
        overrides = _same_settings(evidence)
        listed = f": {', '.join(overrides)}" if overrides else ""
        cause = Cause(
            id="evaluation-settings",
            title="Evaluations run with other settings than training, which do not show the gain.",
            advice=f"Evaluate as you train{listed}.",
            overrides=overrides,
        )
    return Look(topic="settings of training and evaluation", figures=figures, cause=cause, of_evaluation=True)


def _same_settings(evidence: Evidence) -> list[str]:
    """The overrides that give evaluations the settings of training."""
    parameters = evidence.policy
    overrides = []
    for name, value in parameters.items():
        own = name.removeprefix("eval_")
        differs = value is not None and value != parameters.get(own)
        if own != name and own in parameters and differs:
            overrides.append(f"policy.{name}={json.dumps(parameters[own])}")
    return overrides


def _power(evidence: Evidence, change: Change, training: Gain, evaluation: Gain, *, gained: bool) -> Look:
    """Whether the run's own evaluations, which saw this change, can see the gain.

    Held-out prompts may be too few even for the probe. Then the gain is that of the training prompts.
    """
    seen = evidence.symptom
    rose = seen.course == "flat" and seen.change > seen.width
    gain = seen.change if rose and not gained else training.change
    width, prompts, samples = change.width or 0.0, change.shared, evidence.config.eval.samples
    figures = f"the evaluation sees changes of more than {width:.2g}; training gained {gain:.2g}"
    cause = None
    if (gained or rose) and width > gain / 2:
        larger = [samples * factor for factor in (2, 4, 8, 16, 32)]
        enough = [count for count in larger if evaluation.expected_width(prompts, count) < gain / 2]
        more = enough[0] if enough else larger[-1]
        needed = prompts * (width / (gain / 2)) ** 2
        cause = Cause(
            id="evaluation-too-small",
            title="The evaluation is too small to see the gain.",
            advice=f"Set eval.samples from {samples} to {more}, {'or' if enough else 'and'} hold out about "
            f"{needed:.0f} prompts instead of {prompts}.",
            overrides=[f"eval.samples={more}"],
        )
    return Look(topic="size of the evaluation", figures=figures, cause=cause, of_evaluation=True)
