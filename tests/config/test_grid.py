"""Words of a sweep: how they are split, what the folders are called, and what is refused."""

from __future__ import annotations

import pytest

from grpokit import UsageError
from grpokit.config.grid import parse


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=1..3,7", ["1", "2", "3", "7"]),
        ("seed=-1..1", ["-1", "0", "1"]),
        ("a=1e-3,1e-2", ["0.001", "0.01"]),
        ("a=[1,2],[3]", ["[1,2]", "[3]"]),
        ("a=[{use: b, pattern: ']'}],[]", ["[{use: b, pattern: ']'}]", "[]"]),
        ("a='x,y',don't", ["'x,y'", "don't"]),
        ("a=true, null", ["true", "null"]),
    ],
)
def test_the_values_of_a_word(word: str, values: list[str]) -> None:
    assert list(parse([word]).values.values()) == [values]


def test_the_last_key_changes_fastest_and_names_folders() -> None:
    points = parse(["rewards.0.weight=1,2", "rewards.1.weight=3,4", "trainer.objective=grpo"]).points()
    assert [point.values for point in points][1] == {"rewards.0.weight": "1", "rewards.1.weight": "4"}
    assert points[1].name == "rewards.0.weight-1_rewards.1.weight-4"
    assert [point.name for point in parse(["a=5"]).points()] == ["run"]
    odd = [point.name for point in parse(["a=x/y,x y,../x," + "z" * 300]).points()]
    assert len(set(odd)) == 4
    assert all(len(name) < 130 and "/" not in name for name in odd)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed"], "Expected key=value, key=a,b,c or key=1..5, got 'seed'"),
        (["seed="], "seed has no value"),
        (["seed=1,,2"], "seed has an empty value between its commas"),
        (["seed=5..1"], "range 5..1 of seed is empty: write the lower number first"),
        (["seed=1.."], r"seed has half a range, '1\.\.'\. Expected two whole numbers, as in seed=1\.\.5"),
        (["seed=..5,7"], r"seed has half a range, '\.\.5'"),
        (["seed=1..999999"], "has 999,999 values; a sweep has at most 10,000 runs"),
        (["seed=1,1"], "The value 1 of seed is there twice"),
        (["a=1e-3,0.001"], "The value 0.001 of a is there twice"),
        (["seed=1", "seed=2..3"], "The key seed is there twice. Give all its values at once"),
        (["run.dir=a,b"], "Use --dir"),
        (["a=[1,2"], r"The value '\[1,2' of a is not YAML"),
        (["seed=1..11", "a=1..10"], "This sweep has 11 x 10 = 110 runs. Add --yes if you mean that"),
        (["seed=1..5000", "a=1,2,3"], "= 15,000 runs. The most is 10,000"),
    ],
)
def test_what_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(words)


def test_many_runs_that_are_meant() -> None:
    assert len(parse(["seed=1..101"], many=True).points()) == 101
