"""Confidence intervals of means over held-out prompts.

The samples of one prompt resemble each other, so the independent units are the prompts: deviations are summed inside
a prompt before they are squared. Intervals use Student's t, since there may be few prompts. Everything is plain
numbers, so the report can compute intervals without torch.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_NORMAL = 1.959963984540054  # the 97.5 % quantile
_FEW = (12.7062, 4.3027, 3.1824, 2.7764)  # of Student's t, for 1 to 4 degrees of freedom


def half_width(values: Sequence[float], prompts: Sequence[Hashable]) -> float:
    """Half the width of the 95 % confidence interval of the mean of `values`.

    With the same number of samples for each prompt, it is the usual interval of the mean over the prompts' means.

    Args:
        values: [B]; a row with NaN is left out.
        prompts: [B], the id of each row's prompt.

    Returns:
        The half-width; NaN with fewer than two prompts.

    >>> round(half_width([1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3]), 3)
    2.054
    >>> round(half_width([1.0, 3.0, 5.0, 7.0], [0, 0, 1, 1]), 3)
    25.412
    """
    return mean_of_totals([values], [1.0], prompts).half_width


def or_none(value: float) -> float | None:
    """A number, or None in place of NaN, which JSON does not have."""
    return None if math.isnan(value) else value


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Mean scores with their confidence intervals; None where there is no number.

    Attributes:
        means: name of a reward, or "reward" for the weighted sum -> the mean.
        ci95: the same names -> half the width of the mean's 95 % interval.
    """

    means: Mapping[str, float | None]
    ci95: Mapping[str, float | None]

    def text(self, name: str, *, sign: str = "") -> str:
        """A mean with its interval, to three digits.

        Args:
            name: of the score.
            sign: "+" shows that of a positive number, too.

        >>> Summary(means={"ocr": 0.25}, ci95={"ocr": 0.04}).text("ocr")
        '0.250 ± 0.040'
        """
        mean = self.means.get(name)
        width = self.ci95.get(name)
        if mean is None:
            return "not scored"
        return f"{mean:{sign}.3f}" if width is None else f"{mean:{sign}.3f} ± {width:.3f}"


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean over rows, with the terms of its interval.

    Attributes:
        value: the mean; NaN if nothing was scored.
        influences: prompt -> the sum of its rows' weighted deviations from the mean.
        prompts: the number of prompts with a score, in the column that has the fewest.
    """

    value: float
    influences: Mapping[Hashable, float]
    prompts: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % confidence interval; NaN with fewer than two prompts."""
        n = self.prompts
        if n < 2:
            return math.nan
        squares = math.fsum(influence**2 for influence in self.influences.values())
        variance = n / (n - 1) * squares
        return student_t(n - 1) * math.sqrt(variance)

    def minus(self, other: Mean) -> Mean:
        """The difference of two means, whose prompts count as independent where only one of them has them."""
        differences = dict(self.influences)
        for prompt, influence in other.influences.items():
            differences[prompt] = differences.get(prompt, 0.0) - influence
        prompts = min(self.prompts, other.prompts)
        return Mean(value=self.value - other.value, influences=differences, prompts=prompts)


def mean_of_totals(columns: Iterable[Sequence[float]], weights: Iterable[float], prompts: Sequence[Hashable]) -> Mean:
    """The mean of the rows' totals (see `grpokit.reward_totals.totals`), with its interval.

    A total replaces missing scores with means, and a replacement is not an observation. So the mean is written as a
    weighted sum of the existing scores, and a score's influence is its weight times its deviation from its column's
    mean. Missing scores then widen the interval, and correlations between columns are accounted for. The degrees of
    freedom are those of the column with scores for the fewest prompts.

    Args:
        columns: R of [B]; NaN without a score.
        weights: R; a column with the weight 0 does not count.
        prompts: [B], the id of each row's prompt.

    >>> mean_of_totals([[1.0, 3.0], [4.0, math.nan]], [1.0, 0.5], [0, 0]).value
    4.0
    """
    pairs = zip(columns, weights, strict=True)
    parts = [(column, weight) for column, weight in pairs if weight]
    sizes: Counter[Hashable] = Counter()  # how many rows of each prompt have any score
    for row, prompt in enumerate(prompts):
        if any(not math.isnan(column[row]) for column, _ in parts):
            sizes[prompt] += 1
    rows = sizes.total()
    influences: dict[Hashable, float] = defaultdict(float)
    value = 0.0
    counts = []
    for column, weight in parts:
        entries = zip(column, prompts, strict=True)
        scores = [(x, prompt) for x, prompt in entries if not math.isnan(x)]
        if not scores:
            continue
        per_prompt = Counter(prompt for _, prompt in scores)
        unscored = rows - sum(sizes[prompt] for prompt in per_prompt)  # rows of prompts without any score
        further = unscored / (rows * len(scores))  # what each score counts for these
        shares = {prompt: sizes[prompt] / (rows * n) + further for prompt, n in per_prompt.items()}
        mean = math.fsum(shares[prompt] * x for x, prompt in scores)
        for x, prompt in scores:
            influences[prompt] += weight * shares[prompt] * (x - mean)
        value += weight * mean
        counts.append(len(per_prompt))
    if not counts:
        return Mean(value=math.nan, influences={}, prompts=0)
    return Mean(value=value, influences=influences, prompts=min(counts))


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, with an error below 0.0004.

    Source: for 5 degrees of freedom and more, the Cornish-Fisher expansion in Abramowitz and Stegun, Handbook of
    Mathematical Functions, 26.7.5.

    Examples:
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
