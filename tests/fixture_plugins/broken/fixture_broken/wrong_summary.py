"""A list where a line is asked for."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield RewardSpec(name="listed", factory="fixture_broken.wrong_summary:x", summary=["a", "b"])
