"""Yields a policy where rewards are asked for."""

from grpokit import PolicySpec, hookimpl


@hookimpl
def grpokit_rewards():
    yield PolicySpec(name="a-policy", factory="fixture_broken.wrong_type:x")
