"""ssim and mse against grpokit's conformance checks."""

from grpokit import registry
from grpokit.testing import Check, example_samples, parametrize_with_checks, reward_checks
from grpokit_ssim.reward import mse, ssim


def checks(name, reward):
    return reward_checks(
        reward, example_samples({"image"}), spec=registry.find("reward", name)[1], module="grpokit_ssim.plugin"
    )


@parametrize_with_checks(checks("ssim", ssim))
def test_ssim(check: Check):
    check()


@parametrize_with_checks(checks("mse", mse))
def test_mse(check: Check):
    check()
