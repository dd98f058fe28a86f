"""The checks that every reward passes.

Only `numbers` looks at the form of the scores, so that one mistake fails one check. Each call gets a list of its own.
The modules next to this one and the ladders add checks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from PIL import Image

from grpokit.errors import GrpokitError, UsageError, brief, one_line
from grpokit.registry.columns import of_samples
from grpokit.registry.specs import RewardSpec
from grpokit.rewards.submission import Submits
from grpokit.rewards.terms import Reward
from grpokit.types import Sample
from grpokit_check.check import (
    Check,
    attempt,
    check_of,
    error_text,
    expect,
    expect_untouched,
    light_plugin,
    random_states,
)
from grpokit_check.reward.calls import FirstCall, as_callable
from grpokit_check.reward.dependencies import dependency_checks
from grpokit_check.reward.examples import accepted, example_samples, examples, samples_for
from grpokit_check.reward.unusual_outputs import degenerate_images, degenerate_texts
from grpokit_check.robustness.grades import LadderReport
from grpokit_check.robustness.ladder import climbed, ladder_checks


def reward_checks(
    reward: Reward | Submits,
    samples: Sequence[Sample] | None = None,
    *,
    spec: RewardSpec | None = None,
    params: Mapping[str, Any] | None = None,
    module: str | None = None,
    ladder: bool | Callable[[], LadderReport] = True,
) -> Iterator[Check]:
    """Yield the checks of a reward.

    Args:
        reward: the reward, with its parameters bound; one that is not callable has `submit` and `close`.
        samples: at least two that it can score, of at least two groups and in ascending order of these; by default the
            spec's examples, or built-in texts or pictures.
        spec: what its plugin announces; it decides which of the checks apply.
        params: the parameters that it was built with.
        module: the plugin's module behind the entry point, which must import nothing heavy.
        ladder: add the checks of the ladders (`grpokit_check.ladder`); a function that returns the report of this
            reward shares it with them.

    Raises:
        UsageError: too few samples or groups, or examples in the spec that cannot be read.
    """
    reward, params = as_callable(of_samples(reward)), params or {}
    accepts = frozenset(spec.accepts) if spec is not None else accepted(reward) if samples is None else _kinds(samples)
    if samples is None:
        samples = samples_for(accepts, spec)
    if len({sample.group for sample in samples}) < 2:
        raise UsageError(f"A reward's checks need samples of at least two groups; got {len(samples)} samples.")
    call = FirstCall(reward, samples)
    expected = spec.expected_failures if spec is not None else {}

    def expects(check: Check) -> Check:
        return replace(check, expected_failure=expected.get(check.name, ""))

    def of_scores(check: Check) -> Check:
        return replace(expects(check), test=partial(call.before, check.test))

    yield expects(check_of(numbers, call))
    yield from map(of_scores, _score_checks(call, spec, params, accepts))
    if spec is not None:
        yield from map(expects, dependency_checks(spec, params))
    if ladder:
        report = functools.cache(partial(climbed, reward, accepts, spec) if ladder is True else ladder)
        yield from map(of_scores, ladder_checks(report, accepts))
    if module is not None:
        yield check_of(light_plugin, module)


def _score_checks(
    call: FirstCall, spec: RewardSpec | None, params: Mapping[str, Any], accepts: frozenset[str]
) -> Iterator[Check]:
    """The checks that compare scores."""
    if spec is not None and spec.range != (None, None):
        yield check_of(range_, call, spec.range)
    if spec is not None and spec.examples:
        yield check_of(examples, call.reward, spec, params)
    yield check_of(batch_size, call, spec is None or spec.per_sample)
    for test in (order, deterministic, inputs_unchanged, list_unchanged, global_rng, wrong_type, empty):
        yield check_of(test, call)
    for kind, unusual in (("image", degenerate_images), ("text", degenerate_texts)):
        if kind in accepts:
            own = (sample for sample in call.samples if kind in _kinds([sample]))
            yield check_of(unusual, call.reward, next(own, example_samples({kind})[0]))


def numbers(call: FirstCall) -> None:
    """There is one finite number or NaN per sample."""
    values, expected = call.answer.values, "one finite number or NaN per sample"
    if isinstance(values, BaseException):
        expect(False, expected, f"{error_text(values)} {_culprit(call)}",
               "samples of a kind that this reward does not score, or without something that it reads, or a bug; a run "
               "would stop in the same way")  # fmt: skip
    if isinstance(call.scores, BaseException):
        complaint = one_line(call.scores).partition("; expected")[0]
        expect(False, expected, f"another answer: {complaint}",
               "no return, one score for the whole batch, a value that is no number, or a division by 0")  # fmt: skip
    expect(not all(map(math.isnan, call.scores)), "at least one sample that the reward can score",
           f"NaN for all {len(call.samples)}", "samples without the target, or of the wrong kind; give the checks "
           "samples that this reward is made for")  # fmt: skip


def _culprit(call: FirstCall) -> str:
    """Which of the samples make a reward raise, when it scores each alone."""
    answers = [attempt(call.reward, [sample]) for sample in call.samples]
    rows = [row for row, answer in enumerate(answers) if isinstance(answer, BaseException)]
    if len(rows) == len(call.samples):
        return "on every sample"
    return f"on row {rows[0]}, {brief(call.samples[rows[0]].output, most=60)}" if rows else "on the samples together"


def inputs_unchanged(call: FirstCall) -> None:
    """Scoring changes no sample in place."""
    for row, (before, after) in enumerate(zip(call.answer.before, call.answer.after, strict=True)):
        changed = [name for name, x in before.items() if after[name] != x]
        expect(not changed, "that scoring leaves the samples as they are",
               f"a change of {', '.join(changed)} in row {row}",
               "a change in place (thumbnail, putpixel, paste, pop); work on a copy")  # fmt: skip


def list_unchanged(call: FirstCall) -> None:
    """Scoring leaves the list of samples and its order alone."""
    before, after = list(map(id, call.samples)), list(map(id, call.answer.batch))
    rows = [before.index(x) if x in before else "another sample" for x in after]
    expect(before == after, f"that scoring leaves the list of {len(before)} samples as it is", f"the rows {rows}",
           "samples.sort(), reverse(), pop() or append(); use sorted(samples) or your own list")  # fmt: skip


def _kinds(samples: Sequence[Sample]) -> frozenset[str]:
    kinds = {str: "text", Image.Image: "image"}
    return frozenset(kind for s in samples for base, kind in kinds.items() if isinstance(s.output, base))


def _scores(call: FirstCall, samples: Sequence[Sample]) -> list[float]:
    return [float(x) for x in call.reward(list(samples))]


def _same(a: float, b: float, tolerance: float = 1e-6) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def range_(call: FirstCall, bounds: tuple[float | None, float | None]) -> None:
    """Scores lie in the range that the spec declares."""
    low, high = (limit if x is None else x for x, limit in zip(bounds, (-math.inf, math.inf), strict=True))
    for row, value in enumerate(_scores(call, call.samples)):
        inside = low <= value <= high or math.isnan(value)
        expect(inside, f"scores within {bounds}, as the spec declares", f"{value} in row {row}",
               "rounding at the edge (clamp it), or a range in the spec that is another reward's")  # fmt: skip


def batch_size(call: FirstCall, per_sample: bool) -> None:
    """A sample's score is the same alone, in its group and among other groups."""
    together = _scores(call, call.samples)
    groups = [sample.group for sample in call.samples]
    parts = [[i for i, g in enumerate(groups) if g == group] for group in dict.fromkeys(groups)]
    alone = [[i] for i in range(len(groups))] if per_sample else []
    for rows in [*alone, *parts]:
        for row, value in zip(rows, _scores(call, [call.samples[i] for i in rows]), strict=True):
            where = "alone" if len(rows) == 1 else "in its group"
            expect(_same(value, together[row]), f"the score of row {row} {where} to be its score among all, "
                   f"{together[row]}", f"{value}", "a mean, a padding or a normalisation over the batch")  # fmt: skip


def order(call: FirstCall) -> None:
    """Scores follow their samples into another order."""
    together, reverse = _scores(call, call.samples), _scores(call, call.samples[::-1])[::-1]
    differing = [row for row, pair in enumerate(zip(together, reverse, strict=True)) if not _same(*pair)]
    expect(not differing, f"the scores {together} of the same samples in reverse order",
           f"{reverse} (rows {differing} differ)",
           "scores in a sorted or grouped order; return them in the order of the samples")  # fmt: skip


def deterministic(call: FirstCall) -> None:
    """The same samples get the same scores again."""
    first, second = _scores(call, call.samples), _scores(call, call.samples)
    differing = [row for row, pair in enumerate(zip(first, second, strict=True)) if not _same(*pair, tolerance=0.0)]
    expect(not differing, f"the same scores twice, {first}", f"{second} (rows {differing} differ)",
           "noise, a state that each call changes, or active dropout (call eval())")  # fmt: skip


def global_rng(call: FirstCall) -> None:
    """Global random states are left alone."""
    before = random_states()
    _scores(call, call.samples)
    expect_untouched(before, "scoring")


class _Unknown:
    """The type of an output that no reward knows."""


def wrong_type(call: FirstCall) -> None:
    """An output of an unknown type is refused clearly."""
    answer = attempt(_scores, call, [replace(call.samples[0], output=_Unknown())])
    refused = isinstance(answer, GrpokitError) or (isinstance(answer, list) and all(map(math.isnan, answer)))
    expect(refused, "a GrpokitError, or NaN, for an output of an unknown type", f"{answer!r}",
           "an output that is used without a check of its type; raise a grpokit.RewardError that says what it "
           "expects")  # fmt: skip


def empty(call: FirstCall) -> None:
    """No samples get no scores."""
    answer = attempt(_scores, call, [])
    expect(answer == [], "an empty list for no samples", f"{answer!r}", "a maximum, a mean or a stack of nothing")
