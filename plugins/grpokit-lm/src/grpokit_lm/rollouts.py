"""What a rollout asks for, and one whose completions an engine writes while this process does other work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from grpokit import Prompt, Rollout, Seeds
from grpokit.reference import adapter_off
from grpokit_hf.tokens.sampler import Sampler
from grpokit_lm.engines import Engine, refuse_ignored_adapter, refuse_untempered
from grpokit_lm.pictures import Reading
from grpokit_lm.worlds.conversations import Conversations

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
        conversations: with worlds; None without.
    """

    prompts: Sequence[Prompt]
    readings: Sequence[Reading]
    group_size: int
    seeds: Seeds
    sampler: Sampler
    conversations: Conversations | None = None


class Pending:
    """A rollout that an engine writes, with the adapter as it is now.

    Args:
        policy: whose adapter it is.
        engine: writes.
        asked: what.
        trains: on the samples, so an engine whose log-probs are not the policy's is refused.
        ahead: the weights may change before the result is asked for.
    """

    def __init__(
        self, policy: CausalLMPolicy, engine: Engine, asked: Asked, *, trains: bool, ahead: bool = False
    ) -> None:
        self._policy, self._engine, self._asked, self._version = policy, engine, asked, policy.version
        engine.push(policy.model, policy.version)
        self._trains, self._compared = trains, trains and self._version > 0
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
            RunError: the engine failed, ignores the adapter, or states log-probs from before the temperature.
        """
        written, lengths, ended, kept = self._completing.result(self._policy.device)
        drawn = self._policy.rollout_of(self._asked, written, lengths, ended, kept=kept)
        rollout = replace(drawn, exact=False, version=self._version)
        some = rollout.select(torch.arange(min(_COMPARED, rollout.rows)))
        unchecked = self._asked.sampler.temperature != 1 and not self._engine.temperature_checked
        if self._trains and unchecked and bool(some.mask.any()):
            self._refuse_untempered(some)
        if self._compared:
            with _values(self._adapter, self._pushed) if self._pushed else nullcontext():
                self._refuse_ignored_adapter(some)
        return rollout

    def cancel(self) -> None:
        """Ask for no more completions."""
        self._completing.cancel()

    def _refuse_untempered(self, some: Rollout) -> None:
        per_row = {**some.trace.per_row, "temperature": torch.ones(some.rows)}
        untempered = replace(some, trace=replace(some.trace, per_row=per_row))
        refuse_untempered(some.old.logprobs, self._scored(some), self._scored(untempered), some.mask)
        self._engine.temperature_checked = True

    def _refuse_ignored_adapter(self, some: Rollout) -> None:
        policy = self._scored(some)
        with adapter_off(self._policy.model):
            base = self._scored(some)
        refuse_ignored_adapter(some.old.logprobs, policy, base, some.mask)

    def _scored(self, rollout: Rollout) -> Tensor:
        """The policy's log-probs: [b, t]."""
        return self._policy.logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()


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
