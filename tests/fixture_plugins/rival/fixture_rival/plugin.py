"""A reward whose name another plugin has too."""

from grpokit import RewardSpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield RewardSpec(api=1, name="vowels", factory="fixture_rival.plugin:score")
    yield RewardSpec(api=1, name="vowels-and-more", factory="fixture_rival.plugin:score")


def score(samples):
    return [-1.0 for s in samples]
