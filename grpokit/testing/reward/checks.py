"""The checks that every reward passes.

A reward is called with all samples, with each alone, in another order, twice, with no samples, and with an output of an
unknown type; `first_call`, `unusual_outputs`, `examples`, `dependencies` and `ladder` add checks. Only `numbers` looks
at the form of the scores, so that one mistake fails one check. Each call gets a list of its own.
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
from grpokit.testing.check import Check, common_checks, expect, expect_untouched, random_states
from grpokit.testing.reward.called import as_callable
from grpokit.testing.reward.dependencies import announcing_plugin, check_declared, check_missing
from grpokit.testing.reward.examples import accepted, check_examples, example_samples, samples_for
from grpokit.testing.reward.first_call import FirstCall
from grpokit.testing.reward.unusual_outputs import check_pictures, check_texts
from grpokit.testing.robustness.ladder import Ladder, ladder_checks
from grpokit.types import Sample

_DIGITS = 1e-6


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
    reward = as_callable(reward)
    accepts = frozenset(spec.accepts) if spec is not None else accepted(reward) if samples is None else _kinds(samples)
    if samples is None:
        samples = samples_for(accepts, spec)
    if len(samples) < 2 or len({s.group for s in samples}) < 2:
        raise UsageError(f"A reward's checks need samples of at least two groups; got {len(samples)} samples.")
    if per_sample is None:
        per_sample = spec is None or spec.per_sample
    first_call = FirstCall(reward, samples)
    tests: list[tuple[str, str, Callable[[], None]]] = [
        ("batch-size", "a sample's score is the same alone, in its group and among other groups",
         partial(_batch, reward, samples, per_sample)),
        ("order", "scores follow their samples into another order", partial(_order, reward, samples)),
        ("deterministic", "the same samples get the same scores again", partial(_deterministic, reward, samples)),
        ("inputs-unchanged", "scoring changes no sample in place", first_call.check_inputs),
        ("list-unchanged", "scoring leaves the list of samples and its order alone", first_call.check_list),
        ("global-rng", "global random states are left alone", partial(_global_rng, reward, samples)),
        ("wrong-type", "an output of an unknown type is refused clearly", partial(_wrong_type, reward, samples)),
        ("empty", "no samples get no scores", partial(_empty, reward)),
    ]  # fmt: skip
    if spec is not None and spec.range != (None, None):
        test = partial(_range, reward, samples, spec.range)
        tests.insert(0, ("range", "scores lie in the range that the spec declares", test))
    if "image" in accepts:
        test = partial(check_pictures, reward, _first(samples, "image"))
        tests.append(("degenerate-images", "any picture gets a number, NaN or a clear error", test))
    if "text" in accepts:
        test = partial(check_texts, reward, _first(samples, "text"))
        tests.append(("degenerate-texts", "any text gets a number, NaN or a clear error", test))
    if spec is not None and spec.examples:
        test = partial(check_examples, reward, spec, params or {})
        tests.append(("examples", "the better side of each example scores more", test))
    expected = spec.expected_failures if spec is not None else {}
    yield Check(name="numbers", summary="there is one finite number or NaN per sample", test=first_call.check_numbers)
    for name, summary, run in tests:
        yield Check(name=name, summary=summary, test=first_call.needed_by(run), expected_failure=expected.get(name, ""))
    if spec is not None and spec.install:
        yield Check(
            name="missing-dependency",
            summary="without its packages it says how to install them",
            test=partial(check_missing, spec, params or {}),
        )
    plugin = announcing_plugin(spec) if spec is not None else None
    if spec is not None and plugin is not None and plugin.package != "grpokit":
        yield Check(
            name="declared-dependencies",
            summary="its distribution declares what it imports",
            test=partial(check_declared, spec),
        )
    if ladder:
        measured = ladder if isinstance(ladder, Ladder) else Ladder(reward, spec=spec, accepts=accepts)
        for check in ladder_checks(measured):
            yield replace(check, test=first_call.needed_by(check.test))
    yield from common_checks(params or {}, module)


def _kinds(samples: Sequence[Sample]) -> frozenset[str]:
    from PIL import Image

    kinds = {str: "text", Image.Image: "image"}
    return frozenset(kind for s in samples for base, kind in kinds.items() if isinstance(s.output, base))


def _first(samples: Sequence[Sample], kind: str) -> Sample:
    """The first sample with an output of a kind, or a built-in one."""
    return next((s for s in samples if kind in _kinds([s])), example_samples({kind})[0])


def _scores(reward: Reward, samples: Sequence[Sample]) -> list[float]:
    return [float(x) for x in reward(list(samples))]


def _same(a: float, b: float, tolerance: float = _DIGITS) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def _range(reward: Reward, samples: Sequence[Sample], bounds: tuple[float | None, float | None]) -> None:
    low, high = bounds
    for row, value in enumerate(_scores(reward, samples)):
        if not math.isfinite(value):  # the check `numbers` is about these
            continue
        inside = (low is None or not value < low) and (high is None or not value > high)
        expect(inside, f"scores within {bounds}, as the spec declares", f"{value} in row {row}",
               "rounding at the edge (clamp it), or a range in the spec that is another reward's")  # fmt: skip


def _batch(reward: Reward, samples: Sequence[Sample], per_sample: bool) -> None:
    together = _scores(reward, samples)
    groups = [s.group for s in samples]
    parts = [[i for i, g in enumerate(groups) if g == group] for group in dict.fromkeys(groups)]
    alone = [[i] for i in range(len(samples))] if per_sample else []
    for rows in [*alone, *parts]:
        for row, value in zip(rows, _scores(reward, [samples[i] for i in rows]), strict=True):
            where = "alone" if len(rows) == 1 else "in its group"
            expect(_same(value, together[row]), f"the score of row {row} {where} to be its score among all, "
                   f"{together[row]}", f"{value}", "a mean, a padding or a normalisation over the batch")  # fmt: skip


def _order(reward: Reward, samples: Sequence[Sample]) -> None:
    together, reverse = _scores(reward, samples), _scores(reward, samples[::-1])[::-1]
    differing = [row for row, pair in enumerate(zip(together, reverse, strict=True)) if not _same(*pair)]
    expect(not differing, f"the scores {together} of the same samples in reverse order",
           f"{reverse} (rows {differing} differ)",
           "scores in a sorted or grouped order; return them in the order of the samples")  # fmt: skip


def _deterministic(reward: Reward, samples: Sequence[Sample]) -> None:
    first, second = _scores(reward, samples), _scores(reward, samples)
    differing = [row for row, pair in enumerate(zip(first, second, strict=True)) if not _same(*pair, tolerance=0.0)]
    expect(not differing, f"the same scores twice, {first}", f"{second} (rows {differing} differ)",
           "noise, a state that each call changes, or active dropout (call eval())")  # fmt: skip


def _global_rng(reward: Reward, samples: Sequence[Sample]) -> None:
    before = random_states()
    _scores(reward, samples)
    expect_untouched(before, "scoring")


class _Unknown:
    """The type of an output that no reward knows."""


def _wrong_type(reward: Reward, samples: Sequence[Sample]) -> None:
    unknown = replace(samples[0], output=_Unknown())
    cause = "an output that is used without a check of its type; raise a grpokit.RewardError that says what it expects"
    try:
        values = _scores(reward, [unknown])
    except GrpokitError:
        return
    except (Exception, SystemExit) as error:  # a component may raise anything
        expect(False, "a GrpokitError, or NaN, for an output of an unknown type", repr(error), cause)
    else:
        expect(all(map(math.isnan, values)), "a GrpokitError, or NaN, for an output of an unknown type",
               f"the score {values}", cause)  # fmt: skip


def _empty(reward: Reward) -> None:
    try:
        values: Any = list(reward([]))
    except (Exception, SystemExit) as error:  # a component may raise anything
        values = repr(error)
    expect(values == [], "an empty list for no samples", f"{values}", "a maximum, a mean or a stack of nothing")
