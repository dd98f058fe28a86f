"""What is taken off an answer, and what the last box of a text holds."""

from __future__ import annotations

import time

import pytest

from grpokit.builtin.answers import boxed_answer, unwrap


@pytest.mark.parametrize(
    "text",
    [
        "Paris",
        " Paris.\n",
        "```\nParis\n```",
        "```text\nParis\n```",
        "`Paris`",
        "**Paris**",
        "***Paris***",
        "__Paris.__",
        "_Paris_",
        '"Paris"',
        "'Paris'",
        "“Paris.”",
        "‘Paris’",
        "«Paris»",
        "「Paris」",
        "Paris。",
        "$Paris$",
        "$$Paris$$",
        r"\(Paris\)",
        r"\[ Paris \]",
        r"\boxed{Paris}",
        r"\boxed {\text{Paris}}",
        r"$\boxed{\mathrm{Paris}}$.",
        "<answer>Paris</answer>",
        '```\n**"Paris."**\n```',
    ],
)
def test_an_answer_comes_out_of_its_wrappings(text: str) -> None:
    assert text.strip() in unwrap(text)
    assert list(unwrap(text))[-1] == "Paris"


@pytest.mark.parametrize(
    "text",
    [
        "`Paris` or `Rome`",
        '"Paris" or "Rome"',
        "Paris...",
        "$5 or $6",
        "**Paris",
        "Paris, I hope.",
        "it is `Paris`",
        "",
    ],
)
def test_of_words_beside_it_nothing_is_taken_off(text: str) -> None:
    assert "Paris" not in unwrap(text)


def test_the_last_box() -> None:
    assert boxed_answer(r"\boxed{1}, no, \boxed{ \frac{2}{3} } and {4}") == r"\frac{2}{3}"
    assert boxed_answer(r"\boxed{1} and \boxed{2") is None
    assert boxed_answer("{1}") is None


@pytest.mark.parametrize("piece", ["*", '"', "$", "`", ".", "{", r"\boxed{", r"\(", "```\n", "a."])
def test_long_texts_cost_little(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    list(unwrap(text)), boxed_answer(text)
    assert time.process_time() - start < 1
