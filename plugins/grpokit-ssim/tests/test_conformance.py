"""ssim, mse and structure against grpokit's conformance checks, on the examples of their specs."""

import pytest

from grpokit_check import Check, parametrize_with_checks, reward_checks
from grpokit_ssim.plugin import grpokit_rewards
from grpokit_ssim.reward import mse, ssim, structure

SPECS = {spec.name: spec for spec in grpokit_rewards()}


def checks(name, reward):
    return reward_checks(reward, spec=SPECS[name], module="grpokit_ssim.plugin")


@parametrize_with_checks(checks("ssim", ssim))
def test_ssim(check: Check):
    check()


@pytest.mark.slow
@parametrize_with_checks(checks("mse", mse))
def test_mse(check: Check):
    check()


@pytest.mark.slow
@parametrize_with_checks(checks("structure", structure))
def test_structure(check: Check):
    check()
