"""Marked answers: where they stand, what counts as equal, and texts that try to be costly."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from grpokit import Prompt, Sample, UsageError
from grpokit_lm.tasks.final_answer import final_answer

GSM8K = "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\nShe makes 9 * 2 = $<<9*2=18>>18.\n#### 18"


def score(text: Any, target: Any = "18") -> float:
    return final_answer([Sample(prompt=Prompt(text="?", target=target), output=text, group=0)])[0]


@pytest.mark.parametrize(
    ("text", "target", "right"),
    [
        ("9 * 2 = 18\n#### 18", GSM8K, 1),
        ("9 * 2 = 18\n#### 19", GSM8K, 0),
        ("it is 18", GSM8K, 0),  # not marked
        ("9 * 2 =\n####\n18", GSM8K, 0),  # the rest of the mark's own line is empty
        ("#### 17\nwait\n#### 18", GSM8K, 1),  # the last counts
        ("#### 18\nwait\n#### 17", GSM8K, 0),
        ("\\boxed{17}, no, #### 18", GSM8K, 1),
        ("#### 17, no: $\\boxed{18}$.", GSM8K, 1),
        ("####18", "18", 1),
        ("#### $18.00.", 18, 1),
        ("#### 18%", "18", 1),
        ("#### 18\\%", "18", 1),
        ("#### 18 eggs", "18", 0),  # an answer that was asked for as a number
        ("\\boxed{18\\text{ eggs}}", "18", 1),
        ("#### -18", "18", 0),
        ("#### -18", -18, 1),
        ("#### 1,234", "1234", 1),
        ("#### 1234", "#### 1,234", 1),
        ("\\boxed{1{,}234}", "1234", 1),
        ("#### 1,2", "12", 0),  # no thousands
        ("\\boxed{\\frac{1}{2}}", "0.5", 1),
        ("\\boxed{-\\dfrac{3}{4}}", "-0.75", 1),
        ("#### 1/2", "\\boxed{\\frac{2}{4}}", 1),
        ("#### 1/0", "1/0", 1),  # no number, so the same text
        ("#### 1/0", "0", 0),
        ("#### .5", "1/2", 1),
        ("#### .", "0", 0),
        ("#### ", "0", 0),
        ("#### 1e3", "1000", 1),
        ("#### \n18", "18", 0),  # nothing stands behind the mark, and the next line is none of its
        ("#### 18\n####\n", "18", 0),  # the last mark counts
        ("#### 5\r\n6", "5", 1),
        ("#### ", "", math.nan),
        ("**#### 18**", "18", 1),
        ('#### "18"', "18", 1),
        (r"#### $\boxed{18}$", "18", 1),
        (r"\boxed{\(18\)}", "18", 1),
        ("\\boxed{```\nyes\n```}", "yes", 1),
        (r"\boxed{18}, as 16 + 2 is", "18", 1),
        ("#### 3-5", "-5", 0),
        ("#### 2 1/2", "10.5", 0),
        ("\\boxed{5\\text{ or }6}", "56", 0),
        ("#### Cafe\u0301", "Caf\u00e9", 1),
        ("\\boxed{(a, b)}", "(a,b)", 1),
        ("\\boxed{\\text{yes}}", "yes", 1),
        ("\\boxed{18", "18", 0),  # not closed
        ("", "18", 0),
    ],
)
def test_scores_by_hand(text: str, target: Any, right: int) -> None:
    assert score(text, target) == pytest.approx(right, nan_ok=True)


def test_without_a_target_there_is_no_score() -> None:
    assert math.isnan(score("#### 18", None))


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [(18, "18", "final-answer scores texts, .* is an int"), ("#### 18", [18], "the target is a list")],
)
def test_what_cannot_be_compared(text: Any, target: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        score(text, target)


@pytest.mark.parametrize("piece", ["####", "\\boxed{", "\\text{", "9", "9,999", "{", "\\frac{", "1/", ".", " "])
def test_long_texts_cost_little(piece: str) -> None:
    start = time.process_time()
    assert score("#### " + piece * (200_000 // len(piece))) == 0
    assert time.process_time() - start < 1
