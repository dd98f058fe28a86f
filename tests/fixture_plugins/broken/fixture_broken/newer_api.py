"""Written for an interface that this grpokit does not have."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield RewardSpec(name="from-the-future", factory="fixture_broken.newer_api:x", api=2)
