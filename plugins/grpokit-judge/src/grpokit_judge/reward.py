"""The reward `vlm-judge`: a vision-language model behind an OpenAI-compatible URL rates each picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from grpokit import Sample, UsageError
from grpokit_judge.answers import Ratings, words
from grpokit_judge.questions import EDITS, TEMPLATE, check_template, question
from grpokit_judge.service import Service


@dataclass(kw_only=True, eq=False)
class VLMJudge(Service):
    """A rating by a vision-language model, scaled to [0, 1].

    The message is the chat completions API's: the template, then the picture as a data URL.

    Args:
        template: what is asked; {prompt} and {target} stand for the sample's own, {source} for the pictures that it
            edits, other braces for themselves. None: the prompt and, where there is one, its source.
        low: the lowest rating, which scores 0.
        high: the highest rating, which scores 1.
        rating_key: of the JSON object in the answer that has the rating.
        pattern: a regular expression whose group is the rating, in place of JSON.
        logprobs: how many of the likeliest tokens the server gives log-probs of; then the score is that of the expected
            rating. 0: that of the rating that the answer names.

    Raises:
        UsageError: a parameter cannot be used, or the environment variable is not set.
    """

    name: ClassVar[str] = "vlm-judge"

    template: str | None = None
    low: float = 0.0
    high: float = 10.0
    rating_key: str = "rating"
    pattern: str | None = None
    logprobs: int = 0
    ratings: Ratings = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._want_logprobs(self.logprobs)
        if not -math.inf < self.low < self.high < math.inf:
            raise UsageError(f"vlm-judge: expected low below high, got {self.low} and {self.high}.")
        if self.logprobs and not (self.low >= 0 and self.high <= 9):
            raise UsageError(
                f"vlm-judge: logprobs needs ratings of one digit, such as low: 1 and high: 5; got {self.low:g} to "
                f"{self.high:g}. Longer numbers may be several tokens."
            )
        if self.template is not None:
            check_template(self.template, name=self.name)
        self.ratings = Ratings(key=self.rating_key, pattern=self.pattern, low=self.low, high=self.high)

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples whose outputs are pictures.

        Returns:
            B scores in [0, 1]; NaN where what the template names, the output or the rating is missing.

        Raises:
            RewardError: the server cannot be used, no answer has a rating, it gives no log-probs, or max_cost is
                reached.
        """
        scores = self.ask(
            [self._question(sample, row) for row, sample in enumerate(samples)],
            self._rating,
            wanted=f"rating from {self.low:g} to {self.high:g}",
            remedy="Ask for it in the template as rating_key or pattern reads it, or raise max_tokens if answers are "
            "cut.",
        )
        return [math.nan if score is None else score for score in scores]

    def _question(self, sample: Sample, row: int) -> Any:
        template = self.template
        if template is None:
            kind = "a whole number" if self.logprobs else "a number"
            template = (EDITS if sample.prompt.images else TEMPLATE) + (
                f'Answer with one JSON object and nothing else: {{"{self.rating_key}": N}}, where N is {kind} from '
                f"{self.low:g} (bad) to {self.high:g} (perfect)."
            )
        what = f"the output of row {row} (reward 'vlm-judge')"
        return question(sample, template, max_side=self.max_side, what=what)

    def _rating(self, answer: Mapping[str, Any], row: int) -> float | None:
        """The scaled rating in an answer; None in one that was cut, whose end is not known."""
        text, cut = words(answer)
        if cut:
            return None
        rating = self.ratings.expected(answer) if self.logprobs else self.ratings.rating(text)
        if rating is None:
            return None
        return float((rating - self.low) / (self.high - self.low))
