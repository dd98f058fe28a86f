"""The checks that every reward passes.

A reward is called with all samples, with each alone, in another order, twice, with no samples, and with an output of an
unknown type; the modules beside this one and the ladders add checks. Only `numbers` looks at the form of the scores, so
that one mistake fails one check. Each call gets a list of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from grpokit.errors import GrpokitError, UsageError
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.submission import Submits
from grpokit.rewards.terms import Reward
from grpokit.testing.check import Check, attempt, common_checks, expect, expect_untouched, random_states
from grpokit.testing.reward.calls import FirstCall, as_callable
from grpokit.testing.reward.dependencies import dependency_checks
from grpokit.testing.reward.examples import accepted, check_examples, example_samples, samples_for
from grpokit.testing.reward.unusual_outputs import check_pictures, check_texts
from grpokit.testing.robustness.ladder import Ladder, ladder_checks
from grpokit.types import Sample

_Row = tuple[str, str, Callable[[], None]]
"""A check's name, its summary and its test."""


def reward_checks(
    reward: Reward | Submits,
    samples: Sequence[Sample] | None = None,
    *,
    spec: RewardSpec | None = None,
    params: Mapping[str, Any] | None = None,
    module: str | None = None,
    per_sample: bool | None = None,
    ladder: bool | Ladder = True,
) -> Iterator[Check]:
    """Yield the checks of a reward.

    Args:
        reward: the reward, with its parameters bound; one that is not callable has `submit` and `close`.
        samples: at least two that it can score, of at least two groups and in ascending order of these; by default the
            spec's examples, or built-in texts or pictures.
        spec: what its plugin announces; it decides which of the checks apply.
        params: the parameters that it was built with.
        module: the plugin's module behind the entry point, which must import nothing heavy.
        per_sample: whether a sample's score is its own; if not, whole groups are compared. By default as in the spec.
        ladder: add the checks of the ladders (`grpokit.testing.ladder`); a `Ladder` of this reward shares its report
            with them.

    Raises:
        UsageError: too few samples or groups, or examples in the spec that cannot be read.
    """
    reward, params = as_callable(reward), params or {}
    accepts = frozenset(spec.accepts) if spec is not None else accepted(reward) if samples is None else _kinds(samples)
    if samples is None:
        samples = samples_for(accepts, spec)
    if len({sample.group for sample in samples}) < 2:
        raise UsageError(f"A reward's checks need samples of at least two groups; got {len(samples)} samples.")
    if per_sample is None:
        per_sample = spec is None or spec.per_sample
    first_call = FirstCall(reward, samples)
    yield Check(name="numbers", summary="there is one finite number or NaN per sample", test=first_call.check_numbers)
    checks = [*_score_checks(first_call, per_sample), *_kind_checks(first_call, accepts)]
    if spec is not None:
        checks = [*_spec_checks(first_call, spec, params), *checks]
    expected = spec.expected_failures if spec is not None else {}
    for name, summary, test in checks:
        failure = expected.get(name, "")
        yield Check(name=name, summary=summary, test=first_call.needed_by(test), expected_failure=failure)
    if spec is not None:
        yield from dependency_checks(spec, params)
    if ladder:
        measured = ladder if isinstance(ladder, Ladder) else Ladder(reward, spec=spec, accepts=accepts)
        for check in ladder_checks(measured):
            yield replace(check, test=first_call.needed_by(check.test))
    yield from common_checks(params, module)


def _spec_checks(call: FirstCall, spec: RewardSpec, params: Mapping[str, Any]) -> Iterator[_Row]:
    if spec.range != (None, None):
        yield "range", "scores lie in the range that the spec declares", partial(_range, call, spec.range)
    if spec.examples:
        test = partial(check_examples, call.reward, spec, params)
        yield "examples", "the better side of each example scores more", test


def _score_checks(call: FirstCall, per_sample: bool) -> tuple[_Row, ...]:
    return (
        ("batch-size", "a sample's score is the same alone, in its group and among other groups",
         partial(_batch, call, per_sample)),
        ("order", "scores follow their samples into another order", partial(_order, call)),
        ("deterministic", "the same samples get the same scores again", partial(_deterministic, call)),
        ("inputs-unchanged", "scoring changes no sample in place", call.check_inputs),
        ("list-unchanged", "scoring leaves the list of samples and its order alone", call.check_list),
        ("global-rng", "global random states are left alone", partial(_global_rng, call)),
        ("wrong-type", "an output of an unknown type is refused clearly", partial(_wrong_type, call)),
        ("empty", "no samples get no scores", partial(_empty, call)),
    )  # fmt: skip


def _kind_checks(call: FirstCall, accepts: frozenset[str]) -> Iterator[_Row]:
    for kind, noun, test in (("image", "picture", check_pictures), ("text", "text", check_texts)):
        if kind in accepts:
            own = (sample for sample in call.samples if kind in _kinds([sample]))
            run = partial(test, call.reward, next(own, example_samples({kind})[0]))
            yield f"degenerate-{kind}s", f"any {noun} gets a number, NaN or a clear error", run


def _kinds(samples: Sequence[Sample]) -> frozenset[str]:
    from PIL import Image

    kinds = {str: "text", Image.Image: "image"}
    return frozenset(kind for s in samples for base, kind in kinds.items() if isinstance(s.output, base))


def _scores(call: FirstCall, samples: Sequence[Sample]) -> list[float]:
    return [float(x) for x in call.reward(list(samples))]


def _same(a: float, b: float, tolerance: float = 1e-6) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def _range(call: FirstCall, bounds: tuple[float | None, float | None]) -> None:
    low, high = (limit if x is None else x for x, limit in zip(bounds, (-math.inf, math.inf), strict=True))
    for row, value in enumerate(_scores(call, call.samples)):
        inside = low <= value <= high or not math.isfinite(value)  # the check `numbers` is about these
        expect(inside, f"scores within {bounds}, as the spec declares", f"{value} in row {row}",
               "rounding at the edge (clamp it), or a range in the spec that is another reward's")  # fmt: skip


def _batch(call: FirstCall, per_sample: bool) -> None:
    together = _scores(call, call.samples)
    groups = [sample.group for sample in call.samples]
    parts = [[i for i, g in enumerate(groups) if g == group] for group in dict.fromkeys(groups)]
    alone = [[i] for i in range(len(groups))] if per_sample else []
    for rows in [*alone, *parts]:
        for row, value in zip(rows, _scores(call, [call.samples[i] for i in rows]), strict=True):
            where = "alone" if len(rows) == 1 else "in its group"
            expect(_same(value, together[row]), f"the score of row {row} {where} to be its score among all, "
                   f"{together[row]}", f"{value}", "a mean, a padding or a normalisation over the batch")  # fmt: skip


def _order(call: FirstCall) -> None:
    together, reverse = _scores(call, call.samples), _scores(call, call.samples[::-1])[::-1]
    differing = [row for row, pair in enumerate(zip(together, reverse, strict=True)) if not _same(*pair)]
    expect(not differing, f"the scores {together} of the same samples in reverse order",
           f"{reverse} (rows {differing} differ)",
           "scores in a sorted or grouped order; return them in the order of the samples")  # fmt: skip


def _deterministic(call: FirstCall) -> None:
    first, second = _scores(call, call.samples), _scores(call, call.samples)
    differing = [row for row, pair in enumerate(zip(first, second, strict=True)) if not _same(*pair, tolerance=0.0)]
    expect(not differing, f"the same scores twice, {first}", f"{second} (rows {differing} differ)",
           "noise, a state that each call changes, or active dropout (call eval())")  # fmt: skip


def _global_rng(call: FirstCall) -> None:
    before = random_states()
    _scores(call, call.samples)
    expect_untouched(before, "scoring")


class _Unknown:
    """The type of an output that no reward knows."""


def _wrong_type(call: FirstCall) -> None:
    answer = attempt(_scores, call, [replace(call.samples[0], output=_Unknown())])
    refused = isinstance(answer, GrpokitError) or (isinstance(answer, list) and all(map(math.isnan, answer)))
    expect(refused, "a GrpokitError, or NaN, for an output of an unknown type", f"{answer!r}",
           "an output that is used without a check of its type; raise a grpokit.RewardError that says what it "
           "expects")  # fmt: skip


def _empty(call: FirstCall) -> None:
    answer = attempt(_scores, call, [])
    expect(answer == [], "an empty list for no samples", f"{answer!r}", "a maximum, a mean or a stack of nothing")
