"""What a reward may answer: one number per sample, with NaN for "cannot score this one"."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grpokit.errors import RewardError, a_type, counted, typed_line
from grpokit.types import Sample

LARGEST = 1e100
"""The size up to which scores can be squared and added up."""


def checked(name: str, values: Any, samples: Sequence[Sample], rows: Sequence[int] | None = None) -> list[float]:
    """The scores that a reward returned, as plain numbers.

    Args:
        name: of the reward, for messages.
        values: what it returned: a sequence, an array or a tensor.
        samples: what it was asked about.
        rows: their numbers, where they are not 0 to B - 1.

    Raises:
        RewardError: not one number per sample, one that is infinite or too large to compute with, or an object whose
            own methods raise.
    """
    try:
        return _numbers(name, values, samples, rows)
    except (RewardError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RewardError(
            f"Reward '{name}' returned {a_type(values)} that cannot be read ({typed_line(error)}); expected one number "
            "per sample.",
            page="guards#while-it-runs",
        ) from error


def _numbers(name: str, values: Any, samples: Sequence[Sample], rows: Sequence[int] | None) -> list[float]:
    if isinstance(values, Tensor) or type(values).__module__ == "numpy":
        values = values.tolist()
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise RewardError(
            f"Reward '{name}' returned {a_type(values)}; expected one number per sample.", page="guards#while-it-runs"
        )
    if len(values) != len(samples):
        place = f", from row {rows[0]} on (prompt {samples[0].prompt.text!r})" if rows else ""
        raise RewardError(
            f"Reward '{name}' returned {counted(len(values), 'score')} for {counted(len(samples), 'sample')}{place}; "
            "expected one per sample.",
            page="guards#while-it-runs",
        )
    scores = []
    for i, value in enumerate(values):
        where = f"row {i if rows is None else rows[i]} (prompt {samples[i].prompt.text!r})"
        if hasattr(value, "item"):  # of numpy or torch
            with contextlib.suppress(RuntimeError, ValueError):  # more than one number: refused below
                value = value.item()
        if not isinstance(value, numbers.Real):
            raise RewardError(
                f"Reward '{name}' gave {value!r} ({type(value).__name__}) for {where}; expected a number, or NaN for "
                "'cannot score this sample'.",
                page="guards#while-it-runs",
            )
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise RewardError(
                f"Reward '{name}' gave {number} for {where}; expected a finite number, or NaN for 'cannot score this "
                "sample'.",
                page="guards#while-it-runs",
            )
        if abs(number) > LARGEST:
            raise RewardError(
                f"Reward '{name}' gave {number} for {where}; expected at most {LARGEST:g} in size.",
                page="guards#while-it-runs",
            )
        scores.append(number)
    return scores
