"""The policy against grpokit's conformance checks, with discrete and with continuous actions."""

from __future__ import annotations

from grpokit_check import Check, parametrize_with_checks, policy_checks
from grpokit_gym.policy import GymPolicy
from grpokit_gym.starts import starts

OPTIONS = {"options": {"max_episode_steps": 25}, "normalise": 4}


@parametrize_with_checks(
    check
    for options in ({"env": "CartPole-v1"}, {"env": "Pendulum-v1"}, {"env": "CartPole-v1", "branch": 5})
    for check in policy_checks(
        lambda options=options: GymPolicy(**OPTIONS, **options),
        starts(limit=3),
        makes="episode",
        module="grpokit_gym.plugin",
    )
)
def test_policy(check: Check) -> None:
    check()
