"""The checks that every policy passes, as one generator: each rule of `grpokit.policy.Policy` has at least one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from grpokit.errors import UsageError
from grpokit.testing.core import Check, common_checks
from grpokit.types import Prompt, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from grpokit.policy import Policy


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
    learning_rate: float = 3e-3,
    params: Mapping[str, Any] | None = None,
    module: str | None = None,
) -> Iterator[Check]:
    """Yield the checks of a policy. Nothing is built before a check runs.

    Args:
        factory: builds the policy anew, always with the same weights; a policy's class will do.
        prompts: at least two that it can read.
        group_size: samples per prompt, at least 2.
        tolerance: the largest difference of log-probs that counts as equal; 1e-4 suits fp32.
        decode: rollout -> the outputs [B] made anew from the trace alone; with it `scored-is-sampled` is exact.
        decisions: rollout -> the drawn values [B, T, ...] of Gaussian decisions; with it `gaussian` is exact.
        learn: add the slow check `learns`.
        learn_steps: its updates.
        learning_rate: its learning rate.
        params: the parameters that a config gives to the factory.
        module: the plugin's module behind the entry point, which must import nothing heavy.

    Raises:
        UsageError: fewer than two prompts, or a group of one.
    """
    given = [Prompt(text=p) if isinstance(p, str) else p for p in prompts]
    if len(given) < 2 or group_size < 2:
        raise UsageError(
            f"A policy's checks need at least two prompts and two samples per prompt; got {len(given)} prompts and "
            f"group_size={group_size}."
        )
    for name, summary, home, test in _CHECKS:
        run = partial(
            _run, home, test,
            factory=factory, prompts=given, group_size=group_size, tolerance=tolerance, decode=decode,
            decisions=decisions,
        )  # fmt: skip
        if name != "learns":
            yield Check(name=name, summary=summary, test=run)
        elif learn:
            slow = partial(run, steps=learn_steps, learning_rate=learning_rate)
            yield Check(name=name, summary=summary, test=slow, slow=True)
    yield from common_checks(params or {}, module)


_CHECKS = (
    ("protocol", "the policy has the methods of the contract", "scoring", "protocol"),
    ("shapes", "groups, samples, masks and log-probs have their form", "drawing", "shapes"),
    ("ratio-is-one", "replay right after rollout gives the rollout's log-probs", "scoring", "ratio_is_one"),
    ("scored-is-sampled", "an output is decoded from its own decisions", "drawing", "scored_is_sampled"),
    ("rows-independent", "a row's log-probs do not depend on its batch", "scoring", "rows_independent"),
    ("batch-size", "a rollout does not depend on the batch size", "drawing", "batch_size"),
    ("joined", "rows drawn apart can be scored together", "drawing", "joined"),
    ("seeded", "the seeds, and nothing else, decide the rollout", "drawing", "seeded"),
    ("global-rng", "global random states are left alone", "drawing", "global_rng"),
    ("replay-repeats", "two replays are equal to the bit", "scoring", "replay_repeats"),
    ("mask", "nothing under the mask counts", "scoring", "masked_out"),
    ("slices", "step slices partition the decisions", "scoring", "slices"),
    ("gaussian", "log-probs agree with mean and std, where there are any", "scoring", "gaussian"),
    ("gradient", "every trainable parameter gets a gradient", "scoring", "gradient"),
    ("reference", "the reference is frozen, and the policy restored", "scoring", "reference"),
    ("save-load", "what save wrote, load restores", "scoring", "save_load"),
    ("evaluate", "evaluation is seeded and changes nothing", "drawing", "evaluation"),
    ("learns", "a toy reward rises", "scoring", "learns"),
)


def _run(home: str, test: str, *, steps: int = 0, learning_rate: float = 0.0, **known: Any) -> None:
    from grpokit.testing import drawing, scoring
    from grpokit.testing.case import Case

    function = getattr({"drawing": drawing, "scoring": scoring}[home], test)
    case = Case(**known)
    if test == "learns":
        function(case, steps, learning_rate)
    else:
        function(case)
