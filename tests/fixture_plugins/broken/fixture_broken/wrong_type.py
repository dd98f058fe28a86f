"""Yields a policy where rewards are asked for."""

from grpokit import PolicySpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield PolicySpec(api=1, name="a-policy", factory="fixture_broken.wrong_type:x")
