"""The reward `vlm-judge`: a vision-language model behind an OpenAI-compatible URL rates each picture."""

from __future__ import annotations

import atexit
import math
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from grpokit import RewardError, Sample, UsageError
from grpokit.errors import counted, shown
from grpokit_http.client import checked_address
from grpokit_judge.calls import Caller, Pace, StoppedError, key_in
from grpokit_judge.questions import TEMPLATE, check_template, question
from grpokit_judge.ratings import reader, scaled
from grpokit_judge.threads import in_threads
from grpokit_judge.usage import Usage

Score: TypeAlias = Callable[[Mapping[str, Any], Sample], tuple[float | None, str]]
"""From a server's answer about a sample to its score, None if there is none, and the judge's words."""


class VLMJudge:
    """A rating by a vision-language model, scaled to [0, 1].

    The message is the chat completions API's: the template, then the picture as a data URL.

    Args:
        url: of the API, such as "http://localhost:8000/v1"; "/chat/completions" is added.
        model: the server's name of the model.
        template: what is asked; {prompt} and {target} stand for the sample's own, other braces for themselves.
        low: the lowest rating, which scores 0.
        high: the highest rating, which scores 1.
        rating_key: of the JSON object in the answer that has the rating.
        pattern: a regular expression whose group is the rating, in place of JSON.
        api_key_env: the name of the environment variable with the key; None: no key is sent.
        concurrency: requests at the same time.
        requests_per_minute: the rate limit, new tries included; None: there is none.
        retries: new tries of a request that the server did not answer, or answered without a rating.
        backoff: seconds before the first new try; doubled for each further one.
        timeout: seconds without a sign of the server.
        max_tokens: of an answer; None: the field is left out, as some models want it.
        temperature: of the judge; 0 comes nearest to the same rating for the same picture. None: left out.
        max_side: the longer side of a picture that is sent, in pixels; larger ones are scaled down.
        input_price: of a million tokens that are sent, for the count of the cost.
        output_price: of a million tokens of answers.
        max_cost: the run stops when so much is spent; needs both prices.
        extra: further fields of the request, such as {"seed": 0}; not messages, stream or n.

    Raises:
        UsageError: a parameter cannot be used, or the environment variable is not set.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        template: str = TEMPLATE,
        low: float = 0.0,
        high: float = 10.0,
        rating_key: str = "rating",
        pattern: str | None = None,
        api_key_env: str | None = None,
        concurrency: int = 8,
        requests_per_minute: float | None = None,
        retries: int = 5,
        backoff: float = 1.0,
        timeout: float = 60.0,
        max_tokens: int | None = 256,
        temperature: float | None = 0.0,
        max_side: int = 1024,
        input_price: float | None = None,
        output_price: float | None = None,
        max_cost: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        _at_least(1, concurrency=concurrency, max_tokens=max_tokens, max_side=max_side)
        _at_least(0, retries=retries, backoff=backoff, temperature=temperature)
        _at_least(0, input_price=input_price, output_price=output_price)
        _above_0(timeout=timeout, requests_per_minute=requests_per_minute, max_cost=max_cost)
        if not -math.inf < low < high < math.inf:
            raise UsageError(f"vlm-judge: expected low below high, got {low} and {high}.")
        if max_cost is not None and (input_price is None or output_price is None):
            raise UsageError("vlm-judge: max_cost needs input_price and output_price, each for a million tokens.")
        key_in(api_key_env)
        check_template(template)
        if not model.strip():
            raise UsageError("vlm-judge: model is empty; expected the server's name of a model.")
        fixed = sorted({"messages", "stream", "n"} & set(extra or {}))
        if fixed:
            raise UsageError(
                f"vlm-judge: extra has '{fixed[0]}', which the judge sets by itself: it asks one question and reads "
                "one answer, in one piece."
            )
        self.read = reader(key=rating_key, pattern=pattern, high=high)
        self.score: Score = self._rating
        self.template, self.low, self.high = template, low, high
        self.max_side, self.retries, self.concurrency = max_side, retries, concurrency
        fields = {"model": model, "max_tokens": max_tokens, "temperature": temperature, **(extra or {})}
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.usage = Usage(input_price=input_price, output_price=output_price, max_cost=max_cost)
        self.caller = Caller(
            url=_address(url),
            api_key_env=api_key_env,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            pace=Pace(requests_per_minute),
        )
        self._warned = False
        atexit.register(self.usage.show, now=True)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores in [0, 1]; NaN where the template's prompt or target, the output or the rating is missing.

        Raises:
            RewardError: the server cannot be used, no answer has a rating, or max_cost is reached.
        """
        questions = [
            question(s, self.template, max_side=self.max_side, what=f"the output of row {row} (reward 'vlm-judge')")
            for row, s in enumerate(samples)
        ]
        asked = [row for row, content in enumerate(questions) if content is not None]
        scores, unread = [math.nan] * len(samples), []
        stop = threading.Event()

        def rated(row: int) -> tuple[float | None, str]:
            try:
                return self._rated(samples[row], questions[row], stop)
            except BaseException:
                stop.set()  # the others need not wait for their new tries
                raise

        try:
            futures = in_threads(rated, asked, most=self.concurrency)
            errors = [error for future in futures if (error := future.exception()) is not None]
        except BaseException:  # the user's Ctrl-C, which does not wait for answers
            stop.set()
            raise
        self.usage.show()
        for error in errors:
            if not isinstance(error, StoppedError):
                raise error
        for row, future in zip(asked, futures, strict=True):
            score, answer = future.result()
            if score is None:
                unread.append(answer)
            else:
                scores[row] = score
        self._report(unread, len(asked))
        return scores

    def _rated(self, sample: Sample, content: Any, stop: threading.Event) -> tuple[float | None, str]:
        """The score of one question and the judge's words; None after as many tries without a rating."""
        body = {**self.fields, "messages": [{"role": "user", "content": content}]}
        text = ""
        for _ in range(self.retries + 1):
            self.usage.check()
            answer, again = self.caller.send(body, stop)
            self.usage.add(answer.get("usage"))
            self.usage.note(retries=again)
            score, text = self.score(answer, sample)
            if score is not None:
                return score, text
            if self.fields.get("temperature") == 0:
                break  # the same question would get the same answer
        self.usage.note(unread=1)
        return None, text

    def _rating(self, answer: Mapping[str, Any], sample: Sample) -> tuple[float | None, str]:
        """The scaled rating in an answer, None without one, and the judge's words."""
        text, cut = words(answer)
        return None if cut else scaled(self.read(text), self.low, self.high), text  # of a cut one the end is not known

    def _report(self, unread: Sequence[str], asked: int) -> None:
        """Say once that ratings are missing; stop where no answer has one."""
        if not unread:
            return
        example = shown(self.caller.public(unread[0]), most=200)
        said = (
            f"vlm-judge: {len(unread):,} of {counted(asked, 'answer')} had no rating from {self.low:g} to "
            f"{self.high:g}, such as {example}. Ask for it in the template as rating_key or pattern reads it, or raise "
            "max_tokens if answers are cut."
        )
        if len(unread) == asked and asked > 1:
            raise RewardError(said)
        if not self._warned:
            self._warned = True
            warnings.warn(f"{said} Such samples are not scored.", stacklevel=3)


def words(answer: Mapping[str, Any]) -> tuple[str, bool]:
    """The text of an answer, and whether it was cut at its end; empty where a server leaves it out."""
    try:
        choice = answer["choices"][0]
        words = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return "", False
    if isinstance(words, list):  # in parts
        words = "".join(str(part.get("text", "")) for part in words if isinstance(part, dict))
    return words if isinstance(words, str) else "", choice.get("finish_reason") == "length"


def _address(url: str) -> str:
    instead = "Put it into an environment variable and give its name as api_key_env."
    address = checked_address(url, key="vlm-judge: the url", example="http://localhost:8000/v1", instead=instead)
    return f"{address.removesuffix('/chat/completions')}/chat/completions"


def _at_least(least: int, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not least <= value < math.inf:
            raise UsageError(f"vlm-judge: {name} must be at least {least}, got {value}.")


def _above_0(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"vlm-judge: {name} must be above 0, got {value}.")
