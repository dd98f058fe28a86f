"""The score of texts against quoted texts: every number here was worked out by hand, or by trying all cuts."""

import doctest
import itertools
import math
import random
import time

import pytest
from rapidfuzz.distance import Levenshtein

from grpokit_ocr import text_scoring
from grpokit_ocr.text_scoring import MAX_FREE_ORDER, MAX_WORDS, normalise, score_text, similarity, word_accuracy


def test_doctests():
    assert doctest.testmod(text_scoring).failed == 0


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("OPEN", "open"),
        ("Ｏｐｅｎ　２４", "open 24"),  # full-width letters and space
        ("ﬁre", "fire"),  # ligature
        ("STRASSE", "straße"),
        ("cafe\u0301", "café"),  # combining accent
        (" a \t b\n c ", "a b c"),
        ("don’t", "don't"),
        ("don`t", "don't"),
        ("9–5", "9-5"),
        ("9−5", "9-5"),
        ("a — b", "a - b"),
        ("so\u00adft\u200b\u200e", "soft"),
        ("\u2764\ufe0f", "\u2764"),
        ("İSTANBUL", "istanbul"),
        ("DIŞ", "dış"),
        ("שָׁלוֹם", "שלום"),
        ("مَرْحَبًا", "مرحبا"),
        ("say “hi”", 'say "hi"'),
        ("绿茶 5 元", "绿茶5元"),
    ],
)
def test_what_counts_as_the_same_text(text, same):
    assert normalise(text) == normalise(same)


NO_EXTRA = [
    ("perfect", 'the word "river"', ["river"], 1.0),
    ("case", 'the word "River"', ["RIVER"], 1.0),
    ("full width", 'the word "open"', ["ＯＰＥＮ"], 1.0),
    ("one wrong letter of five", 'the word "river"', ["rivet"], 4 / 5),
    ("two wrong letters", 'the word "river"', ["ribet"], 3 / 5),
    ("one letter missing", 'the word "river"', ["rive"], 4 / 5),
    ("one letter more: 1 of 6", 'the word "river"', ["rivers"], 5 / 6),
    ("nothing alike", 'the word "river"', ["foggy"], 0.0),
    ("blank picture", 'the word "river"', [], 0.0),
    ("an empty line", 'the word "river"', ["  "], 0.0),
    ("space not read: 1 of 11", 'the words "hello world"', ["helloworld"], 10 / 11),
    ("a text over two lines", 'the words "hello world"', ["hello", "world"], 1.0),
    ("apostrophe inside", '"don\'t" on a door', ["don't"], 1.0),
    ("typographic apostrophe", "“don’t” on a door", ["don't"], 1.0),
    ("accent as a sign of its own", 'the word "café"', ["cafe\u0301"], 1.0),
    ("accent not read: 1 of 4", 'the word "café"', ["cafe"], 3 / 4),
    ("sharp s in capitals", 'the word "Straße"', ["STRASSE"], 1.0),
    ("Chinese, one wrong of four", 'the sign "绿茶五元"', ["绿茶三元"], 3 / 4),
    ("Japanese, half width", 'the sign "カフェ"', ["ｶﾌｪ"], 1.0),
    ("a dash that is drawn as it stands", '"Open 9–5"', ["Open 9-5"], 1.0),
    ("a dash that is missing: 1 of 8", '"Open 9–5"', ["Open 95"], 7 / 8),
    ("Chinese on two lines", 'the sign "绿茶五元"', ["绿茶", "五元"], 1.0),
    ("Japanese on two lines", 'the sign "カフェ営業中です"', ["カフェ", "営業中です"], 1.0),
    ("Thai on two lines", 'the sign "สวัสดีชาวโลก"', ["สวัสดี", "ชาวโลก"], 1.0),
    ("Chinese with a space that no one sees", 'the sign "SALE 特价"', ["SALE特价"], 1.0),
    ("Korean has spaces: 1 of 5", 'the sign "영업 시간"', ["영업시간"], 4 / 5),
    ("two Chinese texts, in the other order", '"绿茶" above "五元"', ["五元", "绿茶"], 1.0),
    ("vowel marks that nobody draws", 'the sign "שָׁלוֹם"', ["שלום"], 1.0),
    ("letters below each other", 'the word "river"', list("river"), 1.0),
    ("some of them together", 'the word "river"', ["RI", "V", "ER"], 1.0),
    ("and one misread of 5", 'the word "river"', list("rxver"), 4 / 5),
    ("and one lost of 5", 'the word "river"', list("rver"), 4 / 5),
    ("two words below each other", 'the words "red tea"', list("redtea"), 1.0),
    ("a word over two lines", 'the word "butterfly"', ["butter", "fly"], 1.0),
    ("and with a hyphen", 'the word "butterfly"', ["butter-", "fly"], 1.0),
    ("a hyphen that belongs to it", 'the word "check-in"', ["check-", "in"], 1.0),
    ("the last word over two lines", 'the words "open daily"', ["open dai", "ly"], 1.0),
    ("two words that are split: no space is lost", 'the words "hello world"', ["hel", "lo", "wor", "ld"], 1.0),
    ("two columns of a text each", '"open daily" and "sale now"', ["open\tsale", "daily\tnow"], 1.0),
    ("of unequal length", '"open daily" and "sale"', ["open\tsale", "daily"], 1.0),
    ("rows with a gap", '"tea 2.50" and "milk 3"', ["tea\t2.50", "milk\t3"], 1.0),
    ("letters in two columns", '"open" and "sale"', ["o\ts", "p\ta", "e\tl", "n\te"], 1.0),
    ("apostrophe not read: 1 of 5", '"don\'t" on a door', ["dont"], 4 / 5),
]


@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("prompt", "lines", "score"), [pytest.param(*c[1:], id=c[0]) for c in NO_EXTRA])
def test_text_without_extra_scores_the_same_under_every_penalty(prompt, lines, score, penalty):
    assert score_text(prompt, lines, extra_text_penalty=penalty) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    ("prompt", "lines", "penalty", "score"),
    [
        # "tea shop" against "tea": 5 letters too many of 8; the best run alone is perfect.
        ('"tea"', ["tea", "shop"], 1.0, 3 / 8),
        ('"tea"', ["tea shop"], 1.0, 3 / 8),
        ('"tea"', ["tea", "shop"], 0.5, 0.5 * 3 / 8 + 0.5),
        ('"tea"', ["tea", "shop"], 0.0, 1.0),
        # Below each other it is as much too long, and so is a letter beside a column.
        ('"tea"', ["t", "e", "a", "shop"], 1.0, 3 / 8),
        ('"tea"', ["tea", "x"], 1.0, 3 / 5),
        ('"tea"', ["x", "t", "e", "a"], 1.0, 3 / 5),
        ('"tea"', ["t\tx", "e", "a"], 1.0, 3 / 5),
        ('"tea"', list("teashop"), 1.0, 3 / 11),
        # A wrong letter and extra text: distance 6 of 8 ("tex shop"); best run "tex" has 2 of 3 right.
        ('"tea"', ["tex", "shop"], 1.0, 2 / 8),
        ('"tea"', ["tex", "shop"], 0.0, 2 / 3),
        # Swapped words: the fourth letter, the space and the tenth letter stay; one word alone has 5 of 11.
        ('"hello world"', ["world hello"], 1.0, 3 / 11),
        ('"hello world"', ["world hello"], 0.0, 5 / 11),
        # A word that merely contains the target is another word, whatever the penalty: 6 letters too many of 9.
        ('"art"', ["partially"], 0.0, 3 / 9),
    ],
)
def test_extra_text(prompt, lines, penalty, score):
    assert score_text(prompt, lines, extra_text_penalty=penalty) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(
    ("lines", "penalty", "score"),
    [
        (["open", "sale"], 1.0, 1.0),
        (["sale", "open"], 1.0, 1.0),  # the order in the picture is free
        (["sale open"], 1.0, 1.0),  # and so is the line
        (["open", "sole"], 1.0, (1 + 3 / 4) / 2),
        (["open"], 1.0, 1 / 2),
        (["open", "open"], 1.0, 1 / 2),  # no letter of the second "open" is in place for "sale"
        (["open", "sale", "now"], 1.0, (1 + 4 / 8) / 2),  # open | sale now
        (["open", "sale", "now"], 0.0, 1.0),
        (["open", "now", "sale"], 0.0, 1.0),
        ([], 1.0, 0.0),
    ],
)
def test_two_quoted_texts(lines, penalty, score):
    assert score_text('"open" above "sale"', lines, extra_text_penalty=penalty) == pytest.approx(score, abs=1e-12)


def test_one_reading_cannot_serve_two_quoted_texts():
    assert score_text('"open" and "open"', ["open"], extra_text_penalty=0.0) == 0.5
    assert score_text('"open" and "open"', ["open", "open"]) == 1.0


@pytest.mark.parametrize("prompt", ["a red cup", "", '""', '" "'])
def test_a_prompt_that_quotes_nothing_cannot_be_scored(prompt):
    assert math.isnan(score_text(prompt, ["anything"]))


def some_text(rng: random.Random, words: int) -> str:
    return " ".join("".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(words))


def by_trying_all(targets: list[str], words: list[str], penalty: float) -> float:
    def part(target: str, a: int, b: int) -> float:
        if a == b:
            return 0.0
        runs = [similarity(target, " ".join(words[c:d])) for c in range(a, b) for d in range(c + 1, b + 1)]
        return penalty * similarity(target, " ".join(words[a:b])) + (1 - penalty) * max(runs)

    best = 0.0
    for order in itertools.permutations(targets):
        for inner in itertools.combinations_with_replacement(range(len(words) + 1), len(targets) - 1):
            cuts = [0, *inner, len(words)]
            parts = zip(order, itertools.pairwise(cuts), strict=True)
            best = max(best, sum(part(target, a, b) for target, (a, b) in parts) / len(targets))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_the_best_cut_is_found(seed):
    rng = random.Random(seed)
    targets = [some_text(rng, rng.randint(1, 2)) for _ in range(rng.randint(1, 3))]
    words = some_text(rng, rng.randint(1, 5)).split()
    penalty = rng.choice([0.0, 0.3, 1.0])
    prompt = " and ".join(f'"{target}"' for target in targets)
    score = score_text(prompt, [" ".join(words)], extra_text_penalty=penalty)
    assert score == pytest.approx(by_trying_all(targets, words, penalty), abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_one_target_under_the_full_penalty_is_the_normalised_edit_distance(seed):
    rng = random.Random(seed)
    target, read = some_text(rng, 2), some_text(rng, rng.randint(1, 4))
    score = score_text(f'"{target}"', [read])
    assert score == 1 - Levenshtein.normalized_distance(target, read)
    # The general rule, which a penalty below 1 takes, and the short cut agree.
    assert score_text(f'"{target}"', [read], extra_text_penalty=1 - 1e-12) == pytest.approx(score)


@pytest.mark.parametrize("seed", range(20))
def test_scores_stay_in_range_and_never_rise_with_the_penalty(seed):
    rng = random.Random(seed)
    prompt = " ".join(f'"{some_text(rng, 2)}"' for _ in range(rng.randint(1, 4)))
    lines = [some_text(rng, 2) for _ in range(rng.randint(1, 4))]
    scores = [score_text(prompt, lines, extra_text_penalty=p) for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert all(0 <= score <= 1 for score in scores)
    assert scores == sorted(scores, reverse=True)


def test_each_wrong_letter_costs():
    word = "lighthouse"
    scores = [score_text(f'"{word}"', ["?" * wrong + word[wrong:]]) for wrong in range(len(word) + 1)]
    assert scores == pytest.approx([1 - wrong / 10 for wrong in range(11)])


def test_a_page_of_text_is_scored_in_pieces():
    page = [f"word{i}" for i in range(5 * MAX_WORDS)]
    start = time.perf_counter()
    score = score_text('"word7" and "word9"', page)
    assert time.perf_counter() - start < 2
    assert 0 < score < 0.5


def test_many_quoted_texts_are_taken_in_the_order_of_the_prompt():
    words = ["alpha", "bravo", "delta", "hotel", "india", "kilos", "limas"]
    assert len(words) == MAX_FREE_ORDER + 1
    prompt = " ".join(f'"{word}"' for word in words)
    assert score_text(prompt, words) == 1.0
    assert score_text(prompt, words[::-1]) < 1.0


def test_words_below_each_other_are_words():
    assert word_accuracy('a sign "tea room"', ["t", "e", "a", "room"]) == 1.0
    assert word_accuracy('a sign "tea room"', ["tea", "ro-", "om"]) == 1.0
    assert word_accuracy('a sign "tea room"', ["t", "a", "e", "room"]) == 0.5
