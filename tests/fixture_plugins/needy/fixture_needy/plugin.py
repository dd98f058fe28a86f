"""A reward whose module needs a package that is not installed."""

from grpokit import RewardSpec, hookimpl

INSTALL = "pip install 'grpokit-fixture-needy[engine]'"


@hookimpl
def grpokit_rewards():
    yield RewardSpec(api=1, name="needs-at-import", factory="fixture_needy.reward:score", install=INSTALL)
    yield RewardSpec(api=1, name="needs-when-built", factory="fixture_needy.late:Score", install=INSTALL)
    yield RewardSpec(api=1, name="needs-without-hint", factory="fixture_needy.reward:score")
    yield RewardSpec(api=1, name="broken-inside", factory="fixture_needy.broken:score", install=INSTALL)
