"""What a rollout asks for, and one whose completions an engine writes while this process does other work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grpokit import Decisions, Prompt, Rollout, Sample, Seeds, Trace
from grpokit.reference import adapter_off
from grpokit_hf.tokens.group_decoding import Written
from grpokit_hf.tokens.ragged import padded
from grpokit_hf.tokens.sampler import Sampler
from grpokit_lm.engines import Engine, refuse_ignored_adapter, refuse_untempered
from grpokit_lm.pictures import Reading
from grpokit_lm.prompts import PromptEncoder
from grpokit_lm.stopping import Stops
from grpokit_lm.worlds.conversations import Conversations

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
        encoder: makes texts of tokens.
        mask_truncated: a completion that did not end by itself is not trained on.
        conversations: with worlds; None without.
    """

    prompts: Sequence[Prompt]
    readings: Sequence[Reading]
    group_size: int
    seeds: Seeds
    sampler: Sampler
    encoder: PromptEncoder
    mask_truncated: bool
    conversations: Conversations | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.sampler.chances.device

    @property
    def _groups(self) -> Tensor:
        """Of each row: [B]."""
        return self.seeds.group_ids.cpu().repeat_interleave(self.group_size)

    def rollout(
        self, written: Written, lengths: Sequence[int], ended: Sequence[bool], *, kept: Mapping[str, Tensor]
    ) -> Rollout:
        """What was written, as a rollout of the weights that wrote it.

        Args:
            written: tokens and log-probs [B, T].
            lengths: of B completions, ends included.
            ended: which of them ended by themselves.
            kept: as of `Sampler.kept`.
        """
        samples = self._samples(written.tokens, lengths, ended)
        real, mask = self._masks(written.tokens.shape[1], lengths, ended)
        ascending = [self.readings[i] for i in self.seeds.group_ids.cpu().argsort().tolist()]
        pictures = self.encoder.pictures
        return Rollout(
            samples=samples,
            groups=self._groups,
            old=Decisions(logprobs=torch.where(mask, written.logprobs, 0.0)),
            mask=mask,
            max_decisions=self.encoder.max_new_tokens,
            trace=Trace(
                per_row={
                    "tokens": torch.where(real, written.tokens, 0),
                    "temperature": torch.full((len(samples),), self.sampler.scored_at),
                    **kept,
                },
                per_group={
                    "prompt": padded([reading.tokens for reading in ascending]),
                    "prompt_length": torch.tensor([len(reading.tokens) for reading in ascending]),
                    **({} if pictures is None else pictures.entries(ascending)),
                },
            ),
        )

    def _samples(self, tokens: Tensor, lengths: Sequence[int], ended: Sequence[bool]) -> list[Sample]:
        """What rewards see of tokens [B, T]."""
        infos: list[dict[str, Any]]
        token_ids = [row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)]
        if self.conversations is None:
            texts = [self.encoder.completion(ids) for ids in token_ids]
            ends = zip(lengths, ended, strict=True)
            infos = [{"finish": "stop" if end else "length", "tokens": length} for length, end in ends]
        else:
            texts, infos = self.conversations.outputs(), self.conversations.infos()
        for info, ids in zip(infos, token_ids, strict=True):
            info["token_ids"] = np.array(ids, dtype=np.int64)
        return [
            Sample(prompt=self.prompts[row // self.group_size], output=text, group=group, info=info)
            for row, (text, group, info) in enumerate(zip(texts, self._groups.tolist(), infos, strict=True))
        ]

    def _masks(self, columns: int, lengths: Sequence[int], ended: Sequence[bool]) -> tuple[Tensor, Tensor]:
        """[B, columns] twice: which tokens were written, and which of them are decisions that train."""
        column, length = torch.arange(columns), torch.tensor(lengths)
        real = column < length[:, None]
        decided = real
        if self.mask_truncated:
            decided = decided & torch.tensor(ended)[:, None]
        if self.conversations is not None:
            decided = decided & self.conversations.decided(columns)
        return real.to(self.device, non_blocking=True), decided.to(self.device, non_blocking=True)


class Pending:
    """A rollout that an engine writes, with the adapter as it is now.

    Args:
        engine: writes.
        asked: what.
        model: with the adapter that the engine gets.
        version: of its weights.
        stops: what ends a completion.
        logprobs: scores decisions of a rollout, as `Policy.logprobs` does.
        trains: on the samples, so an engine whose log-probs are not the policy's is refused.
        ahead: the weights may change before the result is asked for.
    """

    def __init__(
        self,
        engine: Engine,
        asked: Asked,
        *,
        model: Any,
        version: int,
        stops: Stops,
        logprobs: Callable[[Rollout, slice], Decisions],
        trains: bool,
        ahead: bool = False,
    ) -> None:
        self._engine, self._asked, self._model, self._version = engine, asked, model, version
        self._logprobs = logprobs
        engine.push(model, version)
        self._trains, self._compared = trains, trains and version > 0
        self._adapter = [p for p in model.parameters() if p.requires_grad]
        self._pushed = [p.detach().clone() for p in self._adapter] if self._compared and ahead else []
        self._completing = engine.begin(
            [reading.tokens for reading in asked.readings],
            asked.group_size,
            seeds=asked.seeds.row.tolist(),
            sampling={"temperature": asked.sampler.temperature, **asked.sampler.truncation},
            max_new_tokens=asked.encoder.max_new_tokens,
            stops=stops,
            trains=trains,
        )

    def result(self) -> Rollout:
        """Wait for the rollout.

        Raises:
            RunError: the engine failed, ignores the adapter, or states log-probs from before the temperature.
        """
        written, lengths, ended, kept = self._completing.result(self._asked.device)
        drawn = self._asked.rollout(written, lengths, ended, kept=kept)
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
        with adapter_off(self._model):
            base = self._scored(some)
        refuse_ignored_adapter(some.old.logprobs, policy, base, some.mask)

    def _scored(self, rollout: Rollout) -> Tensor:
        """The policy's log-probs: [b, t]."""
        return self._logprobs(rollout, slice(0, rollout.mask.shape[1])).logprobs.detach()


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
