"""Returns one record instead of yielding it."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    return RewardSpec(api=1, name="returned", factory="fixture_broken.wrong_return:x")
