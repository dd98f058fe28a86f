"""Confidence intervals of means over held-out prompts.

The samples of one prompt resemble each other, so the independent units are the prompts: deviations are summed inside
a prompt before they are squared. Student's t, because prompts may be few. Plain numbers, so that the report can
compute intervals without torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

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
    return sum_half_width([values], [1.0], prompts)


def sum_of_means(columns: Iterable[Sequence[float]], weights: Iterable[float]) -> float:
    """The weighted sum of the means of what each column has; NaN where no column with a weight has anything.

    >>> sum_of_means([[1.0, 3.0], [4.0, math.nan]], [1.0, 0.5])
    4.0
    """
    parts = [
        weight * math.fsum(known) / len(known)
        for column, weight in zip(columns, weights, strict=True)
        if weight and (known := [value for value in column if not math.isnan(value)])
    ]
    return math.fsum(parts) if parts else math.nan


def sum_half_width(columns: Iterable[Sequence[float]], weights: Iterable[float], prompts: Sequence[int]) -> float:
    """Half the width of the 95 % confidence interval of `sum_of_means`.

    A value's influence on the sum is its weight times its deviation from its column's mean, over the number of values
    in that column; a gap has none. So what a column lacks widens the interval, and columns that move together or
    against each other are seen to. The degrees of freedom are those of the column that the fewest prompts stand behind.

    Args:
        columns: R of [B]; NaN where there is none.
        weights: R; a column with the weight 0 takes no part.
        prompts: [B], what each row's prompt is called.

    Returns:
        The half-width; NaN where a column has values of a single prompt.
    """
    counts = []
    sums: dict[int, float] = defaultdict(float)
    for column, weight in zip(columns, weights, strict=True):
        rows = [(value, prompt) for value, prompt in zip(column, prompts, strict=True) if not math.isnan(value)]
        if weight and rows:
            counts.append(len({prompt for _, prompt in rows}))
            mean = math.fsum(value for value, _ in rows) / len(rows)
            for value, prompt in rows:
                sums[prompt] += weight * (value - mean) / len(rows)
    count = min(counts, default=0)
    if count < 2:
        return math.nan
    return student_t(count - 1) * math.sqrt(count / (count - 1) * math.fsum(total**2 for total in sums.values()))


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
