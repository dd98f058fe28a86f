"""Announces the dataset and the reward `reasoning-gym` to grpokit; a light module that imports only grpokit."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import DatasetSpec, RewardSpec, hookimpl

_INSTALL = "pip install 'grpokit[reasoning-gym]'"


@hookimpl
def grpokit_datasets() -> Iterator[DatasetSpec]:
    """Yield the questions."""
    yield DatasetSpec(
        api=1,
        name="reasoning-gym",
        factory="grpokit_reasoning_gym.questions:questions",
        summary="104 tasks of math, logic, words and games, listed by `python -m grpokit_reasoning_gym`",
        example="data: {use: reasoning-gym, tasks: [chain_sum, basic_arithmetic]}",
        install=_INSTALL,
    )


@hookimpl
def grpokit_rewards() -> Iterator[RewardSpec]:
    """Yield the score of their answers."""
    yield RewardSpec(
        api=1,
        name="reasoning-gym",
        factory="grpokit_reasoning_gym.reward:ReasoningGym",
        summary="the score that a task of reasoning-gym gives to an answer",
        install=_INSTALL,
        accepts={"text"},
        range=(0, 1),
        unscorable="grpokit_reasoning_gym.reward:unscorable",
        examples="grpokit_reasoning_gym.reward:examples",
    )
