"""A reward that a service scores, on this machine or another: `placement: {http: URL}`."""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from grpokit import errors
from grpokit.errors import GrpokitError, UsageError, one_line, shown
from grpokit.remote.web import AnswerError, ask, checked_address, public, secret
from grpokit.remote.wire import PROTOCOL, to_json
from grpokit.rewards.asking import ENDING, Asking
from grpokit.rewards.scoring import score
from grpokit.rewards.submission import LATE, Pending, Portion, by_group
from grpokit.rewards.terms import RewardTerm
from grpokit.types import Sample

TOKEN = "GRPOKIT_REWARD_TOKEN"
"""The environment variable with the token, at both ends."""

_log = logging.getLogger(__name__)
_AT_ONCE = 4  # requests to one service
_PATIENCE = 60.0  # seconds without any answer after which nobody is asked again, as while a service starts anew
_LONGEST_PAUSE = 5.0
_ROUNDS = 20  # of all services for one portion, which may be the one that they do not survive


def place(use: str, params: Mapping[str, Any], timeout: float, *, urls: str | Sequence[str]) -> RemoteReward:
    """What `placement: {http: URL}` builds."""
    return RemoteReward([urls] if isinstance(urls, str) else urls, use=use, params=params, timeout=timeout)


class RemoteReward:
    """A reward that `grpokit serve-reward` runs.

    One request has the samples of one group. The groups are spread over the services, and one that does not answer is
    replaced by the next.

    Args:
        urls: of services of the same reward, such as "http://gpu-2:8009".
        use: the name of the reward that they must serve; empty: any, with any parameters.
        params: its parameters, which must be theirs.
        timeout: seconds that a service may take for one request.

    Raises:
        UsageError: an address is none.
    """

    def __init__(
        self, urls: Sequence[str], *, use: str = "", params: Mapping[str, Any] | None = None, timeout: float = 600.0
    ) -> None:
        if not isinstance(urls, Sequence) or not urls:
            raise UsageError(
                f"http is {shown(urls)}; expected an address such as http://gpu-2:8009, or a list of them."
            )
        instead = f"The token is read from {TOKEN}."
        self.urls = [checked_address(url, key="http", example="http://gpu-2:8009", instead=instead) for url in urls]
        self.use, self.params, self.timeout = use, dict(params or {}), timeout
        self._asking: Asking | None = None
        self._stop = threading.Event()
        self._answered = 0.0  # when a service last did
        self._most_body = math.inf  # bytes of a request that all services take
        self._silent: set[str] = set()  # services that did not answer the last time

    def start(self) -> None:
        """Ask the services what they are, and open for samples.

        Raises:
            UsageError: one does not answer, refuses the token, or serves another reward.
        """
        if self._asking is not None:
            return
        for url in self.urls:
            try:
                health = self._ask(f"{url}/health", None, timeout=min(self.timeout, 30.0))
            except (AnswerError, OSError, ValueError) as error:
                raise UsageError(
                    f"The reward service {url} {_how(error)}. Start it with `grpokit serve-reward "
                    f"{self.use or 'NAME'}`, and give both ends the same token ({TOKEN})."
                ) from error
            self._check(url, health)
            if isinstance(most := health.get("most_body"), int):
                self._most_body = min(self._most_body, most)
        self._stop.clear()
        shifted = [self.urls[i:] + self.urls[:i] for i in range(len(self.urls))]  # each service is somebody's first
        self._asking = Asking([partial(self._portion, urls) for urls in shifted * _AT_ONCE])

    def _check(self, url: str, health: Mapping[str, Any]) -> None:
        asked: list[tuple[str, Any, Any]] = [("speaks protocol", health.get("protocol"), PROTOCOL)]
        if self.use:
            asked.append(("serves the reward", health.get("reward"), self.use))
            asked.append(("has the parameters", _typed(health.get("params")), _typed(self.params)))
        for what, there, here in asked:
            if there != here:
                raise UsageError(
                    f"The reward service {url} {what} {public(there, secret(TOKEN))}, and the run asks for {here}. "
                    "Start it with what the run asks for, and with the same version of grpokit."
                )

    def submit(self, samples: Sequence[Sample]) -> Pending:
        """Hand out samples and return at once."""
        self.start()
        assert self._asking is not None
        return self._asking.submit(by_group(samples), samples)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Raises:
            RewardError: no service answered, or the reward failed on a row, which is named.
        """
        column = score([RewardTerm(name=self.use or "reward", reward=self)], samples).matrix[:, 0].tolist()
        return [float(x) for x in column]

    def close(self) -> None:
        """Send nothing more; a later call opens again."""
        self._stop.set()
        if self._asking is not None:
            self._asking.close()
        self._asking = None

    def _portion(self, urls: Sequence[str], rows: Sequence[int], samples: Sequence[Sample]) -> Portion:
        """Ask the services in turn, until one answers, or none of them has answered anybody for long.

        One that takes too long is not asked the same again.
        """
        body, pause, failed = to_json(samples), 0.1, 0.0
        if len(body) > self._most_body:
            size, most = len(body) / 2**20, self._most_body / 2**20
            raise UsageError(
                f"a group of samples takes {size:.1f} MB, and the service takes {most:g}. Start it with a larger "
                "--max-body."
            )
        for _ in range(_ROUNDS):
            too_late = False
            for url in urls:
                try:
                    portion = _read(self._ask(f"{url}/score", body, timeout=self.timeout), rows)
                    self._answered = time.monotonic()
                    self._silent.discard(url)
                    return portion
                except AnswerError as error:
                    raise UsageError(f"the service {url} {_how(error)}.") from error
                except TimeoutError:
                    how, too_late = f"gave no answer within {self.timeout:g} s {LATE}", True
                except (OSError, ValueError, KeyError, TypeError) as error:
                    how = _how(error)
                if url not in self._silent:
                    self._silent.add(url)
                    _log.warning("The reward service %s %s. It is asked again, and so are others.", url, how)
            failed = failed or time.monotonic()
            silent = time.monotonic() - max(failed, self._answered)
            if too_late or silent > _PATIENCE or not self._wait(pause):
                break
            pause = min(_LONGEST_PAUSE, 2 * pause)
        return Portion(rows=rows, failure=f"could not be asked: {', '.join(urls)} {how}")

    def _wait(self, seconds: float) -> bool:
        """Whether so much time has passed before the run was told to end, or this was closed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if ENDING.is_set() or self._stop.wait(min(0.2, left)):
                return False
        return True

    def _ask(self, url: str, body: bytes | None, *, timeout: float) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            AnswerError: the service will never accept it.
            OSError, ValueError: there is none, or it is not an answer.
        """
        try:
            answer = ask(url, body, key=secret(TOKEN), timeout=timeout)
        except AnswerError as error:
            if error.status < 500 and error.status != 408:
                raise
            raise OSError(str(error)) from error
        if not isinstance(answer, dict):
            raise ValueError("an answer that is no object")
        return answer


def _read(answer: Mapping[str, Any], rows: Sequence[int]) -> Portion:
    """What a service says of some rows.

    Raises:
        ValueError, KeyError, TypeError: it is not an answer.
    """
    (part,) = answer["portions"]
    values = [value if isinstance(value, (int, float)) else _said(value) for value in part["values"] or []]
    failure, error = part["failure"], None
    if part["error"]:
        name, words = part["error"]
        kind = vars(errors).get(name)
        error = (kind if isinstance(kind, type) and issubclass(kind, GrpokitError) else UsageError)(_said(words))
    return Portion(rows=rows, values=values, failure=failure and _said(failure), error=error)


def _said(words: Any) -> str:
    return public(words, secret(TOKEN), most=2000)


def _typed(params: Any) -> str:
    """Parameters as somebody types them."""
    if not isinstance(params, Mapping) or not params:
        return "of its defaults"
    return " ".join(f"{name}={value}" for name, value in sorted(params.items()))


def _how(error: BaseException) -> str:
    if isinstance(error, AnswerError):
        return f"refused the request ({error})"
    reason = getattr(error, "reason", error)
    hint = "; does it speak http:// in place of https://?" if isinstance(reason, ssl.SSLError) else ""
    return f"did not answer ({one_line(reason) if isinstance(reason, BaseException) else reason}{hint})"
