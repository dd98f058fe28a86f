"""Decoding in groups: every prompt is read once, all samples are written together, and finished ones leave.

The keys and values of a prompt are stored once for its group. A sample's own keys and values go into buffers that are
allocated in advance, where column k is token k of every sample, so no sample needs padding. Attention puts the two
parts together in one softmax. The buffers consist of blocks of columns, since attention is bound by memory: it reads
whole blocks, one after the other, twice as fast as the first columns of every sample. A block takes up memory once it
is begun.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from grpokit_hf.cpu.products import filled
from grpokit_hf.tokens.packed_attention import Packed, Rules, causal_attention, padding, run

LEAVE_AT = 0.75  # finished samples leave when this share of the places is left
LEAVE_CAPTURED_AT = 0.5  # the same where each size needs a capture, which takes as long as some dozens of steps


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


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a [..., n, k] times b [..., k, m], added up and given in fp32, whatever the type of both is."""
    if a.dtype == torch.float32:
        return a @ b
    if a.device.type != "cuda":
        with torch.autocast(a.device.type, enabled=False):
            return a.float() @ b.float()
    a_flat, b_flat = a.flatten(0, -3), b.flatten(0, -3)
    product = torch.bmm(a_flat, b_flat, out_dtype=torch.float32)
    return product.view(*a.shape[:-1], b.shape[-1])


class GroupCache(Packed):
    """Keys and values of prompts and of their samples, which have B places, those of prompt 0 first.

    Args:
        prompts: tokens of each prompt, at least one.
        group_size: the samples of each prompt, at first.
        columns: the most tokens of a sample.
    """

    BLOCK = 32  # columns
    CAPTURED = 256  # columns of a block on CUDA, where a step is captured again for each block

    def __init__(self, prompts: Sequence[int], group_size: int, columns: int, *, device: torch.device) -> None:
        self.captured = device.type == "cuda"
        self.block = min(columns, self.CAPTURED if self.captured else self.BLOCK)  # columns of a block
        self.blocks = -(-columns // self.block)
        self.column = -1  # of the token that is being read; -1 while the prompts are
        self.may_spare = True  # while prompts are read
        self.begun = 0  # blocks that attention looks at; the columns behind the current one are hidden
        self.slots = max(prompts)  # S
        self._padded, self._real = padding(prompts, device)
        self.lengths = torch.tensor(prompts).to(device, non_blocking=True)  # [P]
        self.last = self.lengths.cumsum(0) - 1  # [P], the prompts' last tokens
        self.positions = torch.empty(0)  # [P, T - 1] or [P, 3, T - 1], of the tokens that are written
        self._now = torch.zeros(1, dtype=torch.int64, device=device)  # the column's place in its block
        self._hidden: dict[int | None, Tensor] = {}  # window -> [B, S + columns] fp32, -inf where nothing is seen
        self._shared: dict[int, tuple[Tensor, Tensor]] = {}  # [P, K, D, S] and [P, K, S, D]
        self._own: dict[int, tuple[Tensor, Tensor]] = {}  # [blocks, B, K, columns of a block, D] each
        self._group(torch.arange(len(prompts)).repeat_interleave(group_size))

    def _group(self, prompt_of: Tensor) -> None:
        """Take up each place's prompt: [B] int64 on the CPU, ascending, all prompts from 0 on among them."""
        device = self.lengths.device
        sizes = prompt_of.bincount()
        self._prompt_of = prompt_of
        self.prompt_of = prompt_of.to(device, non_blocking=True)  # the same where the model is
        self._most = int(sizes.max())  # G, samples of a prompt
        even = len(prompt_of) == len(sizes) * self._most
        self._grid = None if even else padding(sizes.tolist(), device)  # to the groups padded to G, and back

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        """See `Packed`: the prompts' tokens, or one token of each sample."""
        if self.column < 0:
            return self._read_prompts(layer, query, key, value, rules)
        return self._read_samples(layer, query, key, value, rules)

    def _read_prompts(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        q, k, v = (self._padded_prompts(x) for x in (query, key, value))
        self._shared[layer] = k.transpose(-1, -2).contiguous(), v.contiguous()
        rows = len(self.prompt_of)
        buffer = (self.blocks, rows, key.shape[1], self.block)
        keys = key.new_empty(*buffer, key.shape[2])
        values = value.new_empty(*buffer, value.shape[2])
        self._own[layer] = keys, values
        if rules.window not in self._hidden:
            columns = self.slots + self.blocks * self.block
            self._hidden[rules.window] = torch.empty(rows, columns, device=key.device)
        attended = causal_attention(q, k, v, rules)  # [P, H, S, D]
        output = attended.transpose(1, 2).flatten(0, 1)[self._real]
        return filled(output, len(output) + self.spare)

    def _padded_prompts(self, x: Tensor) -> Tensor:
        """[N, H, D] of the prompts' tokens -> [P, H, S, D]."""
        table = x[self._padded].view(len(self.lengths), -1, *x.shape[1:])
        return table.transpose(1, 2)

    def _read_samples(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: Rules) -> Tensor:
        shared_keys, shared_values = self._shared[layer]
        keys, values = (buffer[: self.begun] for buffer in self._own[layer])
        for block, new in ((keys[-1], key), (values[-1], value)):
            if self.captured:
                block.index_copy_(2, self._now, new[:, :, None])
            else:
                block[:, :, self.column % self.block] = new
        rows, heads, width = query.shape
        kv, split = shared_keys.shape[1], self.slots
        each = heads // kv
        query = query.view(rows, kv, each, width)
        columns = self.begun * self.block
        scores = query.new_empty(rows, kv, each, split + columns, dtype=torch.float32)
        scores[..., :split] = self._with_shared(query, shared_keys)
        repeated = query.expand(self.begun, -1, -1, -1, -1)
        own = _product(repeated, keys.transpose(-1, -2))  # [blocks, B, K, H / K, block]
        own_scores = scores[..., split:].unflatten(-1, (self.begun, self.block))
        own_scores[:] = own.permute(1, 2, 3, 0, 4)
        scores *= rules.scale
        if rules.softcap is not None:
            scores = rules.softcap * torch.tanh(scores / rules.softcap)
        scores += self._hidden[rules.window][:, None, None, : split + columns]
        weights = scores.softmax(-1).to(values)
        of_prompts = self._with_shared(weights[..., :split], shared_values)
        by_block = weights[..., split:].unflatten(-1, (self.begun, self.block))
        own_weights = by_block.permute(3, 0, 1, 2, 4).contiguous()
        output = of_prompts + _product(own_weights, values).sum(0)
        return output.reshape(rows, heads, -1).to(values)

    def _with_shared(self, x: Tensor, shared: Tensor) -> Tensor:
        """x [B, K, H / K, n] times what its prompt has, [P, K, n, m], in fp32: [B, K, H / K, m]."""
        each = x.shape[2]
        grouped = self._by_prompt(x).transpose(1, 2)  # [P, K, G, H / K, n]
        product = _product(grouped.flatten(2, 3), shared)
        by_sample = product.unflatten(2, (self._most, each)).transpose(1, 2)
        return self._by_place(by_sample)

    def _by_prompt(self, x: Tensor) -> Tensor:
        """[B, ...] -> [P, G, ...]; a group with fewer samples than G is filled up with others."""
        if self._grid is not None:
            x = x[self._grid[0]]
        return x.view(-1, self._most, *x.shape[1:])

    def _by_place(self, x: Tensor) -> Tensor:
        """[P, G, ...] -> [B, ...]."""
        flat = x.flatten(0, 1)
        return flat if self._grid is None else flat[self._grid[1]]

    def advance(self, column: int) -> None:
        """Go to the next token; what a captured step reads is changed in place."""
        begun = self.begun
        self.column = column
        self.may_spare = False
        self.begun = column // self.block + 1
        self._now.fill_(column % self.block)
        for window, hidden in self._hidden.items():
            invisible = self._invisible(window)[self.prompt_of]
            hidden.zero_().masked_fill_(invisible, -torch.inf)
        if self.begun > begun:
            for keys, values in self._own.values():
                # A column that is hidden is multiplied by 0, which only a finite number survives.
                keys[begun : self.begun] = values[begun : self.begun] = 0

    def _invisible(self, window: int | None) -> Tensor:
        """[P, S + columns], True for the keys that a sample of the prompt does not see now."""
        device = self.lengths.device
        slots = torch.arange(self.slots, device=device)
        columns = torch.arange(self.blocks * self.block, device=device)
        prompt = slots >= self.lengths[:, None]
        own = (columns > self.column).expand(len(prompt), -1)
        if window is not None:
            prompt = prompt | (self.lengths[:, None] + self.column - slots >= window)
            own = own | (self.column - columns >= window)
        return torch.cat([prompt, own], 1)

    def keep(self, places: Tensor) -> None:
        """Keep some places: ascending, int64, on the CPU."""
        prompts, prompt_of = self._prompt_of[places].unique_consecutive(return_inverse=True)
        self._group(prompt_of)
        device = self.lengths.device
        prompts = prompts.to(device, non_blocking=True)
        places = places.to(device, non_blocking=True)
        self.lengths = self.lengths[prompts]
        self.positions = self.positions[prompts]
        for window, hidden in self._hidden.items():
            self._hidden[window] = hidden[: len(places)]
        for layer, (keys, values) in self._own.items():
            shared_keys, shared_values = self._shared[layer]
            self._shared[layer] = shared_keys[prompts], shared_values[prompts]
            self._own[layer] = self._kept(keys, places), self._kept(values, places)

    def _kept(self, buffer: Tensor, places: Tensor) -> Tensor:
        """What the places hold, moved to the front of the buffer's memory, which stays in use."""
        shape = (self.blocks, len(places), *buffer.shape[2:])
        kept = buffer.flatten()[: math.prod(shape)].view(shape)
        for block in range(self.begun):
            kept[block] = buffer[block, places]  # indexing copies, so nothing is overwritten too early
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
        ended: (tokens [B, t] so far, the first index that is new since the last call) -> [B] bool, what these end.
        positions: of each prompt's tokens and of those that are written, [S + T - 1], or [3, S + T - 1] for a model
            that wants three; None: a token's position is its index.
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
    before, cache.positions = _positions(positions, prompts, max_new_tokens, device)
    hidden = run(decoder, torch.cat(list(prompts)), before, cache, **given)[cache.last].repeat_interleave(group_size, 0)
    left = torch.arange(rows)  # the samples that are still being written, each in a place of the cache
    places = left.to(device, non_blocking=True)
    checked, step = 0, _Step(decoder, cache)
    for t in range(max_new_tokens):
        drawn = draw(hidden, t, places)
        tokens[places, t], logprobs[places, t] = drawn.tokens, drawn.logprobs
        count = t + 1
        if count == max_new_tokens:
            break
        if count - checked == check_every:
            done |= ended(tokens[:, :count], checked).cpu()
            checked = count
            if bool(done.all()):
                break
            stay = (~done[left]).nonzero()[:, 0]
            if len(stay) <= (LEAVE_CAPTURED_AT if cache.captured else LEAVE_AT) * len(left):
                cache.keep(stay)
                left = left[stay]
                places = left.to(device, non_blocking=True)
        cache.advance(t)
        following = cache.positions[..., t][cache.prompt_of]  # [b] or [b, 3]
        hidden = step(tokens[places, t], following.movedim(0, -1))
    return Written(tokens=tokens[:, :count], logprobs=logprobs[:, :count])


def _positions(
    given: Sequence[Tensor] | None, prompts: Sequence[Tensor], max_new_tokens: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Those of the prompts' tokens, [N] or [3, N], and of what their samples write, [P, T - 1] or [P, 3, T - 1]."""
    spans = given or [torch.arange(len(prompt) + max_new_tokens - 1) for prompt in prompts]
    of_prompts, of_samples = [], []
    for span, prompt in zip(spans, prompts, strict=True):
        before, behind = span.tensor_split([len(prompt)], -1)
        of_prompts.append(before)
        of_samples.append(behind)
    before, behind = torch.cat(of_prompts, -1), torch.stack(of_samples)
    return before.to(device, non_blocking=True), behind.to(device, non_blocking=True)


class _Step:
    """Reads one token of each sample: [b] tokens and [b] or [3, b] positions -> [b, H].

    On CUDA, where starting thousands of small kernels would take longer than their work, a step is captured as a graph
    and replayed, again for each block of columns and whenever samples have left. A model that waits for the device in
    a step, as some mixtures of experts do, cannot be captured; its steps run one by one.
    """

    def __init__(self, decoder: Any, cache: GroupCache) -> None:
        self.decoder, self.cache = decoder, cache
        self._shape = (0, 0)

    def __call__(self, last: Tensor, positions: Tensor) -> Tensor:
        if not self.cache.captured:
            return run(self.decoder, last, positions, self.cache)
        with torch.cuda.device(last.device):  # streams and graphs are those of the current device
            fits = self._shape == (len(last), self.cache.begun)
            if not fits and not self._capture(last, positions):
                return run(self.decoder, last, positions, self.cache)
            self._last.copy_(last)
            self._positions.copy_(positions)
            self._graph.replay()
        return self._hidden

    def _capture(self, last: Tensor, positions: Tensor) -> bool:
        """Capture a step, if the model does not wait in it."""
        first = self._shape == (0, 0)
        self._shape = (len(last), self.cache.begun)
        self._last, self._positions = last.clone(), positions.clone()
        read = partial(run, self.decoder, self._last, self._positions, self.cache)
        stream = _stream(last.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            read()  # a first run outside the graph lets libraries set themselves up
            self.cache.captured = not (first and _waits(read))
            if self.cache.captured:
                # Unlike `torch.cuda.graph` this leaves the allocator's cache, and other threads may use the GPU.
                self._graph = torch.cuda.CUDAGraph()
                self._graph.capture_begin(capture_error_mode="thread_local")
                self._hidden = read()
                self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        if not self.cache.captured:
            warnings.warn(
                f"{type(self.decoder).__name__} waits for the GPU within a step, so its steps cannot be captured as a "
                "CUDA graph. Decoding is slower.",
                stacklevel=2,
            )
        return self.cache.captured


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all captures on a device: each further one would keep a workspace of cuBLAS for good."""
    return torch.cuda.Stream(device)


def _waits(step: Callable[[], Any]) -> bool:
    """Whether a step waits for the GPU. A capture would find out, too, but leave CUDA in disorder."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")  # "is a prototype feature"
            torch.cuda.set_sync_debug_mode("error")
        step()
    except RuntimeError as error:
        if "synchronizing CUDA operation" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False
