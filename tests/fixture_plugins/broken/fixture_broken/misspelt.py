"""A hook's name is misspelt."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_reward():
    yield RewardSpec(api=1, name="misspelt-reward", factory="fixture_broken.misspelt:x")
