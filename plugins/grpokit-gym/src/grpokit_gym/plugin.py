"""Announces the policy `gym` and its presets to grpokit; a light module that imports only grpokit."""

from __future__ import annotations

from collections.abc import Iterator

from grpokit import PolicySpec, PresetSpec, hookimpl

_INSTALL = "pip install 'grpokit[gym]'"


@hookimpl
def grpokit_policies() -> Iterator[PolicySpec]:
    """Yield `gym`."""
    yield PolicySpec(
        api=1,
        name="gym",
        factory="grpokit_gym.policy:GymPolicy",
        example="policy: {use: gym, env: CartPole-v1}",
        summary="a small network acts in an environment of gymnasium; a group starts in one state",
        install=_INSTALL,
        makes="episode",
        row_draws="actions",
        group_draws="the environment's start and its chance",
    )


@hookimpl
def grpokit_presets() -> Iterator[PresetSpec]:
    """Yield a preset with discrete actions and one with continuous ones."""
    for name, summary, takes in (
        ("gym-cartpole", "CartPole-v1: keep a pole upright for 500 steps", "half a minute"),
        ("gym-pendulum", "Pendulum-v1: swing a pendulum up, with Gaussian torques", "about a minute"),
    ):
        yield PresetSpec(
            api=1,
            name=name,
            factory=f"grpokit_gym:presets/{name}.yaml",
            summary=summary,
            takes=f"{takes} on one CPU core",
            install=_INSTALL,
        )
