"""Votes become numbers, which pairs are asked, and how often people agree with themselves."""

import math
from collections import Counter

import pytest

from grpokit_vote.answers import agreement, is_answer, pairs_of, values_of
from grpokit_vote.ballots import Ballot, Vote

SAMPLES = ("a", "b", "c")
RING = (("a", "b"), ("b", "c"), ("a", "c"))


def ballot(how, *, samples=SAMPLES, pairs=(), key="k"):
    return Ballot(
        key=key, step=0, place=0, prompt="", question="", how=how, samples=samples, asks=pairs or (samples,), until=0
    )  # fmt: skip


def vote(answer, asked=SAMPLES, *, voter="me", how="best", key="k"):
    return Vote(id="", voter=voter, time=0, ballot=ballot(how, pairs=(asked,), key=key), asked=asked, answer=answer)


@pytest.mark.parametrize(
    ("how", "answer", "values"),
    [
        ("best", "b", [0.0, 1.0, 0.0]),
        ("best-worst", ["c", "a"], [0.0, 0.5, 1.0]),
        ("stars", {"a": 1, "b": 3, "c": 5}, [0.0, 0.5, 1.0]),
        ("best", None, [0.0, 0.0, 0.0]),
        ("best-worst", None, [0.0, 0.0, 0.0]),
        ("stars", None, [0.0, 0.0, 0.0]),
    ],
)
def test_an_answer_becomes_numbers(how, answer, values):
    assert is_answer(ballot(how), SAMPLES, answer)
    assert values_of(ballot(how), [vote(answer)]) == dict(zip(SAMPLES, values, strict=True))


@pytest.mark.parametrize(
    ("how", "answer", "asked"),
    [
        ("best", "d", SAMPLES),
        ("best", ["a"], SAMPLES),
        ("best", 1, SAMPLES),
        ("best", "a", ("a", "b")),
        ("best-worst", ["a", "a"], SAMPLES),
        ("best-worst", ["a"], SAMPLES),
        ("best-worst", ["a", "d"], SAMPLES),
        ("best-worst", "ab", SAMPLES),
        ("best-worst", [["a"], ["b"]], SAMPLES),
        ("stars", {"a": 1, "b": 3}, SAMPLES),
        ("stars", {"a": 1, "b": 3, "c": 6}, SAMPLES),
        ("stars", {"a": 1, "b": 3, "c": 0}, SAMPLES),
        ("stars", {"a": 1, "b": 3, "c": True}, SAMPLES),
        ("stars", {"a": 1, "b": 3, "c": 2.5}, SAMPLES),
        ("stars", 3, SAMPLES),
        ("pairs", "c", ("a", "b")),
        ("pairs", "a", SAMPLES),
        ("pairs", "a", ("a", "d")),
    ],
)
def test_what_is_no_answer_is_left_out(how, answer, asked):
    asks = ballot(how, pairs=RING if how == "pairs" else ())
    assert not is_answer(asks, asked, answer)
    assert values_of(asks, [vote(answer, asked)]) is None


def test_the_first_answer_counts():
    votes = [vote("a"), vote("b", voter="you"), vote("c")]
    assert values_of(ballot("best"), votes) == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert values_of(ballot("best"), []) is None


def test_pairs_wait_for_the_last_one():
    votes = [vote("a", ("a", "b")), vote("b", ("b", "c"))]
    assert values_of(ballot("pairs", pairs=RING), votes) is None
    assert values_of(ballot("pairs", pairs=RING), [*votes, vote("a", ("a", "c"))]) is not None


def test_the_strengths_of_one_pair_solve_its_equation():
    """By symmetry they are s and -s with s = 1 - chance(2 s); a tie leaves both at 0."""
    asked = ballot("pairs", samples=("a", "b"), pairs=(("a", "b"),))
    values = values_of(asked, [vote("b", ("a", "b"))])
    assert values["b"] == pytest.approx(1 / (1 + math.exp(2 * values["b"])))
    assert values["a"] == pytest.approx(-values["b"])
    assert values["b"] == pytest.approx(0.3374, abs=1e-4)
    assert values_of(asked, [vote(None, ("a", "b"))]) == {"a": 0.0, "b": 0.0}


def test_strengths_order_a_ring_and_a_circle_ties():
    order = values_of(ballot("pairs", pairs=RING), [vote(pair[0], pair) for pair in RING])
    assert order["a"] > order["b"] > order["c"]
    assert order["b"] == pytest.approx(0.0, abs=1e-12)
    circle = [vote("a", ("a", "b")), vote("b", ("b", "c")), vote("c", ("a", "c"))]
    values = values_of(ballot("pairs", pairs=RING), circle)
    assert list(values.values()) == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("samples", [2, 3, 4, 8])
def test_few_pairs_still_connect_all_samples(samples):
    names = [f"s{number}" for number in range(samples)]
    everything = samples * (samples - 1) // 2
    for count in {samples - 1, min(samples, everything), everything}:
        pairs = pairs_of(names, count, key="k")
        assert len({tuple(pair) for pair in pairs}) == len(pairs) == count
        reached = {names[0]}
        for _ in names:
            reached |= {sample for pair in pairs if reached & {*pair} for sample in pair}
        assert reached == {*names}


def test_in_a_ring_each_sample_is_asked_twice():
    names = [f"s{number}" for number in range(6)]
    counts = Counter(sample for pair in pairs_of(names, 6, key="k") for sample in pair)
    assert set(counts.values()) == {2}


def test_which_pairs_are_asked_is_decided_by_the_key():
    names = [f"s{number}" for number in range(8)]
    assert pairs_of(names, 8, key="one") == pairs_of(names, 8, key="one")
    assert pairs_of(names, 8, key="one") != pairs_of(names, 8, key="two")


def test_agreement_compares_a_person_with_themselves():
    votes = [
        vote("a"),
        vote("b", voter="you"),
        vote("a"),
        vote("c", voter="you"),
        vote("a", key="asked once"),
        vote("a", ("a", "b"), how="pairs"),
        vote(None, ("a", "b"), how="pairs"),
    ]
    told = agreement(votes)
    assert (told.same, told.repeats) == (1, 3)
    assert told.chance == pytest.approx((1 / 3 + 1 / 3 + 1 / 2) / 3)
    assert agreement([]).chance == 0.0


@pytest.mark.parametrize(
    ("how", "first", "second", "same"),
    [
        ("best-worst", ["a", "b"], ["a", "c"], 1),
        ("best-worst", ["a", "b"], ["b", "a"], 0),
        ("stars", {"a": 5, "b": 1, "c": 5}, {"a": 4, "b": 3, "c": 4}, 1),
        ("stars", {"a": 5, "b": 1, "c": 5}, {"a": 5, "b": 1, "c": 4}, 0),
        ("best", None, None, 1),
    ],
)
def test_agreement_is_about_the_best(how, first, second, same):
    assert agreement([vote(first, how=how), vote(second, how=how)]).same == same
