"""Announces the reward `vlm-judge` to grpokit. It needs no package beyond grpokit's own."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield `vlm-judge`."""
    yield RewardSpec(
        name="vlm-judge",
        factory="grpokit_judge.reward:VLMJudge",
        summary="the rating that a vision-language model behind an OpenAI-compatible URL gives the picture",
        accepts={"image"},
        range=(0.0, 1.0),
    )
