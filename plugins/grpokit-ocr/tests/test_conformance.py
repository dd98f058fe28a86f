"""ocr against grpokit's conformance checks."""

from grpokit import registry
from grpokit.testing import Check, example_samples, parametrize_with_checks, reward_checks
from grpokit_ocr.reward import OCRReward

PARAMS = {"threads": 1, "cache_size": 0}  # so that every score is a fresh one


@parametrize_with_checks(
    reward_checks(
        OCRReward(**PARAMS),
        example_samples({"image"}),
        spec=registry.find("reward", "ocr")[1],
        params=PARAMS,
        module="grpokit_ocr.plugin",
    )
)
def test_ocr(check: Check):
    check()
