"""The reward `vlm-checklist`: a vision-language model answers a prompt's questions about the picture.

It is Soft-TIFA of GenEval 2 (Kamath et al., arXiv 2512.16853). A question scores the probability that the judge gives
to the right answer, a picture the geometric mean over its questions (prompt level) or the arithmetic one (atom level).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any, ClassVar, Literal, get_args

from grpokit import DataError, Prompt, Sample, UsageError
from grpokit.builtin.answers import unwrap
from grpokit.errors import brief
from grpokit_judge.answers import after_thoughts, likeliest, words
from grpokit_judge.questions import check_template, question
from grpokit_judge.service import Service

Mean = Literal["geometric", "arithmetic"]

_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


@dataclass(kw_only=True, eq=False)
class VLMChecklist(Service):
    """How probable a judge finds the right answers to a prompt's questions, in [0, 1].

    The questions are in the prompt's `meta`, as pairs of question and answer: [["Are the cows plastic?", "Yes"], ...].
    Each is a request of its own.

    Args:
        mean: over a prompt's questions. "geometric": one wrong answer spoils the picture; "arithmetic": the share that
            is right.
        column: of the prompts, with the questions.
        template: what is asked; {prompt} stands for the question.
        logprobs: how many of the likeliest answers the server gives log-probs of. 0: it gives none, and an answer
            is right (1) or wrong (0).
        max_tokens: of an answer; a judge that thinks first needs more than 1.

    Raises:
        UsageError: as `VLMJudge`.
    """

    name: ClassVar[str] = "vlm-checklist"

    mean: Mean = "geometric"
    column: str = "vqa_list"
    template: str = "{prompt} Answer in one word."
    logprobs: int = 20
    max_tokens: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._want_logprobs(self.logprobs)
        if self.mean not in get_args(Mean):
            raise UsageError(f"vlm-checklist: mean must be one of {', '.join(get_args(Mean))}, got {self.mean!r}.")
        check_template(self.template, name=self.name, fields=("{prompt}",))

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
        asked = []
        for row, (sample, checklist) in enumerate(zip(samples, checklists, strict=True)):
            what = f"the output of row {row} (reward 'vlm-checklist')"
            for text, right in checklist:
                alone = replace(sample, prompt=Prompt(text=text))
                asked.append((question(alone, self.template, max_side=self.max_side, what=what), right))
        found = iter(
            self.ask(
                [content for content, _ in asked],
                lambda answer, i: probability(answer, asked[i][1], logprobs=self.logprobs > 0),
                wanted="answer",
                remedy="If the judge thinks first, raise max_tokens.",
            )
        )
        return [self._mean([next(found) for _ in checklist]) for checklist in checklists]

    def _mean(self, values: Sequence[float | None]) -> float:
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return math.nan
        if self.mean == "arithmetic":
            return math.fsum(known) / len(known)
        return geometric_mean(known) if min(known) > 0 else 0.0


def questions(prompt: Prompt, column: str) -> list[tuple[str, str]]:
    """The pairs of question and answer in a prompt's `meta`; none where it has no such column.

    Raises:
        DataError: the column has something else.
    """
    pairs = prompt.meta.get(column) or []
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise DataError(f'{column}: expected pairs such as [["Is there a cat?", "Yes"]], got {brief(pairs)}.')
    return [(str(asked), str(answer)) for asked, answer in pairs]


def unscorable(prompt: Prompt, *, column: str = "vqa_list") -> str:
    """Why no picture of a prompt can be scored; empty if they can be.

    Raises:
        DataError: as `questions`.
    """
    return "" if questions(prompt, column) else f"it has no questions in the column {column}"


def probability(answer: Mapping[str, Any], right: str, *, logprobs: bool) -> float | None:
    """How probable the right answer is in a server's answer; None for one without words behind its last thought.

    With log-probs it is the sum over the likeliest first tokens that are the answer, in any case and as word or digit;
    where the judge writes it in several tokens, the product of theirs counts as well. Else it is 1 or 0, by the words
    that the answer begins with.

    Raises:
        RewardError: log-probs are wanted, and the server gives none.
    """
    text, begin = after_thoughts(words(answer)[0])
    word, forms = re.search(r"\w", text), _forms(right)
    if word is None:
        return None
    if not logprobs:
        first = re.compile(rf"\W*(?:{'|'.join(map(re.escape, forms))})(?!\w|[.,][0-9])", re.IGNORECASE)
        return float(any(map(first.match, unwrap(text))))
    place, written, sure, total = word.start(), "", 1.0, 0.0
    while place < len(text):
        token, chances = likeliest(answer, begin + place)
        total += sure * math.fsum(chance for each, chance in chances.items() if _plain(written + each) in forms)
        written += token
        place += len(token)
        sure *= chances.get(token, 0.0)
        so_far = _plain(written)
        if so_far in forms or not any(form.startswith(so_far) for form in forms):
            return min(1.0, total)
    return None  # it was cut in a word


def _forms(answer: str) -> set[str]:
    """An answer as word and as digits."""
    plain = _plain(answer)
    number = str(_NUMBERS.index(plain)) if plain in _NUMBERS else ""
    word = _NUMBERS[int(plain)] if plain.isdecimal() and int(plain) < len(_NUMBERS) else ""
    return {plain, number or plain, word or plain}


def _plain(text: str) -> str:
    return text.strip().strip(".!\"'*").lower()
