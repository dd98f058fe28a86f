"""Votes become numbers, which pairs are asked, and how often people agree with themselves."""

import math
from collections import Counter

import pytest

from grpokit_vote.answers import agreement, is_answer, pairs_of, values_of
from grpokit_vote.ballots import Ballot, Vote

SAMPLES = ["a", "b", "c"]
RING = [["a", "b"], ["b", "c"], ["a", "c"]]


def ballot(how, *, samples=SAMPLES, pairs=()):
    return Ballot(
        key="k", step=0, place=0, prompt="", sources=(), question="", how=how, samples=samples, pairs=pairs, until=0.0
    )  # fmt: skip


def vote(answer, *, pair=(), voter="me", again=False, how="best", samples=SAMPLES, key="k"):
    return Vote(
        id="", voter=voter, time=0.0, ballot=key, question="", prompt="", how=how,
        samples=samples, answer=answer, pair=pair, again=again,
    )  # fmt: skip


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
    assert is_answer(ballot(how), answer)
    assert values_of(ballot(how), [vote(answer)]) == dict(zip(SAMPLES, values, strict=True))


@pytest.mark.parametrize(
    ("how", "answer", "pair"),
    [
        ("best", "d", ()),
        ("best", ["a"], ()),
        ("best", 1, ()),
        ("best-worst", ["a", "a"], ()),
        ("best-worst", ["a"], ()),
        ("best-worst", ["a", "d"], ()),
        ("best-worst", "ab", ()),
        ("best-worst", [["a"], ["b"]], ()),
        ("stars", {"a": 1, "b": 3}, ()),
        ("stars", {"a": 1, "b": 3, "c": 6}, ()),
        ("stars", {"a": 1, "b": 3, "c": 0}, ()),
        ("stars", {"a": 1, "b": 3, "c": True}, ()),
        ("stars", {"a": 1, "b": 3, "c": 2.5}, ()),
        ("stars", 3, ()),
        ("pairs", "c", ("a", "b")),
        ("pairs", "a", ()),
        ("pairs", "a", ("a", "d")),
    ],
)
def test_what_is_no_answer_is_left_out(how, answer, pair):
    asked = ballot(how, pairs=RING)
    assert not is_answer(asked, answer, pair)
    assert values_of(asked, [vote(answer, pair=pair)]) is None


def test_the_first_answer_counts_and_a_repeat_does_not():
    votes = [vote("c", again=True), vote("a"), vote("b", voter="you")]
    assert values_of(ballot("best"), votes) == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert values_of(ballot("best"), votes[:1]) is None
    assert values_of(ballot("best"), []) is None


def test_pairs_wait_for_the_last_one():
    votes = [vote("a", pair=("a", "b")), vote("b", pair=("b", "c"))]
    assert values_of(ballot("pairs", pairs=RING), votes) is None
    assert values_of(ballot("pairs", pairs=RING), [*votes, vote("a", pair=("a", "c"))]) is not None


def test_the_strengths_of_one_pair_solve_its_equation():
    """By symmetry they are s and -s with s = 1 - chance(2 s); a tie leaves both at 0."""
    asked = ballot("pairs", samples=["a", "b"], pairs=[["a", "b"]])
    values = values_of(asked, [vote("b", pair=("a", "b"))])
    assert values["b"] == pytest.approx(1 / (1 + math.exp(2 * values["b"])))
    assert values["a"] == pytest.approx(-values["b"])
    assert values["b"] == pytest.approx(0.3374, abs=1e-4)
    assert values_of(asked, [vote(None, pair=("a", "b"))]) == {"a": 0.0, "b": 0.0}


def test_strengths_order_a_ring_and_a_circle_ties():
    order = values_of(ballot("pairs", pairs=RING), [vote(pair[0], pair=tuple(pair)) for pair in RING])
    assert order["a"] > order["b"] > order["c"]
    assert order["b"] == pytest.approx(0.0, abs=1e-12)
    circle = [vote("a", pair=("a", "b")), vote("b", pair=("b", "c")), vote("c", pair=("a", "c"))]
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
        vote("a", again=True),
        vote("c", voter="you", again=True),
        vote("a", again=True, key="never asked before"),
        vote("a", pair=("a", "b"), how="pairs"),
        vote(None, pair=("a", "b"), how="pairs", again=True),
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
    assert agreement([vote(first, how=how), vote(second, how=how, again=True)]).same == same
