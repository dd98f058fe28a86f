"""Chooses how a model writes and scores: the fast path where the model allows it, the plain one elsewhere.

A path is taken only if it gives the log-probs of the model's own forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from grpokit import GrpokitError, UsageError
from grpokit.errors import error_line
from grpokit.policy import CutBy
from grpokit.types import Ask, Decisions
from grpokit_hf.tokens.group_decoding import Drawn, Written
from grpokit_hf.tokens.linear_layers import Casts
from grpokit_lm.completions import Completions
from grpokit_lm.packed_path import PackedPath
from grpokit_lm.pictures import Reading
from grpokit_lm.plain_path import PlainPath
from grpokit_lm.probing import Probe, masks_problem, noted
from grpokit_lm.prompts import context_of


class Path(Protocol):
    """Writes completions and scores them.

    Attributes:
        model: a causal LM.
        cut_by: what micro-batches should keep together.
        packs: whether it scores completions without padding.
        casts: of its frozen weights.
    """

    model: Any
    cut_by: CutBy
    packs: bool
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


def path_for(
    model: Any, *, fast: bool = True, example: Reading | None = None, check_every: int | None = None
) -> tuple[Path, str]:
    """The path for a model, and why it is not a quicker one; empty if it is the one that was wanted.

    Args:
        model: a causal LM.
        fast: whether the fast one is wanted.
        example: a prompt with a picture, for a model that sees.
        check_every: as of `PackedPath`.

    Raises:
        UsageError: no path gives the log-probs of the model's own forward pass.
    """
    kind, reasons = type(model).__name__, []
    try:
        probe = Probe(model, example)
    except (torch.OutOfMemoryError, GrpokitError):
        raise
    except Exception as error:
        raise UsageError(f"{kind} cannot be run on a short text: {error_line(error)}.") from error
    if fast:
        before = model.config._attn_implementation
        with noted() as problems:
            problems += _packed_problem(model, probe)
        if not problems:
            return PackedPath(model, check_every=check_every), ""
        model.set_attn_implementation(before)
        reasons.append(f"{kind} does not work with packed attention ({problems[0]})")
    for cached in (True, False):
        plain = PlainPath(model, cached=cached)
        problems = probe.problems(score=plain.score, write=plain.write)
        if not problems:
            return plain, "; ".join(reasons)
        reasons.append(f"{kind} cannot write with padding and a cache ({problems[0]}), so each token reads all again")
    raise UsageError(
        f"{kind} cannot be trained: scored in a batch, or written token by token, it does not give the log-probs of "
        f"its own forward pass ({problems[0]}). Use another model."
    )


def _packed_problem(model: Any, probe: Probe) -> list[str]:
    problem = masks_problem(model, context=context_of(model.config))
    if problem:
        return [problem]
    packed = PackedPath(model)
    return probe.problems(score=packed.score, write=partial(packed.write, copies=False))
