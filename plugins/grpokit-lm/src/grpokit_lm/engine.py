"""Completions that an engine writes: a server that speaks the protocol of vLLM, on another GPU or machine.

The engine holds the base model. The adapter that trains is written to a folder that both can see, and loaded there
under a new name after each update. The engine states the log-prob of each token that it drew. Those are the sampler's,
never the old ones of the policy, for its kernels round in another way.

The protocol is that of vLLM's OpenAI-compatible server: `/v1/completions` takes token ids and gives them back with
`return_token_ids` (https://github.com/vllm-project/vllm/pull/22587), `/v1/load_lora_adapter` and
`/v1/unload_lora_adapter` change adapters (https://docs.vllm.ai/en/latest/features/lora/).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import uuid
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn

from grpokit import RunError, UsageError, knobs
from grpokit.errors import counted, one_line, shown
from grpokit.hf.settings import read_settings
from grpokit.hf.weights import save_weights
from grpokit.knobs import Count, Positive
from grpokit.policies.group_decoding import Written
from grpokit.policies.ragged import padded
from grpokit.sampling import mix
from grpokit_lm.stopping import Stops

_EXAMPLE = "{url: 'http://gpu-2:8000'}"
_NOISE = 8.0  # standard errors by which log-probs must speak for the base before an adapter counts as ignored


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The keys of `engine`.

    Attributes:
        url: of the server; a list: each process takes the next one.
        model: the base model's name there; None for the only one.
        adapters: a folder that the server sees under the same path; None for one of this machine's temporary folders.
        api_key_env: the environment variable with the server's key.
        concurrency: requests at a time.
        timeout: seconds without a sign of the server.
        retries: new tries of a request that got no answer.
    """

    url: str | Sequence[str]
    model: str | None = None
    adapters: str | None = None
    api_key_env: str | None = None
    concurrency: Count = 64
    timeout: Positive = 600.0
    retries: Annotated[int, Ge(0)] = 4

    def __post_init__(self) -> None:
        urls = [self.url] if isinstance(self.url, str) else self.url
        if not urls or not all(isinstance(url, str) and url.startswith(("http://", "https://")) for url in urls):
            raise UsageError(f"engine: url must be an address such as 'http://gpu-2:8000', got {shown(self.url)}.")
        knobs.check(self)

    @classmethod
    def read(cls, given: Any) -> EngineSettings:
        """The settings of a mapping.

        Raises:
            UsageError: a key is unknown or missing, or a value is out of bounds.
        """
        if isinstance(given, Mapping) and "url" not in given:
            raise UsageError(f"engine needs the server's url, such as {_EXAMPLE}.")
        return read_settings(cls, given, key="engine", example=_EXAMPLE)

    @property
    def own_url(self) -> str:
        """The address that this process uses."""
        urls = [self.url] if isinstance(self.url, str) else self.url
        return urls[int(os.environ.get("RANK", "0")) % len(urls)].rstrip("/").removesuffix("/v1")


class Engine:
    """Writes completions on a server.

    Args:
        settings: where, and how.
        base: what the policy calls its base model.
        vocabulary: the number of tokens of the policy's model.

    Raises:
        UsageError: there is no such model at the server.
        RunError: no server answers.
    """

    def __init__(self, settings: EngineSettings, *, base: str, vocabulary: int) -> None:
        self.settings, self.url, self.vocabulary = settings, settings.own_url, vocabulary
        self.model = self._find(base)
        self._folder = Path(tempfile.mkdtemp(prefix="grpokit-", dir=settings.adapters))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._run, self._pushes = uuid.uuid4().hex[:8], itertools.count()
        self._loaded: list[tuple[int, str]] = []  # versions of the adapter and their names there; the latest is last

    def _find(self, base: str) -> str:
        names = [entry["id"] for entry in self._get("/v1/models")["data"] if not entry.get("parent")]
        wanted = self.settings.model or (base if base in names else None)
        if wanted is None and len(names) == 1:
            return str(names[0])
        if wanted not in names:
            raise UsageError(
                f"engine: {self.url} serves {', '.join(names) or 'nothing'}, not '{wanted or base}'. Set engine: model."
            )
        return wanted

    def push(self, adapted: nn.Module, version: int) -> None:
        """Let the server draw from this version of the adapter; nothing if it does already.

        The version before stays there too, for completions may still be on their way.

        Raises:
            RunError: the server does not take it.
        """
        if self._loaded and self._loaded[-1][0] == version:
            return
        name = f"grpokit-{self._run}-{next(self._pushes)}"
        folder = self._folder / name
        folder.mkdir()
        save_weights(adapted, folder)
        self._send("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        self._loaded.append((version, name))
        while len(self._loaded) > 2:
            _, oldest = self._loaded.pop(0)
            with suppress(RunError):  # it only takes room there
                self._send("/v1/unload_lora_adapter", {"lora_name": oldest})
            shutil.rmtree(self._folder / oldest, ignore_errors=True)

    def forget(self) -> None:
        """The weights were replaced, though they may have the version that the server knows."""
        self._loaded = [(-1, name) for _, name in self._loaded]

    def begin(
        self,
        prompts: Sequence[Tensor],
        group_size: int,
        *,
        seeds: Sequence[int],
        sampling: Mapping[str, Any],
        max_new_tokens: int,
        stops: Stops,
    ) -> Completing:
        """Begin to write `group_size` completions for each prompt, with the adapter that was pushed last.

        Args:
            prompts: P times token ids.
            group_size: G.
            seeds: B = P * G numbers; a server that draws reproducibly gives a row the same completion again.
            sampling: temperature, top_k, top_p and min_p.
            max_new_tokens: the most tokens of a completion.
            stops: what ends one.
        """
        common = {
            "model": self._loaded[-1][1],
            "max_tokens": max_new_tokens,
            "logprobs": 1,
            "return_token_ids": True,
            "stop_token_ids": stops.tokens.tolist(),
            "stop": stops.texts,
            "include_stop_str_in_output": True,
            "ignore_eos": True,  # those that count are among stop_token_ids
            "repetition_penalty": 1.0,  # the model's own generation config may have another
            **sampling,
            "top_k": sampling["top_k"] or -1,
        }

        def ask(row: int) -> tuple[Tensor, Tensor]:
            body = {**common, "prompt": prompts[row // group_size].tolist(), "seed": mix(seeds[row]) >> 1}
            return self._completion(self._send("/v1/completions", body))

        threads = ThreadPoolExecutor(self.settings.concurrency)
        rows = [threads.submit(ask, row) for row in range(len(seeds))]
        threads.shutdown(wait=False)
        return Completing(rows, stops)

    def _completion(self, answer: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Token ids and log-probs of an answer: [n] each."""
        try:
            choice = answer["choices"][0]
            tokens = torch.tensor(choice["token_ids"], dtype=torch.int64)
            logprobs = torch.tensor(choice["logprobs"]["token_logprobs"], dtype=torch.float32)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RunError(
                f"The engine at {self.url} gave no token ids with log-probs ({one_line(error)}): {shown(answer)}. It "
                "must know return_token_ids, as vLLM does since 0.10.2."
            ) from error
        if tokens.shape != logprobs.shape or tokens.ndim != 1 or not len(tokens):
            raise RunError(
                f"The engine at {self.url} gave {tokens.numel()} tokens and {logprobs.numel()} log-probs; expected one "
                "for each, and at least one."
            )
        if int(tokens.max()) >= self.vocabulary or int(tokens.min()) < 0:
            raise RunError(
                f"The engine at {self.url} drew token {int(tokens.max())}, and the policy's model has "
                f"{self.vocabulary:,} tokens. Both must have the same base model."
            )
        return tokens, logprobs

    def _get(self, path: str) -> Any:
        return self._answer(urllib.request.Request(self.url + path, headers=self._headers()))

    def _send(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._answer(urllib.request.Request(self.url + path, json.dumps(body).encode(), self._headers()))

    def _headers(self) -> dict[str, str]:
        name = self.settings.api_key_env
        if name is None:
            return {"Content-Type": "application/json"}
        key = os.environ.get(name, "")
        if not key:
            raise UsageError(f"engine: the environment variable {name} (api_key_env) is empty. Put the key into it.")
        return {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def _answer(self, request: urllib.request.Request) -> Any:
        """The JSON of an answer, or its text where it has none."""
        for tries in range(self.settings.retries + 1):
            try:
                with urllib.request.urlopen(request, timeout=self.settings.timeout) as reply:
                    text = reply.read().decode()
                try:
                    return json.loads(text)
                except ValueError:
                    return text
            except urllib.error.HTTPError as error:
                with error:
                    reason = f"{error.code}, {one_line(error.read(2000).decode(errors='replace'), most=300)}"
                if error.code < 500 and error.code not in (408, 429):
                    raise RunError(f"The engine refused {request.selector}: {reason}.{_hint(request)}") from None
            except (OSError, HTTPException) as error:
                reason = one_line(error)
            if tries < self.settings.retries:
                time.sleep(min(10.0, 0.2 * 4**tries))
        raise RunError(
            f"The engine at {self.url} gave no answer in {counted(self.settings.retries + 1, 'attempt')}; the last "
            f"time: {reason}. Check that it runs. A run that had begun goes on with --resume."
        )


class Completing:
    """Completions that a server is writing.

    Args:
        rows: give token ids and log-probs, [n] each.
        stops: what ends a completion.
    """

    def __init__(self, rows: Sequence[Future[tuple[Tensor, Tensor]]], stops: Stops) -> None:
        self._rows, self._stops = rows, stops

    def result(self, device: torch.device) -> tuple[Written, list[int], list[bool]]:
        """Wait for all of them.

        Args:
            device: where the result belongs.

        Returns:
            What was written; each completion's length, its end included; whether it has ended by itself.

        Raises:
            RunError: the server refuses a request, does not answer, or gives other things than completions.
        """
        try:
            tokens, logprobs = zip(*(row.result() for row in self._rows), strict=True)
        finally:
            self.cancel()
        ends = [self._stops.lengths(row[None]) for row in tokens]  # a server may also stop where its context is full
        written = Written(tokens=padded(tokens).to(device), logprobs=padded(logprobs).to(device))
        return written, [lengths[0] for lengths, _ in ends], [ended[0] for _, ended in ends]

    def cancel(self) -> None:
        """Ask for no more of them."""
        for row in self._rows:
            row.cancel()


def refuse_ignored_adapter(stated: Tensor, policy: Tensor, base: Tensor, mask: Tensor) -> None:
    """Stop where an engine's log-probs are those of the base model, and not of the adapter that was pushed.

    With e = stated, the sum of (e - base)^2 - (e - policy)^2 is about +G for an engine that uses the adapter and -G for
    one that does not, where G is the sum of (policy - base)^2. The engine's rounding s adds a normal error of 2 s
    sqrt(G). So an engine is only accused where -G is far outside of that.

    Args:
        stated: [b, t] log-probs of the engine.
        policy: [b, t] those of the policy for the same tokens.
        base: [b, t] those without the adapter.
        mask: [b, t] bool.

    Raises:
        RunError: the adapter is ignored.
    """
    e, p, r = (x[mask].double().cpu() for x in (stated, policy, base))
    if not len(e):
        return
    total, gap = float(((e - r) ** 2 - (e - p) ** 2).sum()), float(((p - r) ** 2).sum())
    rounding = float(((e - r) ** 2).mean()) ** 0.5
    if total + _NOISE * 2 * rounding * gap**0.5 < 0 < gap:
        near, far = (float((e - other).abs().mean()) for other in (r, p))
        raise RunError(
            f"The engine ignores the adapter: its log-probs differ from the base model's by {near:.2g} on average, and "
            f"from the policy's by {far:.2g}. "
            "Start it with --enable-lora, a --max-lora-rank of at least the adapter's r, the same base model and, for "
            "a temperature other than 1, --logprobs-mode processed_logprobs."
        )


def _hint(request: urllib.request.Request) -> str:
    if "lora" not in request.selector:
        return ""
    return (
        " Start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True; it must see the folder of the "
        "adapter under the same path (engine: adapters)."
    )
