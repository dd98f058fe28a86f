"""Decoding in groups: every prompt is read once, all samples are written together, and finished ones leave.

The keys and values of a prompt are stored once for its group. A sample's own keys and values go into buffers that are
allocated in advance, where column k is token k of every sample, so no sample needs padding. Attention puts the two
parts together in one softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grpokit.policies.packed_attention import Packed, Rules, causal_attention, run

LEAVE_AT = 0.75  # finished samples leave when this share of the places would do


class Drawn(Protocol):
    """The next token of some samples."""

    @property
    def tokens(self) -> Tensor:
        """[b] int64."""
        ...

    @property
    def logprobs(self) -> Tensor:
        """[b] fp32."""
        ...


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written, up to the last token that any sample needed.

    Attributes:
        tokens: [B, T]; what follows a sample's end has no meaning.
        logprobs: [B, T] fp32.
    """

    tokens: Tensor
    logprobs: Tensor


class GroupCache(Packed):
    """Keys and values of prompts and of their samples, in places [P, G].

    Args:
        prompts: tokens of each prompt, at least one.
        group_size: G.
        columns: the most tokens of a sample that others of its own follow.
    """

    def __init__(self, prompts: Sequence[int], group_size: int, columns: int, *, device: torch.device) -> None:
        self.group_size, self.columns = group_size, columns
        self.column = -1  # of the token that is being read; -1 while the prompts are
        self.limit = 0  # columns that attention looks at; those behind the current one are hidden
        self.now = torch.zeros(1, dtype=torch.int64, device=device)  # the column again, where a captured step reads it
        self.slots = max(prompts)  # S
        place = torch.arange(self.slots)
        starts = torch.tensor([0, *prompts[:-1]]).cumsum(0)
        real = place < torch.tensor(prompts)[:, None]  # [P, S]
        self._padded = torch.where(real, starts[:, None] + place, 0).flatten().to(device)
        self._real = real.flatten().nonzero()[:, 0].to(device)
        self.last = (starts + torch.tensor(prompts) - 1).to(device)  # [P], the prompts' last tokens
        self.lengths = torch.tensor(prompts, device=device)  # [P]
        self.positions = torch.empty(0)  # [P, T - 1] or [P, 3, T - 1], of the tokens that are written
        self._hidden = None if bool(real.all()) else ~real.to(device)  # [P, S], True at padding
        self._shared: dict[int, tuple[Tensor, Tensor]] = {}  # [P, K, D, S] and [P, K, S, D]
        self._own: dict[int, tuple[Tensor, Tensor]] = {}  # [P * G, K, columns, D] each

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Packed`: the prompts' tokens, or one token of each sample."""
        if self.column < 0:
            return self._read_prompts(layer, query, key, value, rules)
        return self._read_samples(layer, query, key, value, rules)

    def _read_prompts(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        count = len(self.lengths)
        q, k, v = (x[self._padded].view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
        self._shared[layer] = k.transpose(-1, -2).contiguous(), v.contiguous()
        buffer = (count * self.group_size, key.shape[1], self.columns)
        # Zeros, since a column that is hidden is multiplied by 0, which only a finite number survives.
        self._own[layer] = key.new_zeros(*buffer, key.shape[2]), value.new_zeros(*buffer, value.shape[2])
        return causal_attention(q, k, v, rules).transpose(1, 2).flatten(0, 1)[self._real]

    def _read_samples(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        (shared_keys, shared_values), (keys, values) = self._shared[layer], self._own[layer]
        keys.index_copy_(2, self.now, key[:, :, None])
        values.index_copy_(2, self.now, value[:, :, None])
        keys, values = keys[:, :, : self.limit], values[:, :, : self.limit]
        rows, heads, width = query.shape
        count, kv = shared_keys.shape[:2]
        each, size = heads // kv, rows // count
        query = (query * rules.scale).view(rows, kv, each, width)
        folded = (count, size, kv, each)
        together = query.view(*folded, width).transpose(1, 2).reshape(count, kv, size * each, width)
        prompt = (together @ shared_keys).view(count, kv, size, each, -1).transpose(1, 2)  # [P, G, K, H / K, S]
        own = (query @ keys.transpose(-1, -2)).view(*folded, -1)  # [P, G, K, H / K, t]
        scores = torch.cat([prompt, own], -1)
        if rules.softcap is not None:
            scores = rules.softcap * torch.tanh(scores / rules.softcap)
        hidden = self._invisible(rules.window)
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None, None, None], -torch.inf)
        weights = scores.softmax(-1, dtype=torch.float32).to(values)
        split = shared_keys.shape[-1]
        first = weights[..., :split].transpose(1, 2).reshape(count, kv, size * each, split) @ shared_values
        output = first.view(count, kv, size, each, -1).transpose(1, 2).reshape(rows, kv, each, -1)
        output = output + weights[..., split:].view(rows, kv, each, -1) @ values
        return output.reshape(rows, heads, -1)

    def _invisible(self, window: int | None) -> Tensor | None:
        """[P, S + t], True for the keys that a sample of the prompt does not see now; None if it sees all."""
        if window is not None and self.slots + self.limit <= window:
            window = None
        if self._hidden is None and window is None and self.limit == self.column + 1:
            return None
        device = self.now.device
        slots, columns = torch.arange(self.slots, device=device), torch.arange(self.limit, device=device)
        prompt = slots >= self.lengths[:, None]  # [P, S]
        own = (columns > self.now).expand(len(prompt), -1)  # [P, t]
        if window is not None:
            prompt = prompt | (self.lengths[:, None] + self.now - slots >= window)
            own = own | (self.now - columns >= window)
        return torch.cat([prompt, own], 1)

    def advance(self, column: int, *, stride: int = 1) -> None:
        """Go to the next token: its column, and columns to look at in steps of `stride`."""
        self.column = column
        self.limit = min(self.columns, -(-(column + 1) // stride) * stride)
        self.now.fill_(column)

    def keep(self, prompts: Tensor, places: Tensor, group_size: int) -> None:
        """Keep some prompts and, of each, `group_size` places.

        Args:
            prompts: int64, indices into the prompts.
            places: int64, [prompts * group_size] indices into the places.
        """
        self.group_size = group_size
        prompts, places = prompts.to(self.now.device), places.to(self.now.device)
        self.lengths, self.positions = self.lengths[prompts], self.positions[prompts]
        self._hidden = None if self._hidden is None else self._hidden[prompts]
        filled = self.column + 1
        for layer, (keys, values) in self._own.items():
            self._shared[layer] = self._shared[layer][0][prompts], self._shared[layer][1][prompts]
            self._own[layer] = _kept(keys, places, filled), _kept(values, places, filled)


def _kept(buffer: Tensor, places: Tensor, filled: int) -> Tensor:
    """The buffer's first rows, with what the places hold; its memory stays in use until the samples are written."""
    kept = buffer[: len(places)]
    kept[:, :, :filled] = buffer[:, :, :filled][places]  # indexing copies, so nothing is overwritten too early
    return kept


def decode(
    decoder: Any,
    prompts: Sequence[Tensor],
    group_size: int,
    *,
    max_new_tokens: int,
    draw: Callable[[Tensor, int, Tensor], Drawn],
    ended: Callable[[Tensor, int], Tensor],
    positions: Sequence[Tensor] | None = None,
    check_every: int = 1,
    **given: Any,
) -> Written:
    """Write `group_size` samples for each prompt.

    Args:
        decoder: a transformers model without its head, after `packed_attention.install`.
        prompts: P tensors of tokens [S], each at least one long, or of their embeddings [S, H].
        group_size: G.
        max_new_tokens: T, the most tokens of a sample.
        draw: (last hidden states [b, H], the token's index, its rows [b]) -> the next tokens.
        ended: (tokens [B, t] so far, the first index that is new since the last call) -> [B] bool, the samples that one
            of the new tokens ends.
        positions: for each prompt the positions of its tokens and of those that are written, [S + T - 1], or
            [3, S + T - 1] for a model that wants three; None: a token's position is its index.
        check_every: tokens between two calls of `ended`; each makes a GPU wait.
        given: further arguments of the decoder while it reads the prompts.

    Returns:
        B = P * G samples, those of prompt 0 first.
    """
    device = prompts[0].device
    rows = len(prompts) * group_size
    tokens = torch.zeros(rows, max_new_tokens, dtype=torch.int64, device=device)
    logprobs = torch.zeros(rows, max_new_tokens, device=device)
    done = torch.zeros(rows, dtype=torch.bool)
    cache = GroupCache([len(prompt) for prompt in prompts], group_size, max_new_tokens, device=device)
    spans = positions or [torch.arange(len(prompt) + max_new_tokens - 1) for prompt in prompts]
    halves = [span.tensor_split([len(prompt)], -1) for span, prompt in zip(spans, prompts, strict=True)]
    cache.positions = torch.stack([behind for _, behind in halves]).to(device)
    before = torch.cat([before for before, _ in halves], -1).to(device)  # [N] or [3, N]
    hidden = run(decoder, torch.cat(list(prompts)), before, cache, **given)[cache.last].repeat_interleave(group_size, 0)
    places = _Places(rows, device)
    checked, step = 0, _Step(decoder, cache)
    stride = step.STRIDE if step.captured else 1
    for t in range(max_new_tokens):
        drawn = draw(hidden if places.first is None else hidden[places.first], t, places.rows)
        tokens[places.rows, t], logprobs[places.rows, t] = drawn.tokens, drawn.logprobs
        count = t + 1
        if count == max_new_tokens:
            break
        if count - checked == check_every:
            done |= ended(tokens[:, :count], checked).cpu()
            checked = count
            if bool(done.all()):
                break
            places.leave(done, cache)
        cache.advance(t, stride=stride)
        following = cache.positions[..., t].repeat_interleave(cache.group_size, 0)  # [b] or [b, 3]
        hidden = step(tokens[places.row_of, t], following.movedim(0, -1))
    return Written(tokens=tokens[:, :count], logprobs=logprobs[:, :count])


class _Step:
    """Reads one token of each sample: [b] tokens and [b] or [3, b] positions -> [b, H].

    On CUDA, where starting thousands of small kernels would take longer than their work, a step is captured as a graph
    and replayed, anew for each `STRIDE` columns and whenever samples have left.
    """

    STRIDE = 256

    def __init__(self, decoder: Any, cache: GroupCache) -> None:
        self.decoder, self.cache = decoder, cache
        self.captured = cache.now.is_cuda
        self._shape = (0, 0)

    def __call__(self, last: Tensor, positions: Tensor) -> Tensor:
        if not self.captured:
            return run(self.decoder, last, positions, self.cache)
        if self._shape != (len(last), self.cache.limit):
            self._capture(last, positions)
        self._last.copy_(last)
        self._positions.copy_(positions)
        self._graph.replay()
        return self._hidden

    def _capture(self, last: Tensor, positions: Tensor) -> None:
        self._shape = (len(last), self.cache.limit)
        self._last, self._positions = last.clone(), positions.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # a first run outside the graph lets libraries set themselves up
            run(self.decoder, self._last, self._positions, self.cache)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._hidden = run(self.decoder, self._last, self._positions, self.cache)


class _Places:
    """Which sample each place of the cache belongs to.

    Every prompt has equally many places, so one with fewer samples left repeats one of them.

    Attributes:
        rows: [b], the samples that are still being written, each once.
        row_of: [places], each place's sample.
        first: [b], a place of each of `rows`; None where all places are different samples.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows = list(range(rows))
        self.rows = self.row_of = torch.arange(rows, device=device)
        self.first: Tensor | None = None

    def leave(self, done: Tensor, cache: GroupCache) -> None:
        """Let the places of samples that are done go, if that saves enough."""
        size = cache.group_size
        groups = [self._rows[i : i + size] for i in range(0, len(self._rows), size)]
        places = [
            [start * size + group.index(row) for row in dict.fromkeys(group) if not done[row]]
            for start, group in enumerate(groups)
        ]
        prompts = [i for i, group in enumerate(places) if group]
        most = max(len(group) for group in places)
        if len(prompts) * most > LEAVE_AT * len(self._rows):
            return
        stay = [place for i in prompts for place in places[i] + places[i][:1] * (most - len(places[i]))]
        cache.keep(torch.tensor(prompts), torch.tensor(stay), most)
        device = self.rows.device
        first = [i * most + j for i, prompt in enumerate(prompts) for j in range(len(places[prompt]))]
        self._rows = [self._rows[place] for place in stay]
        self.row_of = torch.tensor(self._rows, device=device)
        self.first = None if len(first) == len(stay) else torch.tensor(first, device=device)
        self.rows = self.row_of if self.first is None else self.row_of[self.first]
