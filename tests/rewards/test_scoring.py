"""The reward matrix, what stops it, and the built-in rewards by hand."""

from __future__ import annotations

import asyncio
import functools
import math
import re
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from grpokit import (
    DataError,
    Pending,
    Portion,
    Prompt,
    RewardError,
    RewardTerm,
    Sample,
    UsageError,
    registry,
)
from grpokit.advantages import group
from grpokit.builtin.image_rewards import brightness, jpeg_size
from grpokit.builtin.text_rewards import (
    ExactMatch,
    Length,
    NumericAnswer,
    RepetitionPenalty,
    SoftOverlong,
    TextFormat,
    contains,
)
from grpokit.rewards.scoring import Scoring, join_scores, score_samples
from grpokit.rewards.terms import as_terms
from grpokit.runs import build_rewards

NAN = math.nan


def samples(*outputs: Any, target: Any = None) -> list[Sample]:
    return [Sample(prompt=Prompt(text=f"prompt {i}", target=target), output=o, group=0) for i, o in enumerate(outputs)]


def test_no_reward_is_asked_about_a_sample_without_output() -> None:
    """Of three rows a reward fails on the last: it costs row 4, by its place among all rows."""
    rows = [replace(s, group=g) for s, g in zip(samples(None, "ab", None, "abc", "x"), (0, 0, 1, 1, 2), strict=True)]

    def length(given: Sequence[Sample]) -> list[float]:
        if any(sample.output == "x" for sample in given):
            raise ValueError("no x")
        return [float(len(sample.output)) for sample in given]

    lenient = RewardTerm(name="lenient", reward=length, on_error="skip", skip_limit=0.5)
    scores = score_samples([lenient, RewardTerm(name="weight", reward=says([5.0, 6.0, 7.0]))], rows)
    assert scores.matrix.nan_to_num(-1).tolist() == [[-1, -1], [2, 5], [-1, -1], [3, 6], [-1, 7]]
    assert scores.lost.nonzero().tolist() == [[4, 0]]
    assert scores.groups.tolist() == [0, 0, 1, 1, 2]
    nothing = Scoring([lenient], samples(None, None)).result()
    assert nothing.matrix.isnan().all()
    assert nothing.asked == [False]


def says(values: Any) -> Callable[[Sequence[Sample]], Any]:
    """A reward that returns just this."""
    return lambda samples: values


def run(values: Any, count: int = 3) -> list[float]:
    return score_samples(as_terms({"mine": says(values)}), samples(*"abc"[:count])).matrix[:, 0].tolist()


class OwnError(DataError):
    """A plugin's own kind of error, which takes other arguments than ours."""

    def __init__(self, file: str, line: int) -> None:
        super().__init__(f"{file}, line {line}: no number")


def test_a_plugins_own_kind_of_error_keeps_its_words_and_its_kind() -> None:
    def refuses(given: Sequence[Sample]) -> list[float]:
        raise OwnError("targets.txt", 7)

    with pytest.raises(DataError, match=r"^Reward 'mine': targets\.txt, line 7: no number$") as caught:
        score_samples(as_terms({"mine": refuses}), samples("a"))
    assert type(caught.value) is DataError
    assert isinstance(caught.value.__cause__, OwnError)


# --- the matrix ----------------------------------------------------------------------------------------------------


def test_matrix() -> None:
    terms = [
        RewardTerm(name="length", reward=lambda s: [float(len(x.output)) for x in s], weight=0.5),
        RewardTerm(name="group", reward=lambda s: [float(x.group) for x in s], weight=-2.0),
    ]
    rows = [Sample(prompt=Prompt(text="p"), output="x" * n, group=g) for n, g in ((1, 7), (3, 7), (2, 9))]
    scores = score_samples(terms, rows)
    assert scores.matrix.tolist() == [[1, 7], [3, 7], [2, 9]]
    assert (scores.matrix.dtype, scores.matrix.is_contiguous()) == (torch.float64, True)
    assert (scores.weights.tolist(), scores.names, scores.failed) == ([0.5, -2.0], ["length", "group"], [False, False])
    assert scores.totals.tolist() == [0.5 - 14, 1.5 - 14, 1 - 18]
    assert len(scores.seconds) == 2
    assert all(s >= 0 for s in scores.seconds)


def test_one_call_gets_all_samples_in_order() -> None:
    calls: list[list[str]] = []

    def watch(given: Sequence[Sample]) -> list[float]:
        calls.append([s.output for s in given])
        return [0.0] * len(given)

    score_samples(as_terms([watch]), samples("b", "a", "c"))
    assert calls == [["b", "a", "c"]]


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5, -3],
        (1, 2.5, -3),
        np.array([1, 2.5, -3]),
        np.array([1, 2.5, -3], dtype=np.float16),
        torch.tensor([1, 2.5, -3]),
        torch.tensor([1, 2.5, -3], dtype=torch.bfloat16),
        torch.tensor([1, 2.5, -3], requires_grad=True),
        [np.float32(1), np.int64(2) + np.float64(0.5), np.array(-3)],
        [torch.tensor(1), torch.tensor([2.5]), torch.tensor(-3.0)],
        [Fraction(1), Fraction(5, 2), True - 4],
    ],
    ids=lambda v: type(v).__name__,
)
def test_outputs_of_many_kinds(values: Any) -> None:
    assert run(values) == [1, 2.5, -3]


def test_bool_outputs_are_0_and_1() -> None:
    assert run([True, False, np.bool_(True)]) == [1, 0, 1]


def test_fp64_is_kept() -> None:
    assert run([0.1, 1e-300, 16777217.0]) == [0.1, 1e-300, 16777217.0]


@pytest.mark.parametrize("nan", [NAN, np.nan, torch.tensor(NAN), np.float32("nan")])
def test_nan_is_unscored(nan: Any) -> None:
    terms = as_terms({"a": says([1.0, nan, nan]), "b": says([nan, 10.0, nan])})
    scores = score_samples(terms, samples(*"abc"))
    assert scores.matrix.isnan().tolist() == [[False, True], [True, False], [True, True]]
    assert scores.totals[:2].tolist() == [11, 11]  # the missing score counts as the reward's mean, not as 0
    assert scores.totals[2].isnan()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, math.inf, 0], ["Reward 'mine': it gave inf for row 1", "'prompt 1'", "finite number"]),
        ([1, 0, -math.inf], ["gave -inf for row 2", "'prompt 2'"]),
        (torch.tensor([math.inf, 0, 0]), ["gave inf for row 0"]),
        (
            [1, 2],
            ["Reward 'mine': it returned 2 scores for 3 samples", "expected one per sample"],
        ),
        ([1, 2, 3, 4], ["returned 4 scores for 3 samples"]),
        ([], ["returned 0 scores for 3 samples"]),
        (0.5, ["Reward 'mine': it returned a float; expected one number per sample"]),
        (None, ["returned a NoneType"]),
        ("abc", ["returned a str"]),
        (b"abc", ["returned a bytes"]),
        ({0: 1, 1: 2, 2: 3}, ["returned a dict"]),
        ({1, 2, 3}, ["returned a set"]),
        ((x for x in (1, 2, 3)), ["returned a generator"]),
        (torch.tensor(1.0), ["returned a float"]),
        (np.float64(1.0), ["returned a float"]),
        (torch.ones(3, device="meta"), ["returned a Tensor"]),
        (torch.ones(3).to_sparse(), ["returned a Tensor"]),
        (torch.ones(3, 1), ["(list) for row 0", "expected a number, or NaN"]),
        ([1, "2", 3], ["gave '2' (str) for row 1 (prompt 'prompt 1')", "expected a number, or NaN"]),
        ([1, None, 3], ["(NoneType) for row 1"]),
        ([1, 2j, 3], ["gave 2j (complex) for row 1"]),
        ([1, [2], 3], ["(list) for row 1"]),
        ([1, 2, torch.ones(2)], ["gave tensor([1., 1.]) (Tensor) for row 2"]),
        ([np.ones(2), 2, 3], ["(ndarray) for row 0"]),
    ],
)
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_unusable_output_always_stops(values: Any, words: list[str], on_error: Any) -> None:
    """`skip` is for exceptions; a wrong answer is a mistake in the reward, and is never passed over."""
    terms = [RewardTerm(name="mine", reward=says(values), on_error=on_error)]
    with pytest.raises(RewardError) as caught:
        score_samples(terms, samples(*"abc"))
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == 1


# --- exceptions ----------------------------------------------------------------------------------------------------


def broken(given: Sequence[Sample]) -> list[float]:
    raise ValueError("the server\n   said no")


def test_an_exception_stops() -> None:
    with pytest.raises(RewardError) as caught:
        score_samples(as_terms([broken]), samples("a", "b"))
    message = str(caught.value)
    place = r"\(test_scoring\.py, line \d+, in broken\) on rows 0-1 \(prompt 'prompt 0'\)\. "
    assert re.match(rf"Reward 'broken' raised ValueError: the server said no {place}", message)
    assert "Correct it, or set `on_error: skip` in its config to count its rows as unscored." in message
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_key_that_a_prompts_meta_lacks() -> None:
    def leveled(given: Sequence[Sample]) -> list[float]:
        return [s.prompt.meta["levl"] for s in given]

    metas = [{"levl": 1}, {"level": 2, "kind": "a"}]
    given = [Sample(prompt=Prompt(text=f"p{i}", meta=meta), output="", group=i) for i, meta in enumerate(metas)]
    with pytest.raises(RewardError, match=r"KeyError: 'levl', and the meta of 'p1' has keys \(level, kind\)"):
        score_samples(as_terms([leveled]), given)
    with pytest.raises(RewardError, match=r"raised KeyError: 'levl', and the meta of 'p' has no keys \("):
        score_samples(as_terms([leveled]), [Sample(prompt=Prompt(text="p"), output="", group=0)])


def test_an_exception_without_words() -> None:
    def silent(given: Sequence[Sample]) -> list[float]:
        raise AssertionError

    place = r"\(test_scoring\.py, line \d+, in silent\) on row 0 \(prompt 'p'\)\. Correct it"
    with pytest.raises(RewardError, match=f"raised AssertionError {place}"):
        score_samples(as_terms([silent]), [Sample(prompt=Prompt(text="p"), output="", group=0)])


def test_a_skipped_exception_leaves_rows_unscored() -> None:
    lost = RewardTerm(name="broken", reward=broken, on_error="skip", skip_limit=1.0)
    scores = score_samples([lost, RewardTerm(name="one", reward=says([1.0, 3.0]))], samples("a", "b"))
    assert scores.failed == [2, 0]
    assert len(scores.notes) == 1
    assert re.search(r"'broken' left 2 rows unscored: it raised ValueError", scores.notes[0])
    assert scores.matrix[:, 0].isnan().all()
    assert scores.matrix[:, 1].tolist() == [1, 3]
    assert scores.totals.tolist() == [1, 3]
    with_it = group(scores.matrix, scores.weights, torch.zeros(2, dtype=torch.int64))
    without = group(scores.matrix[:, 1:], scores.weights[1:], torch.zeros(2, dtype=torch.int64))
    assert with_it.tolist() == without.tolist()


def in_groups(*outputs: str, size: int = 2) -> list[Sample]:
    return [Sample(prompt=Prompt(text="p"), output=o, group=i // size) for i, o in enumerate(outputs)]


def fragile(given: Sequence[Sample]) -> list[float]:
    if any(s.output == "poison" for s in given):
        raise ValueError("cannot read this one")
    return [float(len(s.output)) for s in given]


def test_one_bad_sample_costs_its_group_alone() -> None:
    given = in_groups("a", "bb", "ccc", "poison", "dddd", "e")
    scores = score_samples([RewardTerm(name="fragile", reward=fragile, on_error="skip")], given)
    assert scores.matrix[:, 0].nan_to_num(nan=-1).tolist() == [1, 2, -1, -1, 4, 1]
    assert scores.failed == [2]


def test_skipping_has_a_limit() -> None:
    given = in_groups("a", "bb", "ccc", "poison")
    term = RewardTerm(name="fragile", reward=fragile, on_error="skip", skip_limit=0.4)
    with pytest.raises(RewardError, match=r"lost 2 of 4 rows; skip_limit allows a share of 0\.4\."):
        score_samples([term], given)
    assert score_samples([replace(term, skip_limit=0.5)], given).failed == [2]


def test_a_number_beyond_all_bounds_is_infinite() -> None:
    with pytest.raises(RewardError, match=r"more than 80 digits for row 0 \(prompt 'prompt 0'\)"):
        score_samples([RewardTerm(name="mine", reward=says([10**400]))], samples("a"))


def test_rows_are_numbered_as_in_the_step_also_group_by_group() -> None:
    def strange(given: Sequence[Sample]) -> list[float]:
        if len(given) > 2:
            raise ValueError("all at once is too much")
        return [math.inf if s.output == "bad" else 1.0 for s in given]

    with pytest.raises(RewardError, match="gave inf for row 5 "):
        score_samples(
            [RewardTerm(name="r", reward=strange, on_error="skip")], in_groups("a", "b", "c", "d", "e", "bad")
        )


def test_a_failed_call_lets_go_of_what_it_held() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def heavy(given: Sequence[Sample]) -> list[float]:
        assert all(ref() is None for ref in held)
        big = torch.zeros(10)
        held.append(weakref.ref(big))
        if len(given) > 2:
            raise RuntimeError("CUDA out of memory.")
        return [1.0] * len(given)

    assert score_samples([RewardTerm(name="r", reward=heavy, on_error="skip")], in_groups(*"abcd")).failed == [0]


def test_a_passing_failure_costs_nothing() -> None:
    calls: list[int] = []

    def unsteady(given: Sequence[Sample]) -> list[float]:
        calls.append(len(given))
        if len(calls) == 1:
            raise TimeoutError("try again")
        return [1.0] * len(given)

    scores = score_samples(
        [RewardTerm(name="unsteady", reward=unsteady, on_error="skip", skip_limit=0)], in_groups(*"abcd")
    )
    assert calls == [4, 2, 2]
    assert scores.matrix[:, 0].tolist() == [1, 1, 1, 1]
    assert scores.failed == [0]
    assert "scored all rows once asked again by group" in scores.notes[0]


def test_ctrl_c_is_no_failure_of_the_reward() -> None:
    def interrupted(given: Sequence[Sample]) -> list[float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_samples([RewardTerm(name="r", reward=interrupted, on_error="skip")], samples("a"))


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [WordlessError, GeneratorExit, asyncio.CancelledError, SystemExit, BaseException])
def test_whatever_a_reward_raises_is_its_error(error: type[BaseException]) -> None:
    def raises(given: Sequence[Sample]) -> list[float]:
        if any(s.output == "poison" for s in given):
            raise error
        return [1.0] * len(given)

    given = in_groups("a", "b", "c", "poison")
    with pytest.raises(RewardError, match=rf"^Reward 'r' raised {error.__name__}.* on rows 0-3 .* Correct it, or set"):
        score_samples([RewardTerm(name="r", reward=raises)], given)
    scores = score_samples([RewardTerm(name="r", reward=raises, on_error="skip")], given)
    assert scores.matrix[:, 0].nan_to_num(nan=-1).tolist() == [1, 1, -1, -1]


# --- rewards that score elsewhere ----------------------------------------------------------------------------------


class Elsewhere:
    """A reward of a user's own class, which cannot be called; `answers` makes the portions of some samples."""

    def __init__(self, answers: Callable[[Sequence[Sample]], list[Portion | BaseException]]) -> None:
        self.answers, self.closed = answers, False

    def submit(self, given: Sequence[Sample]) -> Pending:
        futures: list[Future[Portion]] = []
        for answer in self.answers(given):
            futures.append(Future())
            if isinstance(answer, Portion):
                futures[-1].set_result(answer)
            else:
                futures[-1].set_exception(answer)
        return Pending(futures)

    def close(self) -> None:
        self.closed = True


def lengths(given: Sequence[Sample]) -> list[Portion | BaseException]:
    """The last rows first."""
    return [Portion(rows=rows, values=[len(given[i].output) for i in rows]) for rows in ([2, 3], [0, 1])]


def test_anything_with_submit_and_close_scores() -> None:
    reward = Elsewhere(lengths)
    terms = as_terms([reward, says([0.0] * 4)])
    assert score_samples(terms, in_groups("a", "bb", "ccc", "dddd")).matrix.tolist() == [[1, 0], [2, 0], [3, 0], [4, 0]]
    build_rewards.close(terms)
    assert reward.closed


@pytest.mark.parametrize("error", [ConnectionError("no route"), asyncio.CancelledError(), SystemExit(7)])
def test_a_future_that_raises_fails_the_rows_without_an_answer(error: BaseException) -> None:
    reward = Elsewhere(lambda given: [lengths(given)[0], error])
    given = in_groups("a", "bb", "ccc", "dddd")
    with pytest.raises(RewardError, match=rf"^Reward 'r' raised {type(error).__name__}.* on rows 0-1 \(prompt 'p'\)\."):
        score_samples([RewardTerm(name="r", reward=reward)], given)
    scores = score_samples([RewardTerm(name="r", reward=reward, on_error="skip")], given)
    assert scores.matrix[:, 0].nan_to_num(nan=-1).tolist() == [-1, -1, 3, 4]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_skip_limit_is_a_share_of_all_rows_of_a_step(elsewhere: bool) -> None:
    """In front of this call 2 of 6 rows were lost; it loses 2 of 4 more, so 4 of 10 in all."""

    def answers(given: Sequence[Sample]) -> list[Portion | BaseException]:
        return [lengths(given)[0], Portion(rows=[0, 1], failure="broke")]

    reward = Elsewhere(answers) if elsewhere else fragile
    before = score_samples([RewardTerm(name="r", reward=fragile, on_error="skip")], in_groups("poison", *"abcde"))
    term = RewardTerm(name="r", reward=reward, on_error="skip", skip_limit=0.4)
    given = in_groups("poison", "bb", "ccc", "dddd")
    scores = join_scores([term], [Scoring([term], given).result()], before)
    assert (scores.failed, scores.lost[:, 0].tolist()) == ([2], [True, True, False, False])
    assert scores.select(torch.tensor([1, 3])).failed == [1]
    with pytest.raises(RewardError, match=r"lost 4 of 10 rows; skip_limit allows a share of 0\.39.* left 2 rows"):
        join_scores([replace(term, skip_limit=0.39)], [scores], before)


def test_a_submit_that_raises_fails_all_rows() -> None:
    def refuses(given: Sequence[Sample]) -> list[Portion | BaseException]:
        raise ConnectionError("no route")

    term = RewardTerm(name="r", reward=Elsewhere(refuses))
    with pytest.raises(RewardError, match=r"^Reward 'r' raised ConnectionError: no route \(.*\) on rows 0-1 \(prompt"):
        score_samples([term], in_groups("a", "b"))
    assert score_samples([replace(term, on_error="skip", skip_limit=1.0)], in_groups("a", "b")).failed == [2]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[0, 1]], "answered with nothing more where 2 rows of 4 had no answer yet; expected a grpokit.Portion"),
        ([[0, 1], [1, 2]], r"answered with rows \[1, 2\] where 2 rows of 4"),
        ([[0, 0]], r"answered with rows \[0, 0\] where 4 rows of 4"),
        ([[-1]], r"answered with rows \[-1\]"),
        ([[]], "answered with nothing more"),
    ],
)
def test_each_row_is_answered_once(rows: Any, words: str) -> None:
    reward = Elsewhere(lambda _: [Portion(rows=part, values=[1.0] * len(part or ())) for part in rows])
    with pytest.raises(RewardError, match=f"^Reward 'r': it {words}"):
        score_samples([RewardTerm(name="r", reward=reward, on_error="skip")], in_groups(*"abcd"))


# --- terms ---------------------------------------------------------------------------------------------------------


class Judge:
    def __call__(self, given: Sequence[Sample]) -> list[float]:
        return [0.0 for _ in given]


def test_a_reward_that_sorts_in_place_is_refused() -> None:
    """Its scores are those of other rows."""

    def tidy(given: list[Sample]) -> list[float]:
        given.sort(key=lambda s: str(s.output))
        return [float(s.output) for s in given]

    batch = samples("3", "1", "2")
    words = "^Reward 'tidy': it changed the order or the number of the samples in its list"
    with pytest.raises(RewardError, match=words):
        score_samples([RewardTerm(name="tidy", reward=tidy, on_error="skip")], batch)
    assert [s.output for s in batch] == ["3", "1", "2"]


@pytest.mark.parametrize("value", [1e308, -1e31])
def test_a_number_too_large_to_add_up_is_refused(value: float) -> None:
    with pytest.raises(RewardError, match=r"gave -?1e\+\d+ for row 0 \(prompt 'p'\); .* at most 1e\+30"):
        score_samples(as_terms([lambda _: [value]]), [Sample(prompt=Prompt(text="p"), output="", group=0)])


def test_names() -> None:
    terms = as_terms(
        [broken, Judge(), functools.partial(broken), broken, RewardTerm(name="x", reward=broken, weight=3)]
    )
    assert [t.name for t in terms] == ["broken", "Judge", "broken-2", "broken-3", "x"]
    assert [t.weight for t in terms] == [1, 1, 1, 1, 3]


def test_made_up_names_do_not_collide_with_given_ones() -> None:
    given = [RewardTerm(name=name, reward=broken) for name in ("a", "a-2", "a", "a", "a-2")]
    names = [t.name for t in as_terms(given)]
    assert len(set(names)) == 5
    assert names[:3] == ["a", "a-2", "a-3"]


def test_a_mapping_names_its_rewards() -> None:
    assert [(t.name, t.weight) for t in as_terms({"first": broken, "second": broken})] == [("first", 1), ("second", 1)]


def test_unique_names_keep_on_error_and_weight() -> None:
    (_, second) = as_terms(
        [RewardTerm(name="a", reward=broken), RewardTerm(name="a", reward=broken, weight=2, on_error="skip")]
    )
    assert (second.name, second.weight, second.on_error, second.reward) == ("a-2", 2, "skip", broken)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["ssim"], "Reward 'str' is 'ssim'; expected something to call with samples"),
        ({"a": 3}, "Reward 'a' is 3; expected something to call"),
        (
            [RewardTerm(name="a", reward=broken, weight=math.nan)],
            "Reward 'a' has the weight nan; expected a finite number",
        ),
        ([RewardTerm(name="a", reward=broken, weight=math.inf)], "has the weight inf"),
        ([RewardTerm(name="a", reward=broken, weight=-1e300)], r"has the weight -1e\+300; expected .* at most 1e\+30"),
    ],
)
def test_what_is_no_reward(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        as_terms(given)


# --- text rewards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "target", "options", "expected"),
    [
        ("cat", "cat", {}, 1),
        (" cat\n", "cat ", {}, 1),
        ("Cat", "cat", {}, 0),
        ("Cat", "cAT", {"ignore_case": True}, 1),
        ("STRASSE", "straße", {"ignore_case": True}, 1),
        ("cat dog", "cat", {}, 0),
        ("", "", {}, 1),
        ("42", 42, {}, 1),
        ("so: <a>cat</a>", "cat", {"pattern": "<a>(.*)</a>"}, 1),
        ("so:\n<a>\ncat\n</a>", "cat", {"pattern": "<a>(.*)</a>"}, 1),
        ("cat9", "9", {"pattern": r"\d"}, 1),
        ("no tag", "cat", {"pattern": "<a>(.*)</a>"}, 0),
        ("cat", None, {}, NAN),
        ("cafe\u0301", "caf\u00e9", {}, 1),
        ("caf\u00e9", "cafe\u0301", {}, 1),
        ("<a>CAFE\u0301</a>", "caf\u00e9", {"pattern": "(CAF\u00c9)", "ignore_case": True}, 1),
        ("**Cat.**", "cat", {"ignore_case": True}, 1),
        ("**cat**", "**cat**", {}, 1),
        ("cat", "**cat**", {}, 0),
        ("so: <a>`cat`</a>", "cat", {"pattern": "<a>(.*)</a>"}, 1),
        ("`cat` or `dog`", "cat", {}, 0),
        ("cat (a pet)", "cat", {}, 0),
    ],
)
def test_exact_match(output: str, target: Any, options: dict[str, Any], expected: float) -> None:
    assert ExactMatch(**options)(samples(output, target=target)) == pytest.approx([expected], nan_ok=True)


def test_an_optional_group_that_took_no_part_does_not_match() -> None:
    assert ExactMatch(pattern="cat(x)?")(samples("cat", target="cat")) == [0.0]


@pytest.mark.parametrize(
    ("output", "target", "options", "expected"),
    [
        ("the cat sat", "cat", {}, 1),
        ("the Cat sat", "cat", {}, 0),
        ("the Cat sat", "cAt", {"ignore_case": True}, 1),
        ("the c at", "cat", {}, 0),
        ("level 7", 7, {}, 1),
        ("anything", None, {}, NAN),
        ("anything", "", {}, NAN),
        ("any thing", " ", {}, NAN),
        ("a cafe\u0301.", "caf\u00e9", {}, 1),
    ],
)
def test_contains(output: str, target: Any, options: dict[str, Any], expected: float) -> None:
    assert contains(samples(output, target=target), **options) == pytest.approx([expected], nan_ok=True)


def test_format_is_of_the_whole_text() -> None:
    given = samples("<t>a\nb</t>5", "<t>a</t>5 ", "x<t>a</t>5", "<t></t>5", "")
    assert TextFormat(pattern=r"<t>.*</t>\d")(given) == [1, 0, 0, 1, 0]
    assert TextFormat(pattern="caf[e\u0301\u00e9]")(samples("cafe\u0301")) == [1]


@pytest.mark.parametrize(
    ("output", "target", "options", "expected"),
    [
        ("the answer is 42", "42", {}, 1),
        ("42", 42, {}, 1),
        ("42.0", 42, {}, 1),
        ("first 41, then 42", "42", {}, 1),
        ("first 42, then 41", "42", {}, 0),
        ("about 1,234.5 in all.", 1234.5, {}, 1),
        ("minus: -7", -7, {}, 1),
        ("none", "42", {}, 0),
        ("", "42", {}, 0),
        ("3.14", "3.14159", {"tolerance": 0.01}, 1),
        ("3.1", "3.14159", {"tolerance": 0.01}, 0),
        ("<a>5</a> and 6", 5, {"pattern": "<a>(.*?)</a>"}, 1),
        ("<a>five</a> 5", 5, {"pattern": "<a>(.*?)</a>"}, 0),
        ("line one 3\nline two", 3, {}, 1),
        ("5", None, {}, NAN),
        ("about .3", 0.6, {"tolerance": 0.3}, 1),
        ("<a>−$1{,}234.50</a> 5", "-1234.5", {"pattern": "<a>(.*?)</a>"}, 1),
        ("1/3", "\\frac13", {}, 1),
        (r"\boxed{42}, in 3 steps", 42, {}, 1),
        (r"\boxed{41}, no, \boxed{42}", 42, {}, 1),
        (r"\boxed{x}, 42", 42, {}, 0),
        (r"\boxed{41, 42", 42, {}, 1),  # not closed, so the last number counts
        (r"<a>$\boxed{42}$</a>, in 3 steps", 42, {"pattern": "<a>(.*)</a>"}, 1),
        ("<a>```\n42\n```</a>", 42, {"pattern": "<a>(.*)</a>"}, 1),
        ("<a>'42'</a>", 42, {"pattern": "<a>(.*)</a>"}, 1),
        ("Answer: 4.5", 4, {"pattern": "Answer: ([0-9]+)"}, 0),
        ("Answer: 4.5", 4.5, {"pattern": "Answer: ([0-9]+)"}, 1),
        ("Answer: 4/5", 4, {"pattern": "Answer: ([0-9]+)"}, 0),
        ("Answer: 1,234 m", 1234, {"pattern": "Answer: ([0-9]+)"}, 1),
        ("Answer: 4.", 4, {"pattern": "Answer: ([0-9]+)"}, 1),
        ("Answer: 4/5 are", 4, {"pattern": "Answer: ([0-9]+)/5"}, 1),
        ("<a>42 or 43</a>", 42, {"pattern": "<a>(.*)</a>"}, 0),
    ],
)
def test_numeric_answer(output: str, target: Any, options: dict[str, Any], expected: float) -> None:
    assert NumericAnswer(**options)(samples(output, target=target)) == pytest.approx([expected], nan_ok=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 0, 0]),
        ({"maximum": 2}, [0, 0, -3]),
        ({"minimum": 2}, [-2, 0, 0]),
        ({"minimum": 1, "maximum": 1, "scale": 0.5}, [-0.5, -0.5, -2]),
    ],
)
def test_length(options: dict[str, Any], expected: list[float]) -> None:
    assert Length(**options)(samples("", "ab", "abcde")) == expected


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (80, 0), (85, -0.25), (90, -0.5), (100, -1), (101, -1)])
def test_soft_overlong_by_the_equation(length: int, expected: float) -> None:
    assert SoftOverlong(maximum=100, cache=20)(samples("x" * length)) == [expected]
    counted = [Sample(prompt=Prompt(text="p"), output="a text", group=0, info={"tokens": length})]
    assert SoftOverlong(maximum=100, cache=20, unit="tokens")(counted) == [expected]


def test_soft_overlong_without_a_cache_is_a_hard_limit() -> None:
    assert SoftOverlong(maximum=2, cache=0)(samples("", "ab", "abc")) == [0, 0, -1]


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({}, "one two three four", 0),
        ({}, "one two", 0),
        ({}, "a b c a b c a", -2 / 5),  # abc bca cab abc bca: two of five are repeated
        ({"ngram_size": 2}, "5 5 5 5 5", -0.75),  # one of four is new
        ({"ngram_size": 1, "max_penalty": -0.5}, "a a b b", -0.25),
        ({"ngram_size": 2, "unit": "characters"}, "abab", -1 / 3),
        ({}, "", 0),
    ],
)
def test_repetition_penalty(options: dict[str, Any], text: str, expected: float) -> None:
    assert RepetitionPenalty(**options)(samples(text)) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("reward", "options", "words"),
    [
        ("soft-overlong", {"maximum": 10, "cache": 11}, "cache must lie between 0 and the maximum 10, got 11"),
        ("soft-overlong", {"maximum": 10, "cache": 5, "unit": "words"}, "unit must be 'characters' or 'tokens'"),
        ("soft-overlong", {"maximum": 10}, "cache"),
        ("repetition-penalty", {"ngram_size": 0}, "ngram_size must be at least 1, got 0"),
        ("repetition-penalty", {"max_penalty": 1.0}, r"max_penalty must be at most 0, got 1\.0"),
        ("exact-match", {"pattern": "("}, r"exact-match: the pattern '\(' is not a regular expression: .*unterminated"),
        ("format", {"pattern": "*"}, "not a regular expression: nothing to repeat"),
        ("numeric-answer", {"pattern": "a{99999999999}"}, "not a regular expression: the repetition number is too"),
        ("numeric-answer", {"pattern": r"\d+"}, "the pattern '.*' has no group, so it does not say where"),
        ("numeric-answer", {"tolerance": -1}, "tolerance must be at least 0, got -1"),
        ("numeric-answer", {"tolerance": "abc"}, "tolerance must be a finite number, got 'abc'"),
        ("length", {"minimum": 3, "maximum": 2}, "no text has at least 3 and at most 2 characters"),
        ("length", {"maximum": True}, "maximum must be a whole number, or None, got true"),
        ("contains", {"ignore_case": 1}, "ignore_case must be true or false, got 1"),
    ],
)
def test_wrong_parameters_are_found_when_a_reward_is_built(reward: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        registry.create("reward", reward, options)


@pytest.mark.parametrize(
    ("reward", "given", "words"),
    [
        (NumericAnswer(), samples("5", target="five"), "numeric-answer: the target 'five' is not a number"),
        (ExactMatch(), samples(5, target="5"), "exact-match scores texts, but the sample's output is an int"),
        (contains, samples("5", target=["5"]), "contains compares with a text, but the target is a list"),
        (SoftOverlong(maximum=9, cache=3, unit="tokens"), samples("a"), "does not count tokens: .* Set unit"),
        (RepetitionPenalty(), samples(5), "repetition-penalty scores texts, but the sample's output is an int"),
        (Length(), samples(None), "length scores texts, but the sample's output is a NoneType"),
    ],
)
def test_text_rewards_refuse(reward: Any, given: list[Sample], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        reward(given)


@pytest.mark.parametrize(
    "name", ["exact-match", "contains", "format", "numeric-answer", "length", "soft-overlong", "repetition-penalty"]
)
def test_text_rewards_are_found_by_name_and_keep_their_range(name: str) -> None:
    _, spec = registry.find("reward", name)
    required = {"format": {"pattern": "a.*"}, "soft-overlong": {"maximum": 1, "cache": 1}}
    reward = registry.create("reward", name, required.get(name, {}))
    low, high = spec.range  # type: ignore[attr-defined]
    values = reward(samples("a", "b7", "7", "", target="7"))
    assert len(values) == 4
    assert all((low is None or v >= low) and v <= high for v in values)


def test_the_size_as_a_jpeg_is_that_of_the_file(tmp_path: Path) -> None:
    photo = Image.effect_mandelbrot((96, 64), (-3, -2.5, 2, 2.5), 50).convert("RGB")
    photo.save(tmp_path / "photo.jpg", quality=95)
    size = (tmp_path / "photo.jpg").stat().st_size
    assert size > 1000
    noted = photo.copy()
    noted.info["comment"] = b"x" * 5000  # of another file, not of the picture
    flat = Image.new("RGB", photo.size, "gray")
    found = jpeg_size(samples(photo, noted, photo.convert("RGBA"), flat, "a text", None))
    assert found[:3] == [-size / 1e5] * 3
    assert found[0] < found[3] < 0  # nothing is better than nothing to see
    assert all(map(math.isnan, found[4:]))
    deep = Image.fromarray(np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16)
    as_rgb = Image.fromarray((np.asarray(deep) // 257).astype(np.uint8)).convert("RGB")
    assert jpeg_size(samples(deep)) == jpeg_size(samples(as_rgb))
    with pytest.raises(RewardError, match=r"output of row 1 \(reward 'jpeg-size'\) has the mode 'F'"):
        jpeg_size(samples(photo, Image.new("F", (8, 8))))


def test_brightness_is_the_mean_luma() -> None:
    halves = Image.new("RGB", (4, 4))
    halves.paste((255, 255, 255), (0, 0, 4, 2))
    green = Image.new("RGB", (4, 4), (0, 255, 0))
    found = brightness(samples(Image.new("L", (4, 4), 255), halves, green, Image.new("RGB", (4, 4)), "a text"))
    assert found[:2] == [1.0, 0.5]
    assert found[2] == pytest.approx(0.587, abs=2e-3)  # of green, by ITU-R BT.601
    assert found[3] == 0
    assert math.isnan(found[4])
