"""The checks that every policy passes, as one generator: each rule of `grpokit.policy.Policy` has at least one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from grpokit.errors import UsageError
from grpokit.policy import Policy
from grpokit.registry.specs import KINDS
from grpokit.testing.check import Check, common_checks
from grpokit.testing.policy import logprob_checks, rollout_checks, weight_checks
from grpokit.testing.policy.case import Case
from grpokit.types import Prompt, Rollout


def policy_checks(
    factory: Callable[[], Policy],
    prompts: Iterable[str | Prompt],
    *,
    group_size: int = 4,
    tolerance: float = 1e-4,
    decode: Callable[[Rollout], Sequence[Any]] | None = None,
    decisions: Callable[[Rollout], Tensor] | None = None,
    learn: bool = False,
    learn_steps: int = 40,
    learning_rate: float | None = None,
    makes: str = "",
    params: Mapping[str, Any] | None = None,
    module: str | None = None,
) -> Iterator[Check]:
    """Yield the checks of a policy. Nothing is built before a check runs.

    Args:
        factory: builds a new policy, always with the same weights; a policy's class will do.
        prompts: at least two that it can read.
        group_size: samples per prompt, at least 2.
        tolerance: the largest difference of log-probs that counts as equal; 1e-4 suits fp32.
        decode: rollout -> the outputs [B], decoded again from the trace alone; with it `scored-is-sampled` is exact.
        decisions: rollout -> the drawn values [B, T, ...] of Gaussian decisions; with it `gaussian` is exact.
        learn: add the slow check `learns`.
        learn_steps: its updates.
        learning_rate: its learning rate; None finds the one whose first update moves log-probs by a tenth.
        makes: the kind of output that its spec declares; with "image" or "text", outputs are checked for it.
        params: the parameters that a config gives to the factory.
        module: the plugin's module behind the entry point, which must import nothing heavy.

    Raises:
        UsageError: fewer than two prompts, or a group of one.
    """
    cases = [Prompt(text=p) if isinstance(p, str) else p for p in prompts]
    if len(cases) < 2 or group_size < 2:
        raise UsageError(
            f"A policy's checks need at least two prompts and two samples per prompt; got {len(cases)} prompts and "
            f"group_size={group_size}."
        )
    case = Case(
        factory=factory, prompts=cases, group_size=group_size, tolerance=tolerance, decode=decode, decisions=decisions,
        makes=makes,
    )  # fmt: skip
    for name, summary, test in _CHECKS:
        if name != "outputs" or makes in KINDS:
            yield Check(name=name, summary=summary, test=partial(test, case))
    if learn:
        test = partial(weight_checks.learns, case, learn_steps, learning_rate)
        yield Check(name="learns", summary="a toy reward rises", test=test, slow=True)
    yield from common_checks(params or {}, module)


_CHECKS: Sequence[tuple[str, str, Callable[[Case], None]]] = (
    ("protocol", "the policy has the methods of the contract", weight_checks.protocol),
    ("shapes", "groups, samples, masks and log-probs have their form", rollout_checks.shapes),
    ("outputs", "outputs are of the kind that the spec declares", rollout_checks.outputs),
    ("ratio-is-one", "logprobs right after rollout gives the rollout's log-probs", logprob_checks.ratio_is_one),
    ("scored-is-sampled", "an output is decoded from its own decisions", rollout_checks.scored_is_sampled),
    ("rows-independent", "a row's log-probs do not depend on its batch", logprob_checks.rows_independent),
    ("batch-size", "a rollout does not depend on the batch size", rollout_checks.batch_size),
    ("joined", "rows drawn one by one can be scored together", rollout_checks.joined),
    ("seeded", "the seeds alone decide the rollout", rollout_checks.seeded),
    ("global-rng", "global random states are left alone", rollout_checks.global_rng),
    ("logprobs-repeat", "two calls are equal to the bit", logprob_checks.logprobs_repeat),
    ("mask", "nothing under the mask counts", logprob_checks.masked_out),
    ("slices", "step slices partition the decisions", logprob_checks.slices),
    ("trimmed", "a slice that is cut short gives the same log-probs", logprob_checks.trimmed),
    ("frequencies", "tokens are drawn as often as log-probs say, where there are any", logprob_checks.frequencies),
    ("gaussian", "log-probs agree with mean and std, where there are any", logprob_checks.gaussian),
    ("gradient", "every trainable parameter gets a gradient", weight_checks.gradient),
    ("reference", "the reference policy is frozen, and the live policy restored", weight_checks.reference),
    ("save-load", "load_state_dict restores what state_dict gave", weight_checks.save_load),
    ("evaluate", "evaluation is seeded and changes nothing", rollout_checks.evaluation),
)
