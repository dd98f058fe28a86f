"""Confidence intervals of means over held-out prompts.

The samples of one prompt resemble each other, so the independent units are the prompts: deviations are summed inside
a prompt before they are squared. Student's t, because prompts may be few. Plain numbers, so that the report can
compute intervals without torch.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_NORMAL = 1.959963984540054  # the 97.5 % quantile
_FEW = (12.7062, 4.3027, 3.1824, 2.7764)  # of Student's t, for 1 to 4 degrees of freedom


def half_width(values: Sequence[float], prompts: Sequence[int]) -> float:
    """Half the width of the 95 % confidence interval of the mean of `values`.

    With equally many samples for each prompt it is the usual interval of the mean of the prompts' means; with one
    sample for each, of the mean.

    Args:
        values: [B]; NaN where there is none, which leaves the row out.
        prompts: [B], what each row's prompt is called.

    Returns:
        The half-width; NaN with fewer than two prompts.

    >>> round(half_width([1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3]), 3)
    2.054
    >>> round(half_width([1.0, 3.0, 5.0, 7.0], [0, 0, 1, 1]), 3)
    25.412
    """
    return mean_of_totals([values], [1.0], prompts).half_width


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over rows, and what its interval is made of.

    Attributes:
        value: the mean; NaN where nothing was scored.
        influences: prompt -> by how much its rows pull the mean away from where the others would leave it.
        prompts: how many prompts stand behind the column with the fewest.
    """

    value: float
    influences: Mapping[int, float]
    prompts: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % confidence interval; NaN with fewer than two prompts."""
        if self.prompts < 2:
            return math.nan
        squares = math.fsum(influence**2 for influence in self.influences.values())
        return student_t(self.prompts - 1) * math.sqrt(self.prompts / (self.prompts - 1) * squares)

    def minus(self, other: Mean) -> Mean:
        """The difference of two means over the same prompts: what both know of a prompt counts as a pair."""
        prompts = {**self.influences, **other.influences}
        differences = {p: self.influences.get(p, 0.0) - other.influences.get(p, 0.0) for p in prompts}
        return Mean(value=self.value - other.value, influences=differences, prompts=min(self.prompts, other.prompts))


def mean_of_totals(columns: Iterable[Sequence[float]], weights: Iterable[float], prompts: Sequence[int]) -> Mean:
    """The mean of the rows' totals (see `grpokit.row_totals.totals`), with its interval.

    A total stands in for missing scores by means, and such a stand-in is no observation. So the mean is written as a
    weighted sum of the scores that are there, and a score's influence is its weight times its deviation from its
    column's mean. What a column lacks thus widens the interval, and columns that move together or against each other
    are accounted for. The degrees of freedom are those of the column that the fewest prompts stand behind.

    Args:
        columns: R of [B]; NaN where there is none.
        weights: R; a column with the weight 0 takes no part.
        prompts: [B], what each row's prompt is called.

    >>> mean_of_totals([[1.0, 3.0], [4.0, math.nan]], [1.0, 0.5], [0, 0]).value
    4.0
    """
    parts = [(column, weight) for column, weight in zip(columns, weights, strict=True) if weight]
    scored = [any(not math.isnan(column[row]) for column, _ in parts) for row in range(len(prompts))]
    sizes = Counter(prompt for prompt, known in zip(prompts, scored, strict=True) if known)
    rows = sizes.total()
    influences: dict[int, float] = defaultdict(float)
    value, counts = 0.0, []
    for column, weight in parts:
        known = [(x, prompt) for x, prompt in zip(column, prompts, strict=True) if not math.isnan(x)]
        if not known:
            continue
        per_prompt = Counter(prompt for _, prompt in known)
        missing = rows - sum(sizes[prompt] for prompt in per_prompt)  # rows of prompts without any score
        shares = {p: sizes[p] / (rows * n) + missing / (rows * len(known)) for p, n in per_prompt.items()}
        mean = math.fsum(shares[prompt] * x for x, prompt in known)
        for x, prompt in known:
            influences[prompt] += weight * shares[prompt] * (x - mean)
        value += weight * mean
        counts.append(len(per_prompt))
    return Mean(value=value if counts else math.nan, influences=influences, prompts=min(counts, default=0))


def student_t(freedom: int) -> float:
    """97.5 % quantile of Student's t, to within 0.0004.

    Source: for 5 degrees of freedom and more, the Cornish-Fisher expansion in Abramowitz and Stegun, Handbook of
    Mathematical Functions, 26.7.5.

    >>> [round(student_t(n), 3) for n in (1, 2, 4, 10, 100)]
    [12.706, 4.303, 2.776, 2.228, 1.984]
    """
    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    z = _NORMAL
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * freedom**4)
    )
