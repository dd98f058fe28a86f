"""A server with vLLM's protocol, on another GPU or machine.

`/v1/completions` takes token ids and gives them back with `return_token_ids`
(https://github.com/vllm-project/vllm/pull/22587), `/v1/load_lora_adapter` and `/v1/unload_lora_adapter` change adapters
(https://docs.vllm.ai/en/latest/features/lora/). The server must see the adapter's folder under the same path.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from operator import index
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Annotated, Any

from annotated_types import Ge

from grpokit import RunError, UsageError
from grpokit.errors import one_line, plural
from grpokit.settings import Count, Positive, Settings
from grpokit_http.client import AnswerError, ask, checked_address, public, secret
from grpokit_lm.engines.protocol import Adapter, Answer, Row

_MOST_ANSWER = 256 * 2**20  # bytes; the likeliest tokens of a long text take some
_BUSY = (408, 429, 502, 503, 504)  # answers that may be others a moment later


@dataclass(frozen=True, kw_only=True)
class ServerSettings(Settings):
    """The keys of `engine` for a server.

    Attributes:
        url: of the server; a list: each process takes the next one.
        model: the base model's name there; None for the only one.
        adapters: a folder that the server sees under the same path; None for one of this machine's temporary folders.
        api_key_env: the environment variable with the server's key.
        concurrency: requests at a time.
        timeout: seconds that an answer may take.
        retries: new tries of a request that got no answer.
    """

    url: str | Sequence[str]
    model: str | None = None
    adapters: str | None = None
    api_key_env: str | None = None
    concurrency: Count = 64
    timeout: Positive = 600.0
    retries: Annotated[int, Ge(0)] = 4

    def check_together(self) -> None:
        """Refuse an address that is none, or that holds a password.

        Raises:
            UsageError: with what to change.
        """
        for url in self._urls or [""]:
            checked_address(
                url,
                key="engine: url",
                example="http://gpu-2:8000",
                instead="Put it into an environment variable and give its name as api_key_env.",
            )

    def check_here(self) -> None:
        """Nothing of this machine is needed."""

    @property
    def own_url(self) -> str:
        """The address that this process uses."""
        return self._urls[int(os.environ.get("RANK", "0")) % len(self._urls)].rstrip("/").removesuffix("/v1")

    @property
    def _urls(self) -> list[str]:
        return [self.url] if isinstance(self.url, str) else list(self.url)


class Server:
    """Speaks with a server.

    Args:
        settings: where, and how.
        base: what the policy calls its base model.

    Raises:
        UsageError: there is no such model at the server.
        RunError: no server answers.
    """

    overlaps = True

    def __init__(self, settings: ServerSettings, *, base: str) -> None:
        self.settings, self.url = settings, settings.own_url
        self.name = f"engine at {self.url}"
        self.model = self._find(base)

    def _find(self, base: str) -> str:
        answer = self._get("/v1/models")
        try:
            names = [str(entry["id"]) for entry in answer["data"] if not entry.get("parent")]
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"engine: {self.url}/v1/models gives no list of models, as vLLM's server does, but "
                f"{self._public(answer)}. Check engine: url."
            ) from error
        wanted = self.settings.model or (base if base in names else None)
        if wanted is None and len(names) == 1:
            return names[0]
        if wanted not in names:
            raise UsageError(
                f"engine: {self.url} serves {self._public(', '.join(names)) or 'nothing'}, not '{wanted or base}'. Set "
                "engine: model."
            )
        return wanted

    def load(self, adapter: Adapter) -> None:
        """Let the server read an adapter."""
        self._send("/v1/load_lora_adapter", {"lora_name": adapter.name, "lora_path": str(adapter.folder)})

    def unload(self, adapter: Adapter) -> None:
        """Let the server forget an adapter, which would only take room there."""
        with suppress(RunError):
            self._send("/v1/unload_lora_adapter", {"lora_name": adapter.name})

    def awake(self) -> AbstractContextManager[Any]:
        """A server is always awake."""
        return nullcontext()

    def begin(
        self, adapter: Adapter, rows: Sequence[Row], options: Mapping[str, Any]
    ) -> Sequence[Future[Sequence[Answer]]]:
        """Send a request for each row."""
        common = {
            "model": adapter.name,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # the likeliest ones, too, have ids as names
            **options,
        }

        def ask(row: Row) -> Sequence[Answer]:
            answer = self._send("/v1/completions", {**common, "prompt": row.prompt, "seed": row.seed})
            return [self._read(answer, likeliest=options["logprobs"] > 1)]

        jobs: SimpleQueue[tuple[Row, Future[Sequence[Answer]]]] = SimpleQueue()
        parts: list[Future[Sequence[Answer]]] = [Future() for _ in rows]
        for job in zip(rows, parts, strict=True):
            jobs.put(job)

        def work() -> None:
            with suppress(Empty):
                while True:
                    row, part = jobs.get_nowait()
                    if part.set_running_or_notify_cancel():
                        try:
                            part.set_result(ask(row))
                        except BaseException as error:
                            part.set_exception(error)

        for _ in range(min(self.settings.concurrency, len(rows))):
            Thread(target=work, name="engine", daemon=True).start()  # a run that is aborted does not wait for them
        return parts

    def _read(self, answer: Any, *, likeliest: bool) -> Answer:
        try:
            choice = answer["choices"][0]
            stated = choice["logprobs"]
            places = stated["top_logprobs"] if likeliest else ()
            return Answer(
                tokens=[index(token) for token in choice["token_ids"]],
                logprobs=[float(logprob) for logprob in stated["token_logprobs"]],
                likeliest=[
                    {int(name.removeprefix("token_id:")): float(logprob) for name, logprob in place.items()}
                    for place in places
                ],
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"The {self.name} gave no token ids with log-probs ({self._public(error)}): {self._public(answer)}. It "
                "must know return_token_ids, as vLLM does since 0.10.2."
            ) from error

    def _get(self, path: str) -> Any:
        return self._answer(path, None)

    def _send(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._answer(path, json.dumps(body).encode())

    def _key(self) -> str:
        name = self.settings.api_key_env
        key = secret(name) if name else ""
        if name and not key:
            raise UsageError(f"engine: the environment variable {name} (api_key_env) is empty. Put the key into it.")
        return key

    def _public(self, words: Any) -> str:
        return public(words, self._key())

    def _answer(self, path: str, body: bytes | None) -> Any:
        """The JSON of an answer, or its text where it has none."""
        url, key = self.url + path, self._key()
        for tries in range(self.settings.retries + 1):
            try:
                return ask(url, body, key=key, timeout=self.settings.timeout, most=_MOST_ANSWER)
            except AnswerError as error:
                reason = str(error)
                if 300 <= error.status < 400:
                    reason += f", which points to {error.location}"
                if error.status not in _BUSY:
                    raise RunError(f"The engine refused {path}: {reason}.{_hint(path, reason)}") from None
            except OSError as error:
                reason = one_line(error)
            if tries < self.settings.retries:
                time.sleep(min(10.0, 0.2 * 4**tries))
        raise RunError(
            f"The {self.name} gave no answer in {plural(self.settings.retries + 1, 'attempt')}; the last time: "
            f"{reason}. Check that it runs. Continue a run that had begun with --resume."
        )


def _hint(path: str, reason: str) -> str:
    if "lora" in path:
        return (
            " Start the server with --enable-lora, a --max-lora-rank of at least the adapter's r, and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True; it must see the adapter's folder under the same path (engine: "
            "adapters)."
        )
    if "logprobs" in reason:
        return " A truncated distribution needs top_k + 8 of them: start the server with --max-logprobs."
    return ""
