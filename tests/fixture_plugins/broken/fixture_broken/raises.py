"""A hook raises after its first spec."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield RewardSpec(api=1, name="raises-first", factory="fixture_broken.raises:x")
    raise ValueError("the licence file\n  is missing")
