"""A function where its name is asked for."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield RewardSpec(api=1, name="a-function", factory=len)
