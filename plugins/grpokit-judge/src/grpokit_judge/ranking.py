"""The reward `vlm-ranking`: a vision-language model sees all pictures of a group and ranks them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from grpokit import Sample
from grpokit.rewards.submission import by_group
from grpokit_judge.answers import ranking, words
from grpokit_judge.questions import RANKED, RANKED_EDITS, Content, check_template, comparison
from grpokit_judge.service import Service


@dataclass(kw_only=True, eq=False)
class VLMRanking(Service):
    """The rank of a picture in its group by a vision-language model, from 0 for the worst to 1 for the best.

    Each group is one message with all of its pictures. A judge prefers some places in a list; so it is asked twice, and
    the second time the pictures stand in the opposite order. The score is the mean of both ranks.

    Args:
        template: what is asked; {prompt} stands for the prompt and {source} for the pictures that it edits. None: the
            prompt and, where there is one, its source.
        both_orders: ask twice. False: once, as the group stands.

    Raises:
        UsageError: as `VLMJudge`.
    """

    name: ClassVar[str] = "vlm-ranking"

    template: str | None = None
    both_orders: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.template is not None:
            check_template(self.template, name=self.name, fields=("{prompt}", "{source}"))

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        """Score samples.

        Args:
            samples: B samples with whole groups, whose outputs are pictures.

        Returns:
            B scores in [0, 1]; NaN without output, in a group of one, or where an answer does not rank all pictures.

        Raises:
            RewardError: as `VLMJudge`.
        """
        orders = []
        for group in by_group(samples):
            rows = [row for row in group if samples[row].output is not None]
            if len(rows) > 1:
                orders += [rows, rows[::-1]] if self.both_orders else [rows]
        found = self.ask(
            [self._question([samples[row] for row in order]) for order in orders],
            lambda answer, i: self._ranks(answer, orders[i]),
            wanted="ranking of all pictures",
            remedy='Ask for it in the template as {"ranking": [2, 1, 3]}, or raise max_tokens if answers are cut.',
        )
        scores: list[list[float]] = [[] for _ in samples]
        for order, ranks in zip(orders, found, strict=True):
            for row in order:
                scores[row].append(math.nan if ranks is None else ranks[row])
        return [math.fsum(each) / len(each) if each else math.nan for each in scores]

    def _question(self, group: Sequence[Sample]) -> Content | None:
        prompt, template = group[0].prompt, self.template
        if template is None:
            template = (RANKED_EDITS if prompt.images else RANKED) + (
                f"There are {len(group)} of them, each behind its number. Answer with one JSON object and nothing "
                'else: {"ranking": [...]}, with all numbers, that of the best picture first.'
            )
        return comparison(prompt, [sample.output for sample in group], template, max_side=self.max_side)

    @staticmethod
    def _ranks(answer: Mapping[str, Any], order: Sequence[int]) -> dict[int, float] | None:
        """Row -> its rank, of the pictures in the order in which they were sent."""
        text, cut = words(answer)
        numbers = None if cut else ranking(text, len(order))
        if numbers is None:
            return None
        last = len(order) - 1
        return {order[number - 1]: 1 - place / last for place, number in enumerate(numbers)}
