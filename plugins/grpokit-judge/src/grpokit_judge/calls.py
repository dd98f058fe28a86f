"""One request to the judge: its place in the rate limit, new tries where they may help, and errors that say what to do.

The key is read from the environment for each request. It is in no attribute, and taken out of what the server says.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpokit import RewardError, UsageError
from grpokit.errors import brief, one_line
from grpokit_http.client import AnswerError, ask, error_in, public, secret

LONGEST_WAIT = 60.0
"""Seconds before a new try, at most, also where the server asks for more."""

_MOST_ANSWER = 4 * 2**20  # bytes

_AGAIN = (408, 409, 429)
"""HTTP states after which a new try may help, besides those from 500 on."""

_FILTERED = re.compile(r"content.?(filter|policy)|moderation|filtered|flagged|inspection|safety", re.IGNORECASE)
"""What a refusal says where the host does not want to see this picture."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class StoppedError(Exception):
    """Another request of the same call has failed for good."""


class FilteredError(Exception):
    """The host refuses this picture or its prompt, and would answer about others."""


class Pace:
    """Lets a request go each 60 / `per_minute` seconds, whichever thread it comes from; None: at once."""

    def __init__(self, per_minute: float | None) -> None:
        self.gap = 60.0 / per_minute if per_minute else 0.0
        self._next = -math.inf
        self._lock = threading.Lock()

    def wait(self, stop: threading.Event) -> None:
        """Wait for the next free place, or for `stop`."""
        with self._lock:
            place = max(self._next, time.monotonic())
            self._next = place + self.gap
        stop.wait(max(0.0, place - time.monotonic()))


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Sends requests to one address.

    Attributes:
        url: of the chat completions.
        api_key_env: the environment variable with the key; None: no key is sent.
        timeout: seconds that an answer may take.
        retries: new tries of a request.
        backoff: seconds before the first new try; doubled for each further one.
        pace: the rate limit.
    """

    url: str
    api_key_env: str | None
    timeout: float
    retries: int
    backoff: float
    pace: Pace = field(repr=False)

    def send(self, body: Mapping[str, Any], stop: threading.Event) -> tuple[dict[str, Any], int]:
        """Return the server's answer, and how many new tries it took.

        Raises:
            RewardError: the server refuses the request, or does not answer it after all tries.
            FilteredError: it refuses what the request shows.
            StoppedError: `stop` was set meanwhile.
        """
        for tries in range(self.retries + 1):
            self.pace.wait(stop)
            if stop.is_set():
                raise StoppedError
            try:
                return self._answer(body), tries
            except AnswerError as error:
                if error.status in (400, 403, 422) and _FILTERED.search(f"{error.code} {error}"):
                    raise FilteredError(str(error)) from None
                if error.status not in _AGAIN and error.status < 500:
                    raise RewardError(self._refusal(error)) from None
                reason, wait = str(error), error.wait
            except (OSError, ValueError) as error:  # the second: not an answer
                reason, wait = one_line(error), 0.0
            if tries < self.retries:
                stop.wait(min(LONGEST_WAIT, max(wait, self.backoff * 2**tries)))
        raise RewardError(
            f"{self.url} gave no answer in {self.retries + 1} tries; the last time: {reason}. Check that "
            "the server runs and is not overloaded. Lower concurrency or requests_per_minute, or raise retries or "
            "timeout. on_error: skip leaves such groups out."
        )

    def _answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = ask(
            self.url, json.dumps(body).encode(), key=key_in(self.api_key_env), timeout=self.timeout, most=_MOST_ANSWER
        )
        if not isinstance(answer, dict):
            raise ValueError(f"expected a JSON object, got {self.public(answer)}")
        if answer.get("error"):  # some services report those behind them in this way
            words = f"an answer with an error: {self.public(error_in(answer))}"
            raise FilteredError(words) if _FILTERED.search(str(answer["error"])) else ValueError(words)
        return answer

    def public(self, text: str) -> str:
        """What a server says, without the key."""
        return public(text, key_in(self.api_key_env))

    def _refusal(self, error: AnswerError) -> str:
        where = f"{self.url} refused a request ({error})."
        if error.status in (401, 403):
            if self.api_key_env:
                return f"{where} Check the key in the environment variable {self.api_key_env}, and what it may do."
            return f"{where} It wants a key: put it into an environment variable and give its name as api_key_env."
        if error.status == 404:
            return f"{where} Check url, which ends before /chat/completions, mostly in /v1, and the name of the model."
        if 300 <= error.status < 400:
            return f"{where} It points to {error.location}: give that as url."
        return f"{where} Check model, template and extra; a model must take pictures."


def key_in(variable: str | None) -> str:
    """The key in an environment variable; empty where none is to be sent.

    Raises:
        UsageError: this is no name of a variable, it is not set, or what it has cannot be sent.
    """
    if not variable:
        return ""
    if not _NAME.fullmatch(variable):  # it may be the key, and the message would be logged
        raise UsageError(
            "api_key_env is not the name of an environment variable: letters, digits and _. It is stored "
            "with the run, so if it is the key, put that into a variable and give its name."
        )
    if not (key := secret(variable)):
        raise UsageError(
            f"api_key_env: the environment variable {brief(variable)} is not set. Put the "
            "key there, and its name here; a server without keys needs neither."
        )
    return key
