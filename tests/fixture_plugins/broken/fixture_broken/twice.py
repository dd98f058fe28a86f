"""The same name twice."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield RewardSpec(name="twin", factory="fixture_broken.twice:x")
    yield RewardSpec(name="twin", factory="fixture_broken.twice:y")
