"""Announces the commands `diagnose` and `try`, statistics of outputs, and panels of a run's page to grpokit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from grpokit import CommandSpec, Panel, RewardSpec, hookimpl

_PICTURES = (
    (
        "contrast",
        "contrast",
        "less contrast",
        "more contrast",
        (0, 0.5),
        "how far the brightness varies in the picture",
    ),
    ("saturation", "saturation", "paler", "more colourful", (0, 1), "how far the picture's colours are from grey"),
    ("hue-entropy", "hue_entropy", "fewer hues", "more hues", (0, 1), "how many hues the picture has"),
    ("sharpness", "sharpness", "blurrier", "sharper", (0, 1), "what a blur would take away (Crete et al., 2007)"),
    ("edges", "edges", "fewer edges", "more edges", (0, 2), "the mean gradient of the picture's brightness"),
    ("symmetry", "symmetry", "less symmetric", "more symmetric", (-1, 1), "how like its mirror image the picture is"),
    (
        "text-area",
        "text_area",
        "less like text",
        "more like text",
        (0, 1),
        "the share with two tones and thin strokes, as text has; it reads nothing",
    ),
)
_TEXTS = (
    ("characters", "characters", "shorter", "longer", (0, None), "the text's length in characters"),
    ("words", "words", "fewer words", "more words", (0, None), "the text's length in words"),
    (
        "repetition",
        "repetition",
        "less repetitive",
        "more repetitive",
        (0, 1),
        "the share of pieces of 4 characters that come again",
    ),
    (
        "distinct-words",
        "distinct_words",
        "fewer distinct words",
        "more distinct words",
        (0, 1),
        "the share of the words that are different",
    ),
    ("digits", "digits", "fewer digits", "more digits", (0, 1), "the share of the characters that are digits"),
    (
        "punctuation",
        "punctuation",
        "less punctuation",
        "more punctuation",
        (0, 1),
        "the share of the characters that are punctuation or symbols",
    ),
    ("capitals", "capitals", "fewer capitals", "more capitals", (0, 1), "the share of the letters that are capitals"),
    (
        "latin-letters",
        "latin_letters",
        "fewer Latin letters",
        "more Latin letters",
        (0, 1),
        "the share of the letters that are Latin",
    ),
)
_EPISODES = (
    ("episode-length", "episode_length", "shorter episodes", "longer episodes", (0, None), "the steps of the episode"),
    (
        "mean-action",
        "mean_action",
        "lower actions",
        "higher actions",
        (None, None),
        "the mean of the episode's actions",
    ),
    (
        "action-changes",
        "action_changes",
        "steadier actions",
        "less steady actions",
        (0, None),
        "how much the action changes from step to step",
    ),
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
        summary="Say why a run's reward does not move, and what to change.",
        install="pip install 'grpokit[diagnosis]'",
    )
    yield CommandSpec(
        api=1,
        name="try",
        factory="grpokit_diagnosis.try_command:try_reward",
        summary="Score a few pictures or texts with a reward, and show where the scores come from.",
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
        for name, function, lower, higher, bounds, summary in rows:
            yield RewardSpec(
                api=1,
                name=name,
                factory=f"grpokit_diagnosis.statistics.{module}:{function}",
                summary=f"a statistic: {summary}",
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
    from grpokit_diagnosis.panels import why
    from grpokit_diagnosis.taught.panel import taught_panels  # only now, since it imports torch

    return [*why(run), *taught_panels(run)]
