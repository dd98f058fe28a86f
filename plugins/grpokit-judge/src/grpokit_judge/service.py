"""A vision-language model behind an OpenAI-compatible URL, which is asked about pictures: what all judges share."""

from __future__ import annotations

import atexit
import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar

from grpokit import GrpokitError, RewardError, UsageError
from grpokit.errors import brief, plural, reword
from grpokit_http.client import checked_address
from grpokit_judge.answers import words
from grpokit_judge.calls import Caller, FilteredError, Pace, StoppedError, key_in
from grpokit_judge.questions import Content
from grpokit_judge.threads import in_threads
from grpokit_judge.usage import Usage

T = TypeVar("T")
Read: TypeAlias = Callable[[Mapping[str, Any], int], T | None]
"""From a server's answer to the question of a number, to what was asked for; None if it is not there."""


@dataclass(kw_only=True, eq=False)
class Service:
    """A model that answers questions about pictures.

    Args:
        url: of the API, such as "http://localhost:8000/v1"; "/chat/completions" is added.
        model: the server's name of the model.
        api_key_env: the name of the environment variable with the key; None: no key is sent.
        concurrency: requests at the same time.
        requests_per_minute: the rate limit, new tries included; None: there is none.
        retries: new tries of a request that the server did not answer, or whose answer lacks what was asked for.
        backoff: seconds before the first new try; doubled for each further one.
        timeout: seconds that an answer may take.
        max_tokens: of an answer; None: the field is left out, as some models want it.
        temperature: of the judge; 0 comes nearest to the same answer for the same picture. None: left out.
        max_side: the longer side of a picture that is sent, in pixels; larger ones are scaled down.
        input_price: of a million tokens that are sent, for the count of the cost.
        output_price: of a million tokens of answers.
        max_cost: the run stops when so much is spent; needs both prices.
        extra: further fields of the request, such as {"seed": 0}; not messages, stream or n.

    Raises:
        UsageError: a parameter cannot be used, or the environment variable is not set.
    """

    name: ClassVar[str]

    url: str
    model: str
    api_key_env: str | None = None
    concurrency: int = 8
    requests_per_minute: float | None = None
    retries: int = 5
    backoff: float = 1.0
    timeout: float = 60.0
    max_tokens: int | None = 256
    temperature: float | None = 0.0
    max_side: int = 1024
    input_price: float | None = None
    output_price: float | None = None
    max_cost: float | None = None
    extra: Mapping[str, Any] | None = None
    usage: Usage = field(init=False, repr=False)
    caller: Caller = field(init=False, repr=False)
    fields: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_tokens", "max_side"):
            self._check(name, least=1)
        for name in ("retries", "backoff", "temperature", "input_price", "output_price"):
            self._check(name, least=0)
        for name in ("timeout", "requests_per_minute", "max_cost"):
            self._check(name)
        if self.max_cost is not None and (self.input_price is None or self.output_price is None):
            raise UsageError(f"{self.name}: max_cost needs input_price and output_price, each for a million tokens.")
        key_in(self.api_key_env)
        if not self.model.strip():
            raise UsageError(f"{self.name}: model is empty; expected the server's name of a model.")
        fixed = sorted({"messages", "stream", "n"} & set(self.extra or {}))
        if fixed:
            raise UsageError(
                f"{self.name}: extra has '{fixed[0]}', which the judge sets by itself: it asks one question and reads "
                "one answer, in one piece."
            )
        fields = {"model": self.model, "max_tokens": self.max_tokens, "temperature": self.temperature}
        fields |= self.extra or {}
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.usage = Usage(input_price=self.input_price, output_price=self.output_price, max_cost=self.max_cost)
        self.caller = Caller(
            url=_address(self.url, self.name),
            api_key_env=self.api_key_env,
            timeout=self.timeout,
            retries=self.retries,
            backoff=self.backoff,
            pace=Pace(self.requests_per_minute),
        )
        self._warned = False
        atexit.register(self.usage.show, now=True)

    def ask(self, questions: Sequence[Content | None], read: Read[T], *, wanted: str, remedy: str) -> list[T | None]:
        """Ask questions, several at a time.

        Args:
            questions: the contents of messages; None for what cannot be asked.
            read: called with an answer and the number of its question.
            wanted: what an answer should have, for messages.
            remedy: what to do where it is not there.

        Returns:
            For each question what was read; None without a question or without what was wanted.

        Raises:
            RewardError: the server cannot be used, no answer has what was wanted, or max_cost is reached.
        """
        asked = [i for i, content in enumerate(questions) if content is not None]
        stop = threading.Event()

        def answered(i: int) -> tuple[T | None, str]:
            try:
                return self._answered(questions[i], i, read, stop)
            except FilteredError:  # which says nothing of the others
                self.usage.note(unread=1)
                raise
            except BaseException:
                stop.set()  # the others need not wait for their new tries
                raise

        try:
            futures = in_threads(answered, asked, most=self.concurrency)
            errors = [error for future in futures if (error := future.exception()) is not None]
        except BaseException:  # the user's Ctrl-C, which does not wait for answers
            stop.set()
            raise
        self.usage.show()
        for error in errors:
            if isinstance(error, GrpokitError):
                raise reword(error, f"{self.name}: {error}") from error
            if not isinstance(error, (StoppedError, FilteredError)):
                raise error
        results: list[T | None] = [None] * len(questions)
        unread = []
        for i, future in zip(asked, futures, strict=True):
            if future.exception() is None:
                results[i], text = future.result()
                if results[i] is None:
                    unread.append(text)
        if errors and not unread:
            remedy = "The service refuses what they show. Change the prompts, or take another judge."
        self._report(unread + list(map(str, errors)), len(asked), wanted=wanted, remedy=remedy)
        return results

    def _answered(
        self, content: Content | None, number: int, read: Read[T], stop: threading.Event
    ) -> tuple[T | None, str]:
        """What was read of one answer and the judge's words; None after as many tries without it."""
        body = {**self.fields, "messages": [{"role": "user", "content": content}]}
        text = ""
        for _ in range(self.retries + 1):
            self.usage.check()
            answer, again = self.caller.send(body, stop)
            self.usage.add(answer.get("usage"))
            self.usage.note(retries=again)
            result, (text, _) = read(answer, number), words(answer)
            if result is not None:
                return result, text
            if self.fields.get("temperature") == 0:
                break  # the same question would get the same answer
        self.usage.note(unread=1)
        return None, text

    def _report(self, unread: Sequence[str], asked: int, *, wanted: str, remedy: str) -> None:
        """Say once that answers lack something; stop where all do."""
        if not unread:
            return
        example = brief(self.caller.public(unread[0]), most=200)
        lack = f"{self.name}: {len(unread):,} of {plural(asked, 'answer')} had no {wanted}, such as {example}. {remedy}"
        if len(unread) == asked and asked > 1:
            raise RewardError(lack)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{lack} Such samples are not scored.", stacklevel=4)

    def _want_logprobs(self, count: int) -> None:
        """Ask for the log-probs of so many of the likeliest tokens; 0 asks for none."""
        self._check("logprobs", least=0)
        if count:
            self.fields = {"logprobs": True, "top_logprobs": count, **self.fields}

    def _check(self, name: str, *, least: float | None = None) -> None:
        """Refuse a number below `least`; without it, one that is not above 0."""
        value = getattr(self, name)
        if value is None:
            return
        enough = value > 0 if least is None else value >= least
        if enough and value < math.inf:
            return
        bound = "above 0" if least is None else f"at least {least}"
        raise UsageError(f"{self.name}: {name} must be {bound}, got {value}.")


def _address(url: str, name: str) -> str:
    instead = "Put it into an environment variable and give its name as api_key_env."
    address = checked_address(url, key=f"{name}: the url", example="http://localhost:8000/v1", instead=instead)
    return f"{address.removesuffix('/chat/completions')}/chat/completions"
