"""What a reward that runs elsewhere tells the run, as JSON: nothing that a reward makes is unpickled in the run.

A message is a list: its kind and its content. A reward that is built says ("built",). To samples it answers ("values",
scores), ("failure", words that follow its name) or ("error", the kind of a `GrpokitError`, its words).
"""

from __future__ import annotations

import json
import math
import numbers
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias

from grpokit import errors, registry
from grpokit.errors import GrpokitError, PluginError, UsageError, a_type, reworded, typed_line
from grpokit.rewards.submission import REORDERED, Portion, meta_keys, reordered
from grpokit.types import Sample

Message: TypeAlias = Sequence[Any]


def build(use: str, params: Mapping[str, Any]) -> tuple[Any, Message]:
    """A reward and its message, or None and why it cannot be built.

    Args:
        use: a plugin's name for it, or "package.module:function".
        params: for its factory.
    """
    try:
        reward = registry.create("reward", use, params)
        if not callable(reward):
            raise PluginError(f"The reward '{use}' gave {a_type(reward)}, which cannot be called.")
    except GrpokitError as error:
        return None, ("error", *_typed(error))
    except BaseException as error:  # whatever it is, the run reports it
        return None, ("error", "PluginError", f"The reward '{use}' cannot be built: {typed_line(error)}.")
    return reward, ("built",)


def answer(reward: Any, samples: list[Sample]) -> Message:
    """Have samples scored; `samples` are the reward's own, to change as it likes."""
    torch = sys.modules.get("torch")  # a reward that does without it is spared its import
    order = tuple(samples)
    try:
        with torch.no_grad() if torch else nullcontext():
            values = reward(samples)
    except UsageError as error:
        return "error", *_typed(error)
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{typed_line(error)}{meta_keys(error, samples)}"
        return "failure", f"raised {what} ({Path(place.filename).name}, line {place.lineno}, in {place.name})"
    if reordered(samples, order):
        return "error", "RewardError", f"it {REORDERED}."
    try:
        if isinstance(values, (list, tuple)):  # one of its numbers may stand in an array or a tensor
            values = [one.item() if set(getattr(one, "shape", (0,))) <= {1} else one for one in values]
        as_json(values)
    except BaseException as error:  # the reward may return anything
        inside = (
            f" that holds {error.args[0]}" if isinstance(error, _NoNumberError) and error.value is not values else ""
        )
        return "error", "RewardError", f"it returned {a_type(values)}{inside}; expected one number per sample."
    return "values", values


def as_json(message: Any) -> bytes:
    """A message for the run. Arrays and tensors become lists, and other numbers floats."""
    return json.dumps(message, default=_plain).encode()


def check_built(message: Message) -> None:
    """Make sure that a message says that the reward is built.

    Raises:
        GrpokitError: what building it raised.
    """
    if message[0] == "error":
        raise _error(*message[1:])


def portion(rows: Sequence[int], message: Message) -> Portion:
    """What a message says about the samples of some rows.

    Raises:
        UsageError: a parameter, a target or a sample is wrong.
        RewardError: the reward returned something that no reward may return.
        ValueError: it is no answer.
    """
    kind, *content = message
    if kind == "error":
        raise _error(*content)
    if kind == "failure":
        return Portion(rows=rows, failure=content[0])
    if kind != "values":
        raise ValueError("not an answer")
    return Portion(rows=rows, values=content[0])


def _error(kind: str, text: str) -> GrpokitError:
    """An error of grpokit's own, as it was raised elsewhere."""
    error: GrpokitError = getattr(errors, kind, UsageError)(text)
    return error


class _NoNumberError(Exception):
    def __init__(self, value: object) -> None:
        super().__init__(a_type(value))
        self.value = value


def _plain(value: Any) -> Any:
    """What JSON cannot write, as something that it can: arrays and tensors as lists, other numbers as floats."""
    if type(value).__module__.partition(".")[0] in ("numpy", "torch"):
        return value.tolist()
    if not isinstance(value, numbers.Real):
        raise _NoNumberError(value)
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _typed(error: GrpokitError) -> tuple[str, str]:
    """The kind of an error, which the run knows, and its words."""
    try:
        text = str(error)
    except Exception:  # a user's class may fail in its __str__
        text = typed_line(error)
    return type(reworded(error, text)).__name__, text
