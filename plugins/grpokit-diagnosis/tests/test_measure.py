"""What changed, by hand: units, pairing by prompt, intervals, correlations within groups, and what is named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from grpokit.evaluation.intervals import student_t
from grpokit.evaluation.paired import ScoreTable
from grpokit_diagnosis.taught.measure import Material, Shift, explanation, named, shifts

WORDS = {"size": ("smaller", "larger"), "hue": ("paler", "redder")}


def table(prompts: Sequence[int], **scores: Sequence[float | None]) -> ScoreTable:
    """Scores of samples, each of the prompt with this number."""
    names = [f"prompt {n}" for n in range(max(prompts) + 1)]
    return ScoreTable(prompts=names, prompt=list(prompts), texts=names, scores={k: list(v) for k, v in scores.items()})


def material(before: ScoreTable, after: ScoreTable, **parts: Any) -> Material:
    statistics: Mapping[str, tuple[str, str]] = {name: WORDS[name] for name in before.scores if name in WORDS}
    fields = {"groups": None, "paired_groups": None, "statistics": statistics, "labels": ("step 0", "step 9"), **parts}
    return Material(before=before, after=after, **fields)


def test_a_change_in_units_of_the_spread_before() -> None:
    """The spread of 1, 2, 3, 4, 5 is the root of 2.5; the differences are 1, 2, 3, 2, 2 with a deviation of 0.7071."""
    before = table(range(5), size=[1, 2, 3, 4, 5])
    after = table(range(5), size=[2, 4, 6, 6, 7])
    (shift,) = shifts(material(before, after), {})
    spread = math.sqrt(2.5)
    assert (shift.before, shift.after) == (3, 5)
    assert shift.change == pytest.approx(2 / spread)
    assert shift.width == pytest.approx(student_t(4) * math.sqrt(0.5) / math.sqrt(5) / spread)
    assert shift.size == shift.change


def test_prompts_are_paired_and_several_samples_of_one_count_once() -> None:
    before = table([0, 0, 1, 1, 2], size=[0, 2, 4, 6, None])
    after = table([1, 1, 0, 0, 2], size=[6, 8, 3, 3, 9])  # in another order, with a score that was missing before
    (shift,) = shifts(material(before, after), {})
    spread = math.sqrt(20 / 3)
    assert (shift.before, shift.after) == (3, 5)
    assert shift.change == pytest.approx(2 / spread)
    assert shift.width == pytest.approx(0)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ([2.0, 2.0, 2.0], [3.0, 4.0, 5.0], None),  # no spread to measure by
        ([None, None, None], [1.0, 2.0, 3.0], None),
        ([1.0, 2.0, 3.0], [None, None, None], None),
        ([0.1 + 0.2, 0.3, 0.3], [1.0, 2.0, 3.0], None),  # rounding is no spread
    ],
)
def test_no_number_where_there_is_none(before: list[Any], after: list[Any], change: float | None) -> None:
    (shift,) = shifts(material(table(range(3), size=before), table(range(3), size=after)), {})
    assert shift.change == change
    assert shift.size == 0


def test_what_only_a_group_has_is_compared_between_groups() -> None:
    held_out = table(range(3), size=[None, None, None])
    old = table([0, 0, 1, 1], size=[1, 3, 5, 7])
    new = table([0, 0, 1, 1], size=[2, 4, 6, 8])
    (shift,) = shifts(material(held_out, held_out, paired_groups=(old, new)), {})
    assert shift.change == pytest.approx(1 / math.sqrt(20 / 3))


def test_correlations_are_within_groups() -> None:
    """Between the groups the reward falls with the size; inside of each it rises with it."""
    prompts = [n // 8 for n in range(32)]
    size = [10 * (n // 8) + n % 8 for n in range(32)]
    reward = [-100 * (n // 8) + (n % 8) ** 2 for n in range(32)]
    noise = [(-1) ** n for n in range(32)]
    held_out = table(range(3), size=[1, 2, 3], hue=[1, 2, 3])
    groups = table(prompts, size=size, reward=reward, hue=noise)
    by_name = {shift.name: shift for shift in shifts(material(held_out, held_out, groups=groups), {})}
    r = 294 / math.sqrt(42 * 2226)  # of 0 to 7 and their squares, less their means: 294 is 784 - 28 * 140 / 8
    assert by_name["size"].correlation == pytest.approx(r)
    assert by_name["size"].explained == pytest.approx(r * r)
    assert by_name["hue"].correlation == pytest.approx(
        -28 / math.sqrt(8 * 2226)
    )  # of squares with the signs + - + - ...
    assert by_name["hue"].explained == 0  # 4.4 % of 32 samples may be chance
    best = explanation(list(by_name.values()))
    assert best is not None
    assert best.name == "size"


@pytest.mark.parametrize(("power", "weights"), [(2, {"size": 1.0}), (1, {})])
def test_a_part_of_the_reward_explains_nothing_new(power: int, weights: Mapping[str, float]) -> None:
    """Neither by its name nor by another one."""
    held_out = table(range(3), size=[1, 2, 3])
    groups = table([0] * 32, size=range(32), reward=[n**power for n in range(32)])
    (shift,) = shifts(material(held_out, held_out, groups=groups), weights)
    assert shift.correlation is not None
    assert shift.correlation > 0.9
    assert explanation([shift]) is None


def made(name: str, change: float, width: float) -> Shift:
    return Shift(
        name=name,
        words=("down", "up"),
        before=0,
        after=1,
        change=change,
        width=width,
        correlation=None,
        beyond_chance=False,
        trained=False,
    )


def test_what_is_named_is_large_beyond_chance_and_says_something_new() -> None:
    before = table(
        range(5),
        largest=[1, 2, 3, 4, 5],
        same=[-1, -2, -3, -4, -5.1],
        other=[1, -1, 1, -1, 1],
        small=[3, 1, 2, 1, 3],
        chance=[1, 5, 2, 4, 3],
    )
    every = [
        made("largest", -3, 0.1),
        made("same", 2, 0.1),
        made("other", 1, 0.1),
        made("small", 0.19, 0.01),
        made("chance", 1, 0.7),  # beyond its interval, and not beyond that of the largest of many
    ]
    assert [shift.name for shift in named(every, before)] == ["largest", "other"]
    assert [shift.name for shift in named(every, before, most=1)] == ["largest"]
