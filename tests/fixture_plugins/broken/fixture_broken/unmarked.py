"""A hook without its decorator."""

from grpokit import RewardSpec


def grpokit_rewards():
    yield RewardSpec(api=1, name="unmarked-reward", factory="fixture_broken.unmarked:x")
