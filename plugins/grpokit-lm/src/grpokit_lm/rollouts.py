"""What a rollout asks for, and one whose completions an engine writes while this process does other work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from grpokit import Prompt, Rollout, Seeds
from grpokit.policies.reference import adapter_off
from grpokit.policies.sampler import Sampler
from grpokit_lm.engines import Engine, refuse_ignored_adapter
from grpokit_lm.pictures import Reading

if TYPE_CHECKING:
    from grpokit_lm.policy import CausalLMPolicy

_COMPARED = 8  # rows of which an engine's log-probs are looked at


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of a rollout, read by the policy.

    Attributes:
        prompts: P prompts.
        readings: P times what the model reads.
        group_size: G.
        seeds: of B = P * G rows.
        sampler: draws tokens.
    """

    prompts: Sequence[Prompt]
    readings: Sequence[Reading]
    group_size: int
    seeds: Seeds
    sampler: Sampler


class Pending:
    """A rollout that an engine writes, with the adapter as it is now.

    Args:
        policy: whose adapter it is.
        engine: writes.
        asked: what.
        trains: on the samples, so an engine that ignores the adapter is refused.
        ahead: the weights may change before the result is asked for.
    """

    def __init__(
        self, policy: CausalLMPolicy, engine: Engine, asked: Asked, *, trains: bool, ahead: bool = False
    ) -> None:
        self._policy, self._asked, self._version = policy, asked, policy.version
        engine.push(policy.model, policy.version)
        self._compared = trains and self._version > 0
        self._adapter = [p for p in policy.model.parameters() if p.requires_grad]
        self._pushed = [p.detach().clone() for p in self._adapter] if self._compared and ahead else []
        self._completing = engine.begin(
            [reading.tokens for reading in asked.readings],
            asked.group_size,
            seeds=asked.seeds.row.tolist(),
            sampling={"temperature": asked.sampler.temperature, **asked.sampler.truncation},
            max_new_tokens=policy.max_new_tokens,
            stops=policy.stops,
            trains=trains,
        )

    def result(self) -> Rollout:
        """Wait for the rollout.

        Raises:
            RunError: the engine failed, or ignores the adapter.
        """
        written, lengths, ended, kept = self._completing.result(self._policy.device)
        drawn = self._policy.rollout_of(self._asked, written, lengths, ended, kept=kept)
        rollout = replace(drawn, exact=False, version=self._version)
        if self._compared:
            with _values(self._adapter, self._pushed) if self._pushed else nullcontext():
                self._refuse_ignored_adapter(rollout)
        return rollout

    def cancel(self) -> None:
        """Ask for no more completions."""
        self._completing.cancel()

    def _refuse_ignored_adapter(self, rollout: Rollout) -> None:
        some = rollout.select(torch.arange(min(_COMPARED, rollout.rows)))
        whole = slice(0, some.mask.shape[1])
        policy = self._policy.logprobs(some, whole).logprobs
        with adapter_off(self._policy.model):
            base = self._policy.logprobs(some, whole).logprobs
        refuse_ignored_adapter(some.old.logprobs, policy, base, some.mask)


@contextmanager
def _values(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> Iterator[None]:
    """Inside, parameters have these values."""
    own = [p.data for p in parameters]
    try:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value
        yield
    finally:
        for parameter, value in zip(parameters, own, strict=True):
            parameter.data = value
