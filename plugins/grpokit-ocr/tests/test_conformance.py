"""ocr against grpokit's conformance checks, on the examples of its spec; the ladders draw single lines."""

import pytest

from grpokit_check import Check, parametrize_with_checks, reward_checks
from grpokit_ocr.plugin import grpokit_rewards
from grpokit_ocr.reward import OCRReward

SPECS = {spec.name: spec for spec in grpokit_rewards()}

pytestmark = pytest.mark.slow

LINE = {"threads": 1, "cache_size": 0}  # so that every score is a fresh one
PAGE = {**LINE, "layout": "page"}


def checks(params, *, ladder):
    spec = SPECS["ocr"]
    return reward_checks(OCRReward(**params), spec=spec, params=params, module="grpokit_ocr.plugin", ladder=ladder)


@parametrize_with_checks(checks(LINE, ladder=True))
def test_ocr(check: Check):
    check()


OF_LAYOUTS = ("examples", "range", "batch-size", "degenerate-images")  # the rest of the reward is the same


@parametrize_with_checks(check for check in checks(PAGE, ladder=False) if check.name in OF_LAYOUTS)
def test_ocr_on_pages(check: Check):
    check()
