"""States of what takes part in a training: their form, and whether two are the same to the bit."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpokit.errors import a_type, brief
from grpokit.training.state import Stateful
from grpokit_check.check import attempt, expect


def state_of(part: object) -> dict[str, Any]:
    """A copy of a part's state; empty where it has none."""
    return dict(copy.deepcopy(part.state_dict())) if isinstance(part, Stateful) else {}


def restored(part: Any, state: Mapping[str, Any]) -> Any:
    """The part after it has loaded a copy of a state."""
    if isinstance(part, Stateful):
        part.load_state_dict(copy.deepcopy(state))
    return part


def same_state(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two states are the same to the bit."""
    return a.keys() == b.keys() and all(_same(value, b[name]) for name, value in a.items())


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    return not isinstance(b, Tensor) and bool(a == b)


def expect_saveable(part: object) -> None:
    """Fail unless a part has both methods of a state or none, and its state is tensors and plain data."""
    methods = [name for name in ("state_dict", "load_state_dict") if callable(getattr(part, name, None))]
    expect(len(methods) != 1, "state_dict and load_state_dict, or neither", f"{' and '.join(methods)} alone",
           "a state that is saved and never restored")  # fmt: skip
    if isinstance(part, Stateful):
        state = part.state_dict()
        expect(isinstance(state, Mapping), "a mapping from state_dict", a_type(state), "a bare number; give it a name")
        plain = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
        same = attempt(lambda: json.loads(json.dumps(plain)) == plain) is True
        expect(same, "a state of tensors, and plain data as JSON has it", brief(plain),
               "arrays, tuples, sets, or keys that are not texts; checkpoints pickle nothing")  # fmt: skip
