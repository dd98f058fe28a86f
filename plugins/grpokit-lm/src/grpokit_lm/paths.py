"""Chooses how a model writes and scores: the fast path where the model allows it, the plain one elsewhere.

A path is taken only if it gives the log-probs of the model's own forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from grpokit import UsageError
from grpokit.errors import one_line, typed_line
from grpokit.policies.group_decoding import Drawn, Written
from grpokit.policies.linear_layers import Casts
from grpokit.types import Ask, Decisions
from grpokit_lm.completions import Completions
from grpokit_lm.packed_path import PackedPath
from grpokit_lm.pictures import Reading
from grpokit_lm.plain_path import PlainPath
from grpokit_lm.probing import Probe, masks_problem
from grpokit_lm.prompts import context_of


class Path(Protocol):
    """Writes completions and scores them.

    Attributes:
        model: a causal LM.
        cut_by: what micro-batches should keep together.
        casts: of its frozen weights.
    """

    model: Any
    cut_by: str
    casts: Casts

    def write(
        self,
        prompts: Sequence[Reading],
        group_size: int,
        *,
        max_new_tokens: int,
        draw: Callable[[Tensor, int, Tensor], Drawn],
        ended: Callable[[Tensor, int], Tensor],
    ) -> Written:
        """Write `group_size` completions for each of the prompts."""
        ...

    def score(self, completions: Completions, start: int, *, width: int, temperature: float, ask: Ask) -> Decisions:
        """Score decisions `start` to `start + width` of all completions: [b, t]."""
        ...


def path_for(model: Any, *, fast: bool = True, example: Reading | None = None) -> tuple[Path, str]:
    """The path for a model, and why it is not a quicker one; empty if it is the one that was wanted.

    Args:
        model: a causal LM.
        fast: whether the fast one is wanted.
        example: a prompt with a picture, for a model that sees.

    Raises:
        UsageError: no path gives the log-probs of the model's own forward pass.
    """
    kind, reasons = type(model).__name__, []
    try:
        probe = Probe(model, example)
    except torch.OutOfMemoryError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{kind} cannot be run on a short text: {typed_line(error)}.") from error
    if fast:
        before = model.config._attn_implementation
        problem = _problem(lambda: _packed_problem(model, probe))
        if not problem:
            return PackedPath(model), ""
        model.set_attn_implementation(before)
        reasons.append(f"{kind} does not work with packed attention ({problem})")
    for cached in (True, False):
        plain = PlainPath(model, cached=cached)
        problem = _problem(partial(probe.problem, score=plain.score, write=plain.write))
        if not problem:
            return plain, "; ".join(reasons)
        reasons.append(f"{kind} cannot write with padding and a cache ({problem}), so each token reads all again")
    raise UsageError(
        f"{kind} cannot be trained: written token by token, its log-probs are not those of its own forward pass "
        f"({problem}). Importance ratios would be wrong from the first step. Use another model."
    )


def _packed_problem(model: Any, probe: Probe) -> str:
    problem = masks_problem(model, context=context_of(model.config))
    if problem:
        return problem
    packed = PackedPath(model)
    return probe.problem(score=packed.score, write=partial(packed.write, copies=False))


def _problem(check: Callable[[], str]) -> str:
    """What a check says, or what a foreign model raises when it is called in a way that it does not know."""
    try:
        return check()
    except torch.OutOfMemoryError:
        raise
    except UsageError as error:
        return one_line(error)
    except Exception as error:
        return typed_line(error, most=120)
