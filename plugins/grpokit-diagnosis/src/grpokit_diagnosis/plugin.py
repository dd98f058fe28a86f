"""Announces the commands `diagnose` and `try`, statistics of outputs, and panels of a run's page to grpokit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpokit import CommandSpec, Panel, RewardSpec, hookimpl

# Name, words for a lower and a higher score, bounds, what it is.
_PICTURES = (
    ("contrast", "less contrast", "more contrast", (0, 0.5), "how far the brightness varies in the picture"),
    ("saturation", "paler", "more colourful", (0, 1), "how far the picture's colours are from grey"),
    ("hue-entropy", "fewer hues", "more hues", (0, 1), "how many hues the picture has"),
    ("sharpness", "blurrier", "sharper", (0, 1), "the detail that a blur would remove (Crete et al., 2007)"),
    ("edge-strength", "fewer edges", "more edges", (0, 2), "the mean gradient of the picture's brightness"),
    ("symmetry", "less symmetric", "more symmetric", (-1, 1), "how like its mirror image the picture is"),
    ("text-area", "less like text", "more like text", (0, 1), "the share with thin strokes in two tones, as text has"),
)
_TEXTS = (
    ("text-length", "shorter", "longer", (0, None), "the text's length in characters"),
    ("word-count", "fewer words", "more words", (0, None), "the text's length in words"),
    ("repetition", "less repetitive", "more repetitive", (0, 1), "the share of 4 characters that come again"),
    ("distinct-words", "fewer distinct words", "more distinct words", (0, 1), "the share of words that are different"),
    ("digits", "fewer digits", "more digits", (0, 1), "the share of digits among the characters"),
    ("punctuation", "less punctuation", "more punctuation", (0, 1), "the share of punctuation and symbols"),
    ("capitals", "fewer capitals", "more capitals", (0, 1), "the share of capitals among the letters"),
    ("latin-letters", "fewer Latin letters", "more Latin letters", (0, 1), "the share of Latin letters among all"),
)
_EPISODES = (
    ("episode-length", "shorter episodes", "longer episodes", (0, None), "the steps of the episode"),
    ("mean-action", "lower actions", "higher actions", (None, None), "the mean of the episode's actions"),
    ("action-changes", "steadier actions", "less steady actions", (0, None), "how much actions change by step"),
)
_TWO_EPISODES = [
    (
        {"output": "long", "info": {"length": 90, "mean_action": 0.5, "action_changes": 0.75}},
        {"output": "short", "info": {"length": 9, "mean_action": 0.25, "action_changes": 0.5}},
    )
]

_READS_INFO = {"wrong-type": "it reads what the policy tells of a sample, whatever its output is"}


@hookimpl
def grpokit_commands() -> Iterator[CommandSpec]:
    """Yield the commands."""
    yield CommandSpec(
        api=1,
        name="diagnose",
        factory="grpokit_diagnosis.diagnose_command:diagnose",
        example="grpokit diagnose RUN --probe",
        summary="Say why a run's reward does not move, and what to change.",
        install="pip install 'grpokit[diagnosis]'",
    )
    yield CommandSpec(
        api=1,
        name="try",
        factory="grpokit_diagnosis.try_command:try_reward",
        example='grpokit try contains "The answer is 12." --target 12',
        summary="Score a few samples, and show where the scores come from.",
        install="pip install 'grpokit[diagnosis]'",
    )


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the statistics of pictures, texts and episodes."""
    for kind, module, rows in (
        ("image", "pictures", _PICTURES),
        ("text", "texts", _TEXTS),
        ("episode", "episodes", _EPISODES),
    ):
        for name, lower, higher, bounds, summary in rows:
            yield RewardSpec(
                api=1,
                name=name,
                factory=f"grpokit_diagnosis.statistics.{module}:{name.replace('-', '_')}",
                summary=summary,
                accepts={kind},
                range=bounds,
                examples=_TWO_EPISODES if kind == "episode" else (),
                expected_failures=_READS_INFO if kind == "episode" else {},
                install="pip install 'grpokit[diagnosis]'",
                statistic=(lower, higher),
            )


@hookimpl
def grpokit_panels(run: Any) -> Sequence[Panel]:
    """Return why the reward did not move, and what it taught."""
    from grpokit_diagnosis.panels import why  # only now, since they import numpy
    from grpokit_diagnosis.taught.panel import taught_panels

    return [*why(run), *taught_panels(run)]
