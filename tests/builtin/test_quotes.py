"""Which spans of a prompt are quoted: the targets of `ocr`, and the glyphs that GLM-Image paints."""

from __future__ import annotations

import time

import pytest

from grpokit.builtin.quotes import quotations


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("a red cup", []),
        ('an empty "" and a blank "  " span', []),
        ('the word "tea"', ["tea"]),
        ("the word “tea”", ["tea"]),
        ("a 'tea' cup", ["tea"]),
        ("a ‘tea’ cup", ["tea"]),
        ("«thé», „Tee“, »Tee«, ‹thé›, ”te” and »te»", ["thé", "Tee", "Tee", "thé", "te", "te"]),
        ("「緑茶」と『五円』", ["緑茶", "五円"]),
        ("写着'绿茶'和\"五元\"的「牌子」", ["绿茶", "五元", "牌子"]),
        ('"one" then “two” then "three"', ["one", "two", "three"]),
        # nested: the outermost; mixed: whatever closes
        ('a sign "say “hi” now"', ["say “hi” now"]),
        ('a sign “say "hi" now”', ['say "hi" now']),
        ('“"hi"”', ['"hi"']),
        ('“tea" and "coffee”', ["tea", "coffee"]),
        ('„Tee" und „Kaffee”', ["Tee", "Kaffee"]),
        # apostrophes and inch marks
        ("it's a dog's life", []),
        ("the boys' and the girls' room", []),
        ("'90s style with 'retro' look", ["retro"]),
        ("'it's hot' and ‘don’t’", ["it's hot", "don’t"]),
        ('"it\'s" and “don’t”', ["it's", "don’t"]),
        ('a 5" nail and a 6" nail', []),
        ('a 5" nail by "Smith 5"', ["Smith 5"]),
        # what is not closed
        ('"two\nlines"', ["two\nlines"]),
        ('never "closed', []),
        ('"closed" and "open', ["closed"]),
    ],
)
def test_quoted_spans(text: str, spans: list[str]) -> None:
    assert quotations(text) == spans


@pytest.mark.parametrize("piece", ['"', "“", "„", "'a ", "'a'b", '"“', '“"', '“ "a', "‘a’b", "”", "「"])
def test_long_prompts_cost_little(piece: str) -> None:
    start = time.process_time()
    quotations(piece * (100_000 // len(piece)))
    assert time.process_time() - start < 1
