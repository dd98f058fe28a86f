"""The reward `vlm-checklist`: a vision-language model answers a prompt's questions about the picture.

It is Soft-TIFA of GenEval 2 (Kamath et al., arXiv 2512.16853). A question scores the probability that the judge gives
to the right answer, a picture the geometric mean over its questions (prompt level) or the arithmetic one (atom level).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any, Literal, get_args

from grpokit import DataError, Prompt, Sample, UsageError
from grpokit.errors import shown
from grpokit_judge.reward import VLMJudge, words

Mean = Literal["geometric", "arithmetic"]

_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


class VLMChecklist:
    """How probable a judge finds the right answers to a prompt's questions, in [0, 1].

    The questions are in the prompt's `meta`, as pairs of question and answer: [["Are the cows plastic?", "Yes"], ...].
    Each is a request of its own.

    Args:
        url: of the API, such as "http://localhost:8000/v1"; "/chat/completions" is added.
        model: the server's name of the model.
        mean: over a prompt's questions. "geometric": one wrong answer spoils the picture; "arithmetic": the share that
            is right.
        column: of the prompts, with the questions.
        template: what is asked; {prompt} stands for the question.
        logprobs: how many of the likeliest answers the server gives probabilities of. 0: it gives none, and an answer
            is right (1) or wrong (0).
        max_tokens: of an answer.
        api_key_env: the name of the environment variable with the key; None: no key is sent.
        concurrency: requests at the same time.
        requests_per_minute: the rate limit; None: there is none.
        retries: new tries of a request that the server did not answer.
        timeout: seconds without a sign of the server.
        max_side: the longer side of a picture that is sent, in pixels.
        input_price: of a million tokens that are sent, for the count of the cost.
        output_price: of a million tokens of answers.
        max_cost: the run stops when so much is spent; needs both prices.
        extra: further fields of the request, such as {"seed": 0}.

    Raises:
        UsageError: as `VLMJudge`.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        mean: Mean = "geometric",
        column: str = "vqa_list",
        template: str = "{prompt} Answer in one word.",
        logprobs: int = 20,
        max_tokens: int = 1,
        api_key_env: str | None = None,
        concurrency: int = 8,
        requests_per_minute: float | None = None,
        retries: int = 5,
        timeout: float = 60.0,
        max_side: int = 1024,
        input_price: float | None = None,
        output_price: float | None = None,
        max_cost: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        if mean not in get_args(Mean):
            raise UsageError(f"vlm-checklist: mean must be one of {', '.join(get_args(Mean))}, got {mean!r}.")
        self.mean, self.column = mean, column
        self.judge = VLMJudge(
            url=url,
            model=model,
            template=template,
            high=1.0,
            max_tokens=max_tokens,
            api_key_env=api_key_env,
            concurrency=concurrency,
            requests_per_minute=requests_per_minute,
            retries=retries,
            timeout=timeout,
            max_side=max_side,
            input_price=input_price,
            output_price=output_price,
            max_cost=max_cost,
            extra={**({"logprobs": True, "top_logprobs": logprobs} if logprobs else {}), **(extra or {})},
        )
        self.judge.score = probability

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores in [0, 1]; NaN without questions or output, or where an answer is missing.

        Raises:
            RewardError: as `VLMJudge`.
        """
        checklists = [questions(sample.prompt, self.column) for sample in samples]
        parts = [
            Sample(prompt=Prompt(text=asked, target=answer), output=sample.output, group=sample.group)
            for sample, checklist in zip(samples, checklists, strict=True)
            for asked, answer in checklist
        ]
        found = iter(self.judge(parts))
        return [self._mean([next(found) for _ in checklist]) for checklist in checklists]

    def _mean(self, values: Sequence[float]) -> float:
        if not values or any(map(math.isnan, values)):
            return math.nan
        if self.mean == "arithmetic":
            return math.fsum(values) / len(values)
        return geometric_mean(values) if min(values) > 0 else 0.0


def questions(prompt: Prompt, column: str) -> list[tuple[str, str]]:
    """The pairs of question and answer in a prompt's `meta`; none where it has no such column.

    Raises:
        DataError: the column has something else.
    """
    pairs = prompt.meta.get(column) or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise DataError(f'{column}: expected pairs such as [["Is there a cat?", "Yes"]], got {shown(pairs)}.')
    return [(str(asked), str(answer)) for asked, answer in pairs]


def unscorable(prompt: Prompt, *, column: str = "vqa_list") -> str:
    """Why no picture of a prompt can be scored; empty if they can be.

    Raises:
        DataError: as `questions`.
    """
    return "" if questions(prompt, column) else f"it has no questions in the column {column}"


def probability(answer: Mapping[str, Any], sample: Sample) -> tuple[float | None, str]:
    """How probable the right answer is in a server's answer, which is the sample's target; and the judge's words.

    With log-probs it is the sum over the likeliest first tokens that are the answer, in any case and as word or digit.
    Else it is 1 or 0, and None for an answer without words.
    """
    right, text = _forms(str(sample.prompt.target)), words(answer)[0]
    try:
        likeliest = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    except (KeyError, IndexError, TypeError):
        return (float(_plain(text) in right) if text.strip() else None), text
    return min(1.0, math.fsum(math.exp(each["logprob"]) for each in likeliest if _plain(each["token"]) in right)), text


def _forms(answer: str) -> set[str]:
    """An answer as word and as digits."""
    plain = _plain(answer)
    number = str(_NUMBERS.index(plain)) if plain in _NUMBERS else ""
    word = _NUMBERS[int(plain)] if plain.isdecimal() and int(plain) < len(_NUMBERS) else ""
    return {plain, number or plain, word or plain}


def _plain(text: str) -> str:
    return text.strip().strip(".!\"'*").lower()
