"""Chooses how a model writes and scores: the fast path where the model allows it, the plain one elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from grpokit.errors import UsageError
from grpokit.policies.group_decoding import Drawn, Written
from grpokit.types import Ask, Decisions
from grpokit_lm.completions import Completions, padded
from grpokit_lm.packed_path import PackedPath
from grpokit_lm.pictures import Reading, positions
from grpokit_lm.plain_path import PlainPath

TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # nats; a wrong mask or position costs much more
_COARSE = 0.1


class Path(Protocol):
    """Writes completions and scores them."""

    model: Any
    cut_by: str

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
    """The path for a model, and why it is not the fast one; empty if it is, or if the fast one was not wanted.

    Args:
        model: a causal LM.
        fast: whether the fast one is wanted.
        example: a prompt with a picture, for a model that sees.
    """
    plain = PlainPath(model)
    if not fast:
        return plain, ""
    before = model.config._attn_implementation
    problem = ""
    try:
        packed = PackedPath(model)
        difference = _difference(packed, plain, model, example)
        if not difference <= TOLERANCE.get(model.dtype, _COARSE):
            problem = f"its log-probs differ by {difference:.2g} nats from those of the model's own forward pass"
    except UsageError as error:
        problem = str(error)
    except Exception as error:  # whatever a foreign model does with arguments that it does not know
        problem = f"{type(error).__name__}: {error}"
    if not problem:
        return packed, ""
    model.set_attn_implementation(before)
    return plain, f"{type(model).__name__} does not work with packed attention ({problem})"


def _difference(packed: Path, plain: Path, model: Any, example: Reading | None) -> float:
    """The largest difference of log-probs between both paths on random tokens: two prompts, two completions each.

    The second prompt is the example, where there is one.
    """
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]

    def tokens(*lengths: int) -> list[Tensor]:
        return [torch.randint(vocabulary, (n,), generator=generator) for n in lengths]

    device = model.get_input_embeddings().weight.device
    first, second = tokens(6, 3)
    readings = [Reading(tokens=first), example or Reading(tokens=second)]
    places = [positions(model, reading) for reading in readings]
    lengths = (5, 3, 4, 4)
    completions = Completions(
        prompts=padded([reading.tokens for reading in readings]).to(device),
        prompt_lengths=[len(reading.tokens) for reading in readings],
        tokens=padded(tokens(*lengths)).to(device),
        lengths=lengths,
        groups=(0, 0, 1, 1),
        pictures=[reading.to(device).pictures for reading in readings],
        positions=padded([x.T for x in places if x is not None]).transpose(1, 2) if places[0] is not None else None,
    )
    with torch.no_grad():
        a, b = (
            path.score(completions, 0, width=5, temperature=1.0, ask=Ask(entropy="no")).logprobs
            for path in (packed, plain)
        )
    return float((a - b).abs().max())
