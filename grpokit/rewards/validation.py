"""What a reward may answer: one number per sample, with NaN for "cannot score this one"."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from grpokit.errors import RewardError, a_type, counted, shown
from grpokit.types import Sample

LARGEST = 1e100
"""The size up to which scores can be squared and added up."""

_PAGE = "guards#while-it-runs"


def checked(values: Any, rows: Sequence[int], samples: Sequence[Sample]) -> list[float]:
    """The scores that a reward returned, as plain numbers.

    Args:
        values: what it returned: a sequence, an array or a tensor.
        rows: the rows of the call.
        samples: of these rows.

    Raises:
        RewardError: not one number per sample, or one that is infinite or too large to compute with.
    """
    if hasattr(values, "tolist"):  # of numpy or torch
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise RewardError(f"it returned {a_type(values)}; expected one number per sample.", page=_PAGE)
    if len(values) != len(rows):
        raise RewardError(
            f"it returned {counted(len(values), 'score')} for {counted(len(rows), 'sample')}, from row {rows[0]} on "
            f"(prompt {samples[0].prompt.text!r}); expected one per sample.",
            page=_PAGE,
        )
    scores = []
    for value, row, sample in zip(values, rows, samples, strict=True):
        if hasattr(value, "item"):
            with suppress(RuntimeError, ValueError):  # more than one number: refused below
                value = value.item()
        where = f"row {row} (prompt {sample.prompt.text!r})"
        if not issubclass(type(value), numbers.Real):
            raise RewardError(
                f"it gave {shown(value)} ({type(value).__name__}) for {where}; expected a number, or NaN for 'cannot "
                "score this sample'.",
                page=_PAGE,
            )
        if abs(value) > LARGEST:
            raise RewardError(
                f"it gave {shown(value)} for {where}; expected a finite number of at most {LARGEST:g} in size, or NaN "
                "for 'cannot score this sample'.",
                page=_PAGE,
            )
        scores.append(float(value))
    return scores
