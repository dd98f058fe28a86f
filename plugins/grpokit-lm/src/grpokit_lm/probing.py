"""Whether a path gives the log-probs of a model: looked at before anything is trained on them.

Two looks are needed. The first compares numbers on a short text, whose reference is the model's own forward pass of
one row without padding. It cannot see what begins later, such as a window of 4,096 tokens. So the second asks the model
for the masks that its attention would get, and compares their rule with what the layer is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpokit import UsageError
from grpokit.errors import error_line, one_line
from grpokit.types import Ask, Decisions
from grpokit_hf.tokens.drawing import Draw
from grpokit_hf.tokens.group_decoding import Written
from grpokit_hf.tokens.packed_attention import attention
from grpokit_hf.tokens.ragged import padded
from grpokit_lm.completions import Completions
from grpokit_lm.pictures import Reading, positions
from grpokit_lm.plain_path import PlainPath

# Nats; a wrong mask or position costs much more.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # of any token
COARSE = 0.3  # on average, in low precision, where single tokens of two right passes differ by more than that

_LOOK = "grpokit_look"
_FAR = 65_536  # tokens, for a model that sets no bound
_QUERIES = 32
_POSITIONS = ("position_ids", "cache_position")  # what attention gets and needs not, since queries are rotated
_ASK = Ask(entropy="no")
_PROMPTS, _LENGTHS, _GROUPS = (6, 3), (5, 3, 4, 4), (0, 0, 1, 1)


class Probe:
    """Random tokens, and their log-probs by the model's own forward pass: one row at a time, so without padding.

    There are two prompts of unequal lengths with two completions each.

    Args:
        model: a causal LM, with the attention that it came with.
        example: a prompt with a picture, for a model that sees: the second of the two.

    Raises:
        UsageError: the log-probs are not finite.
    """

    def __init__(self, model: Any, example: Reading | None = None) -> None:
        embeddings = model.get_input_embeddings().weight
        generator = torch.Generator().manual_seed(0)

        def tokens(length: int) -> Tensor:
            return torch.randint(len(embeddings), (length,), generator=generator)

        first, second = (Reading(tokens=tokens(length)) for length in _PROMPTS)
        readings = [replace(x, positions=positions(model, x)) for x in (first, example or second)]
        self.readings = [reading.to(embeddings.device) for reading in readings]
        counted = any(reading.positions is not None for reading in readings)  # on three axes
        self.completions = Completions(
            prompts=padded([reading.tokens for reading in readings]).to(embeddings.device),
            prompt_lengths=[len(reading.tokens) for reading in readings],
            tokens=padded([tokens(length) for length in _LENGTHS]).to(embeddings.device),
            lengths=_LENGTHS,
            groups=_GROUPS,
            pictures=[reading.pictures for reading in self.readings],
            positions=[reading.span(max(_LENGTHS)) for reading in readings] if counted else None,
        )
        self.bound = TOLERANCE.get(model.dtype)
        self.expected = torch.zeros(self.completions.tokens.shape, device=embeddings.device)
        own = PlainPath(model)
        for row, (length, group) in enumerate(zip(_LENGTHS, _GROUPS, strict=True)):
            alone = replace(
                self.completions,
                tokens=self.completions.tokens[row : row + 1, :length],
                lengths=[length],
                groups=[group],
            )
            with torch.no_grad():
                view = own.score(alone, 0, width=length, temperature=1.0, ask=_ASK)
            self.expected[row, :length] = view.logprobs[0]
        if not bool(self.expected.isfinite().all()):
            names = [name for name, x in model.named_parameters() if not bool(x.isfinite().all())]
            held, remedy = (
                (f": {names[0]} holds NaN or infinity", "Load other weights")
                if names
                else (f" in {model.dtype}", "Load it in another dtype, such as float32 or bfloat16")
                if self.bound is None
                else (", though its weights are", "Some may be so large that sums overflow: look where they come from")
            )
            raise UsageError(f"{type(model).__name__} gives log-probs that are not finite{held}. {remedy}.")

    def problems(self, *, score: Callable[..., Decisions], write: Callable[..., Written]) -> list[str]:
        """How a path's log-probs differ when it scores the tokens, or else when it writes them; none if they do not.

        What a model raises is such a problem too: it may not know to be called so.
        """
        tokens, columns = self.completions.tokens, min(_LENGTHS)  # columns that every row has

        def scored() -> Tensor:
            return score(self.completions, 0, width=max(_LENGTHS), temperature=1.0, ask=_ASK).logprobs

        def written() -> Tensor:
            return write(
                self.readings,
                len(_GROUPS) // len(_PROMPTS),
                max_new_tokens=columns,
                draw=lambda logits, t, rows: _forced(logits, tokens[rows, t]),
                ended=lambda tokens, first: torch.zeros(len(tokens), dtype=torch.bool),
            ).logprobs

        for done, logprobs in (("scoring", scored), ("writing", written)):
            with noted(f"in {done}, ") as problems, torch.no_grad():
                problems += self._difference(logprobs(), f"in {done}, ")
            if problems:
                return problems
        return []

    def _difference(self, logprobs: Tensor, where: str) -> list[str]:
        differences = (logprobs - self.expected[:, : logprobs.shape[1]]).abs()
        difference = float(differences.mean() if self.bound is None else differences.max())
        if difference <= (self.bound or COARSE):
            return []
        average = " on average" if self.bound is None else ""
        return [f"{where}log-probs differ by {difference:.2g} nats{average} from those of the model's own pass"]


@contextmanager
def noted(where: str = "") -> Iterator[list[str]]:
    """A list, to which whatever a foreign model raises inside the context is added, behind `where`."""
    problems: list[str] = []
    try:
        yield problems
    except torch.OutOfMemoryError:
        raise
    except UsageError as error:
        problems.append(where + one_line(error))
    except Exception as error:
        problems.append(where + error_line(error, most=120))


def _forced(logits: Tensor, tokens: Tensor) -> Draw:
    """These tokens, with their log-probs: logits [b, V], tokens [b]."""
    return Draw(tokens=tokens, logprobs=logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0])


def masks_problem(model: Any, *, context: int | None) -> str:
    """How the model's attention masks differ from the past, in the window that a layer is told; empty if they do not.

    Args:
        model: a model of transformers that lets its attention be replaced. It keeps the attention that it has.
        context: tokens that it can read; None where it sets no bound.
    """
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    rules: dict[int, tuple[Tensor, Callable[..., Tensor]]] = {}  # by address: the mask, and who sees whom in it
    problems: list[str] = []

    def mask(*, mask_function: Callable[..., Tensor], **given: Any) -> Tensor:
        made = sdpa_mask(mask_function=mask_function, **given | {"allow_is_causal_skip": False})
        assert made is not None
        rules[made.data_ptr()] = made, mask_function
        return made

    def look(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
    ) -> Any:
        made = None if attention_mask is None else rules.get(attention_mask.data_ptr())
        foreign = [name for name, x in given.items() if isinstance(x, Tensor) and name not in _POSITIONS]
        if foreign:
            problems.append(f"a layer gives its attention '{foreign[0]}'")
        elif made is None:
            problems.append("a layer makes a mask of its own")
        elif not _as_told(made[1], given.get("sliding_window"), context or _FAR, query.device):
            problems.append("a layer's mask hides more than the layer is told")
        return attention(module, query, key, value, attention_mask, **given)

    before = model.config._attn_implementation
    AttentionInterface.register(_LOOK, look)
    AttentionMaskInterface.register(_LOOK, mask)
    model.set_attn_implementation(_LOOK)
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 4, dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        model.set_attn_implementation(before)
        rules.clear()
    return problems[0] if problems else ""


def _as_told(sees: Callable[..., Tensor], window: int | None, context: int, device: torch.device) -> bool:
    """Whether a query sees the past, in its window, and nothing else; also where no short text reaches."""
    keys = torch.arange(context, device=device)
    edges = [] if window is None else [window - 1, window, 2 * window]
    queries = torch.linspace(0, context - 1, _QUERIES).long().tolist() + [edge for edge in edges if edge < context]
    row = torch.zeros((), dtype=torch.int64, device=device)
    for query in queries:
        expected = keys <= query
        if window is not None:
            expected &= query - keys < window
        if not torch.equal(sees(row, row, torch.tensor(query, device=device), keys).expand_as(keys), expected):
            return False
    return True
