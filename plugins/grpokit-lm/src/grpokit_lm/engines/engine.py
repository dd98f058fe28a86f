"""Completions that an engine writes, and what they need to be scored again."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpokit import RunError
from grpokit.files import share
from grpokit.sampling import mix
from grpokit_hf.models.weights import save_weights
from grpokit_hf.tokens.group_decoding import Written
from grpokit_hf.tokens.ragged import padded
from grpokit_lm.engines.protocol import Adapter, Answer, Host, Row
from grpokit_lm.stopping import Stops

_SPARE = 8  # log-probs beyond top_k: tokens as likely as the last one stay, too
_ROUNDING = 1e-3  # of a log-prob that should be 0
_IMPOSSIBLE = -9999.0  # a server's word for the log-prob of a token that cannot be drawn


def named(top_k: int) -> int:
    """How many of the likeliest tokens an engine must name to show which top_k has left."""
    return top_k + _SPARE if top_k else 1


class Engine:
    """Gives an engine the adapter that trains, and asks it for completions.

    Args:
        host: where the engine runs.
        vocabulary: the number of tokens of the policy's model.
        folder: where adapters are handed over; None for one of this machine's temporary folders.

    Attributes:
        temperature_checked: its log-probs were found to be those after the temperature.
    """

    temperature_checked = False

    def __init__(self, host: Host, *, vocabulary: int, folder: str | None = None) -> None:
        self.host, self.vocabulary = host, vocabulary
        self._folder = Path(tempfile.mkdtemp(prefix="grpokit-", dir=folder))
        self._shared = folder is not None  # with a server, whose user may be another
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._run, self._numbers = uuid.uuid4().hex[:8], itertools.count(1)
        self._loaded: list[Adapter] = []  # the latest is last
        self._known: int | None = None

    @property
    def overlaps(self) -> bool:
        """Whether it can draw while the policy learns."""
        return self.host.overlaps

    def awake(self) -> AbstractContextManager[Any]:
        """Inside, the engine has the memory that it draws with."""
        return self.host.awake()

    def push(self, adapted: nn.Module, version: int) -> None:
        """Let the engine draw from this version of the adapter; nothing if it does already.

        The version before stays there too, for completions may still be on their way.

        Raises:
            RunError: the engine does not take it.
        """
        if self._known == version:
            return
        number = next(self._numbers)
        name = f"grpokit-{self._run}-{number}"
        adapter = Adapter(version=version, number=number, name=name, folder=self._folder / name)
        adapter.folder.mkdir()
        save_weights(adapted, adapter.folder)
        if self._shared:
            share(self._folder)
        self.host.load(adapter)
        self._loaded.append(adapter)
        self._known = version
        while len(self._loaded) > 2:
            oldest = self._loaded.pop(0)
            self.host.unload(oldest)
            shutil.rmtree(oldest.folder, ignore_errors=True)

    def forget(self) -> None:
        """The weights were replaced, though they may have the version that the engine knows."""
        self._known = None

    def begin(
        self,
        prompts: Sequence[Tensor],
        group_size: int,
        *,
        seeds: Sequence[int],
        sampling: Mapping[str, Any],
        max_new_tokens: int,
        stops: Stops,
        trains: bool,
    ) -> Completing:
        """Begin to write `group_size` completions for each prompt, with the adapter that was pushed last.

        Args:
            prompts: P times token ids.
            group_size: G.
            seeds: B = P * G numbers; an engine that draws reproducibly gives a row the same completion again.
            sampling: temperature, top_k, top_p and min_p.
            max_new_tokens: the most tokens of a completion.
            stops: what ends one.
            trains: they will be scored again, which needs the tokens that top_k, top_p and min_p have left.
        """
        top_k = min(sampling["top_k"], self.vocabulary) if trains else 0
        options = {
            "max_tokens": max_new_tokens,
            "logprobs": min(named(top_k), self.vocabulary),
            "stop_token_ids": stops.tokens.tolist(),
            "stop": stops.texts,
            "include_stop_str_in_output": True,
            "ignore_eos": True,  # those that count are among stop_token_ids
            "repetition_penalty": 1.0,  # the model's own generation config may have another
            **sampling,
            "top_k": sampling["top_k"] or -1,
        }
        tokens = [prompt.tolist() for prompt in prompts]
        rows = [Row(prompt=tokens[row // group_size], seed=mix(seed) >> 1) for row, seed in enumerate(seeds)]
        return Completing(self, self.host.begin(self._loaded[-1], rows, options), stops, top_k)

    def check(self, answer: Answer) -> None:
        """Refuse an answer that is no completion of the policy's model.

        Raises:
            RunError: it is none.
        """
        if not answer.tokens or len(answer.tokens) != len(answer.logprobs):
            raise RunError(
                f"The {self.host.name} gave {len(answer.tokens)} tokens and {len(answer.logprobs)} log-probs; expected "
                "one for each, and at least one."
            )
        unknown = [token for token in answer.tokens if not 0 <= token < self.vocabulary]
        if unknown:
            raise RunError(
                f"The {self.host.name} drew token {unknown[0]}, and the policy's model has {self.vocabulary:,} tokens. "
                "Both must have the same base model."
            )
        wrong = [logprob for logprob in answer.logprobs if not -math.inf < logprob <= _ROUNDING]
        if wrong:
            raise RunError(
                f"The {self.host.name} states the log-prob {wrong[0]:g} for a token that it drew; expected a finite "
                "number up to 0."
            )

    def kept(self, answer: Answer, top_k: int) -> Tensor:
        """The tokens that each one of an answer was drawn from: [n, k] int32, filled up with the likeliest.

        Raises:
            RunError: the log-probs are not those of the truncated distribution.
        """
        if len(answer.likeliest) != len(answer.tokens):
            raise RunError(f"The {self.host.name} does not name the likeliest tokens, though it was asked to.")
        width = named(top_k) + 1  # and the token that was drawn
        sets = []
        for token, logprob, likeliest in zip(answer.tokens, answer.logprobs, answer.likeliest, strict=True):
            places = {**likeliest, token: logprob}.items()
            possible = sorted(((x, i) for i, x in places if x > _IMPOSSIBLE), reverse=True)[:width]
            if len(possible) > top_k and possible[top_k - 1][0] - possible[-1][0] > 1e-4:  # they are no ties
                raise RunError(
                    f"The {self.host.name} states log-probs of tokens that top_k {top_k} leaves out: they are those "
                    "before sampling. Start it with --logprobs-mode processed_logprobs."
                )
            ids = [i for _, i in possible]
            sets.append([*ids, *ids[:1] * (width - len(ids))])
        return torch.tensor(sets, dtype=torch.int32)


class Completing:
    """Completions that an engine is writing.

    Args:
        engine: checks them.
        parts: together have an answer for each row.
        stops: what ends a completion.
        top_k: find the tokens that a truncation to so many has left; 0 if nobody needs them.
    """

    def __init__(self, engine: Engine, parts: Sequence[Future[Sequence[Answer]]], stops: Stops, top_k: int) -> None:
        self._engine, self._parts, self._stops, self._top_k = engine, parts, stops, top_k

    def result(self, device: torch.device) -> tuple[Written, list[int], list[bool], dict[str, Tensor]]:
        """Wait for all of them.

        Args:
            device: where the result belongs.

        Returns:
            What was written; each completion's length, its end included; whether it has ended by itself; and for the
            trace `kept` [B, T, k], the tokens that each one was drawn from, if it was asked for.

        Raises:
            RunError: the engine refuses a request, does not answer, or gives other things than completions.
        """
        try:
            answers = [answer for part in self._parts for answer in part.result()]
        finally:
            self.cancel()
        for answer in answers:
            self._engine.check(answer)
        tokens = [torch.tensor(answer.tokens, dtype=torch.int64) for answer in answers]
        logprobs = [torch.tensor(answer.logprobs, dtype=torch.float32) for answer in answers]
        ends = [self._stops.lengths(row[None]) for row in tokens]  # an engine may also stop where its context is full
        written = Written(tokens=padded(tokens).to(device), logprobs=padded(logprobs).to(device))
        kept = {}
        if self._top_k:
            kept["kept"] = padded([self._engine.kept(answer, self._top_k) for answer in answers]).to(device)
        return written, [lengths[0] for lengths, _ in ends], [ended[0] for _, ended in ends], kept

    def cancel(self) -> None:
        """Ask for no more of them."""
        for part in self._parts:
            part.cancel()
