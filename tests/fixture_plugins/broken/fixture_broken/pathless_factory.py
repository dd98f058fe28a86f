"""A factory without a module."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield RewardSpec(api=1, name="pathless", factory="score")
