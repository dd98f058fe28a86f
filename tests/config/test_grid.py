"""Words of a sweep: how they are split, what the folders are called, and what is refused."""

from __future__ import annotations

import pytest

from grpokit import UsageError
from grpokit.config.grid import points


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=1..3,7", ["1", "2", "3", "7"]),
        ("seed=-1..1", ["-1", "0", "1"]),
        ("a=1e-3,1e-2,0.001", ["0.001", "0.01"]),
        ("a=[1,2],[3]", ["[1, 2]", "[3]"]),
        ("a=[{use: b, pattern: ']'}],[]", ["[{use: b, pattern: ']'}]", "[]"]),
        ("a='x,y',don't", ["'x,y'", "don't"]),
        ("a=true, null,'no: 1'", ["true", "null", "'no: 1'"]),
    ],
)
def test_the_values_of_a_word(word: str, values: list[str]) -> None:
    key = word.partition("=")[0]
    assert [point.overrides for point in points([word])] == [[f"{key}={value}"] for value in values]


def test_the_last_key_changes_fastest_and_names_folders() -> None:
    runs = points(["rewards.0.weight=1,2", "rewards.1.weight=3,4", "trainer.objective=grpo"])
    assert runs[1].overrides == ["trainer.objective=grpo", "rewards.0.weight=1", "rewards.1.weight=4"]
    assert runs[1].name == "rewards.0.weight-1_rewards.1.weight-4"
    assert [point.name for point in points(["a=[5,6]"])] == ["run"]
    assert [point.overrides for point in points(["seed=1,1", "a=5..5", "b=true"])] == [["seed=1", "a=5", "b=true"]]
    odd = [point.name for point in points(["a=x/y,x y,../x," + "z" * 300])]
    assert len(set(odd)) == 4
    assert all(len(name) < 130 and "/" not in name for name in odd)


def test_values_that_are_no_list() -> None:
    for word in ("seed=1,,2", "a=1,[2"):
        with pytest.raises(UsageError, match="not YAML"):
            points([word])
