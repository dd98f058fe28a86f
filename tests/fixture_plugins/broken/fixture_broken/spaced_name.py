"""A name that no config can write."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield RewardSpec(api=1, name="two words", factory="fixture_broken.spaced_name:x")
