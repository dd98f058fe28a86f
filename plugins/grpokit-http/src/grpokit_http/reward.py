"""The run's end of a reward that a service scores, on this machine or another: `placement: {http: URL}`."""

from __future__ import annotations

import json
import logging
import math
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from grpokit import Portion, Sample
from grpokit.errors import UsageError, brief, one_line
from grpokit.rewards.remote import ENDING, RewardElsewhere, ScoreRequest
from grpokit.rewards.submission import from_message
from grpokit_http.client import AnswerError, ask, checked_address, public, secret
from grpokit_http.wire import PROTOCOL, to_json

TOKEN = "GRPOKIT_REWARD_TOKEN"
"""The environment variable with the token, at both ends."""

_log = logging.getLogger(__name__)
_AT_ONCE = 4  # requests to one service
_PATIENCE = 60.0  # seconds for which one portion is offered again, as while a service restarts
_LONGEST_PAUSE = 1.0


def place(use: str, params: Mapping[str, Any], timeout: float, *, urls: str | Sequence[str]) -> RemoteReward:
    """What `placement: {http: URL}` builds.

    Args:
        use: the reward's name.
        params: its parameters.
        timeout: seconds that a service may take for one request.
        urls: of services of the same reward, such as "http://gpu-2:8009".
    """
    several = [urls] if isinstance(urls, str) else urls
    reward = RemoteReward(several, use=use, params=params, timeout=timeout)
    reward.start()
    return reward


class RemoteReward(RewardElsewhere):
    """A reward that `grpokit serve-reward` runs.

    One request has the samples of one group. The groups are spread over the services, and one that does not answer is
    replaced by the next.

    Args:
        urls: of services of the same reward, such as "http://gpu-2:8009".
        use: the name of the reward that they must serve; empty: any, with any parameters.
        params: its parameters, which must be theirs.
        timeout: seconds that a service may take for one request.

    Raises:
        UsageError: an address is not valid.
    """

    def __init__(
        self, urls: Sequence[str], *, use: str = "", params: Mapping[str, Any] | None = None, timeout: float = 600.0
    ) -> None:
        if not isinstance(urls, Sequence) or not urls:
            raise UsageError(
                f"http is {brief(urls)}; expected an address such as http://gpu-2:8009, or a list of them."
            )
        instead = f"The token is read from {TOKEN}."
        self.urls = [checked_address(url, key="http", example="http://gpu-2:8009", instead=instead) for url in urls]
        super().__init__(use, params)
        self.timeout = timeout
        self._stop = threading.Event()
        self._silent: set[str] = set()  # services that did not answer the last time

    def connect(self) -> Sequence[ScoreRequest]:
        """Ask the services what they are.

        Raises:
            UsageError: one does not answer, refuses the token, or serves another reward.
        """
        for url in self.urls:
            self._check(url)
        self._stop.clear()
        count = len(self.urls)
        shifted = [self.urls[i:] + self.urls[:i] for i in range(count)]  # each service is the first of some
        return [partial(self._portion, urls) for urls in shifted * _AT_ONCE]

    def disconnect(self) -> None:
        """Ask no service again."""
        self._stop.set()

    def _check(self, url: str) -> None:
        try:
            health = ask(f"{url}/health", key=secret(TOKEN), timeout=min(self.timeout, 30.0))
            if type(health["protocol"]) is not int:
                raise TypeError("a protocol is not a whole number")
            name = str(health["reward"])
            there = health["protocol"], _described(name, health["params"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            parameters = [shlex.quote(f"{name}={json.dumps(value)}") for name, value in self.params.items()]
            command = " ".join(["grpokit serve-reward", self.use or "NAME", *parameters])
            raise UsageError(
                f"The reward service {url} {_how(error)}. Start it with `{command}`, and give both ends the "
                f"same token ({TOKEN})."
            ) from error
        asked = name if _alike(name, self.use) else self.use
        here = PROTOCOL, _described(asked, self.params) if self.use else there[1]
        if there != here:
            protocol, served = (public(words, secret(TOKEN)) for words in there)
            raise UsageError(
                f"The reward service {url} serves {served} in protocol {protocol}, and the run asks for {here[1]} in "
                f"protocol {here[0]}. Start it with what the run asks for, and with the same version of grpokit-http."
            )

    def _portion(self, urls: Sequence[str], rows: Sequence[int], samples: Sequence[Sample]) -> Portion:
        """Ask the services in turn until one answers, or none has for long; one that is too slow is not retried."""
        body, pause, end = to_json(samples), 0.1, math.inf
        while True:
            too_late = False
            for url in urls:
                try:
                    answer = ask(f"{url}/score", body, key=secret(TOKEN), timeout=self.timeout)
                    found = _read(answer, rows)
                    self._silent.discard(url)
                    return found
                except TimeoutError:
                    how, too_late = f"gave no answer within {self.timeout:g} s (reward_timeout)", True
                except (OSError, ValueError, KeyError, TypeError) as error:
                    how = _how(error)
                    if isinstance(error, AnswerError) and error.status < 500 and error.status != 408:
                        raise UsageError(f"the service {url} {how}.") from error
                if url not in self._silent:
                    self._silent.add(url)
                    _log.warning("The reward service %s %s. It is asked again, and so are others.", url, how)
            end = min(end, time.monotonic() + _PATIENCE)
            if too_late or time.monotonic() >= end or self._stop.wait(pause) or ENDING.is_set():
                return Portion(rows=rows, failure=f"could not be asked: {', '.join(urls)} {how}")
            pause = min(_LONGEST_PAUSE, 2 * pause)


def _read(answer: Mapping[str, Any], rows: Sequence[int]) -> Portion:
    """What a service says of the rows of one group."""
    ((values, failure, error),) = answer["portions"]
    if not isinstance(failure, str):
        raise TypeError("a failure is not in words")
    token = secret(TOKEN)
    if error is not None:
        kind, words, page = error
        error = [kind, public(words, token, most=2000), public(page, token)]
    return from_message(rows, [values, public(failure, token, most=2000), error])


def _alike(one: str, other: str) -> bool:
    """Whether two names mean one reward: its distribution may stand in front. A module's name has no hyphen."""
    short, long = sorted((one, other), key=len)
    if long == short:
        return True
    return "-" in long.partition(":")[0] and long.endswith(f":{short}")


def _described(use: str, params: Mapping[str, Any]) -> str:
    """A reward and its parameters as someone types them."""
    words = [f"{name}={value}" for name, value in sorted(params.items())]
    return " ".join([use, *words])


def _how(error: Exception) -> str:
    if not isinstance(error, OSError):
        return "gave an answer that is none of a reward service"
    return f"{'refused the request' if isinstance(error, AnswerError) else 'did not answer'} ({one_line(error)})"
