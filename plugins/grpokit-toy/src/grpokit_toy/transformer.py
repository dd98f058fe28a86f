"""A small decoder-only transformer: pre-norm, learned positions, fp32, no dropout.

The toy policies need a real autoregressive network whose whole forward pass can be read at one sitting. It runs in
two ways that give the same numbers: `forward` scores a known response at once, with gradient (for `logprobs`), and
`prefill` with `step` draw it token by token on a static key-value cache (rollout). A sequence is a prompt slot of fixed
length, padded on the right, then the response; so a row's positions never depend on the rows beside it.

Letters in shapes: b rows, L prompt slot, T response, S = L + T positions, H heads, D width of a head, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

PAD = 0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a `Transformer`.

    Attributes:
        prompt_vocab: number of prompt tokens; token 0 is padding.
        vocab: V, number of response tokens.
        prompt_length: L, the slot that every prompt is padded to.
        response_length: T, the most response tokens.
        width: features per position.
        layers: number of blocks.
        heads: H; divides `width`.
    """

    prompt_vocab: int
    vocab: int
    prompt_length: int
    response_length: int
    width: int = 96
    layers: int = 2
    heads: int = 4


class KVCache:
    """The keys and values of the positions seen so far, in buffers of their final size.

    Attributes:
        keys: per layer [b, H, S, D].
        values: per layer [b, H, S, D].
        filled: how many positions hold something.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], filled: int) -> None:
        self.keys, self.values, self.filled = keys, values, filled

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [b, H, n, D] after the filled part and return all that the new positions may look at."""
        end = self.filled + keys.shape[2]
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[:, :, self.filled : end] = keys
        all_values[:, :, self.filled : end] = values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def expand(self, group_size: int) -> KVCache:
        """Give each row `group_size` copies, side by side: the prompt's part is computed once for its group."""
        return KVCache(
            [x.repeat_interleave(group_size, 0) for x in self.keys],
            [x.repeat_interleave(group_size, 0) for x in self.values],
            self.filled,
        )


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what it read after normalising it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        """Map [b, n, width] to the same shape.

        Args:
            x: the features of n new positions.
            visible: broadcastable to [b, H, n, s], True where a new position may look; s counts the cached
                positions as well.
            cache: earlier positions; the new ones are appended to it.
            layer: which of the cache's layers is this block's.
        """
        b, n, width = x.shape
        qkv = self.qkv(self.norm1(x))
        qkv = qkv.view(b, n, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [b, n, 3, H, D] -> 3 of [b, H, n, D]
        if cache is not None:
            k, v = cache.append(layer, k, v)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        mixed = mixed.transpose(1, 2).reshape(b, n, width)  # [b, H, n, D] -> [b, n, width]
        x = x + self.out(mixed)
        inner = functional.gelu(self.up(self.norm2(x)))
        result: Tensor = x + self.down(inner)
        return result


class Transformer(nn.Module):
    """Prompt tokens and the response so far -> logits of the next response token.

    The response is read shifted by one behind a start token, so the logits at response position t come from the
    prompt and from the tokens before t.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.prompt_embedding = nn.Embedding(shape.prompt_vocab, shape.width)
        self.token_embedding = nn.Embedding(shape.vocab + 1, shape.width)  # the last row is the start token
        self.position = nn.Embedding(shape.prompt_length + shape.response_length, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab)

    @property
    def start(self) -> int:
        """The token before the first response token."""
        return self.shape.vocab

    def visible_keys(self, prompts: Tensor) -> Tensor:
        """Where anything may look: prompts [b, L] -> [b, S], False at the prompt's padding."""
        response = prompts.new_ones(prompts.shape[0], self.shape.response_length, dtype=torch.bool)
        return torch.cat([prompts != PAD, response], 1)

    def forward(self, prompts: Tensor, tokens: Tensor) -> Tensor:
        """Score whole responses: prompts [b, L], tokens [b, t] -> logits [b, t, V].

        Args:
            prompts: padded with `PAD` on the right, with at least one token each.
            tokens: the response, t <= T; the last one is scored, not read.
        """
        length, t = prompts.shape[1], tokens.shape[1]
        start = tokens.new_full((len(tokens), 1), self.start)
        shifted = torch.cat([start, tokens[:, :-1]], 1)
        x = torch.cat([self.prompt_embedding(prompts), self.token_embedding(shifted)], 1)  # [b, L + t, width]
        x = x + self.position.weight[: length + t]
        keys = self.visible_keys(prompts)[:, : length + t]
        visible = _causal(keys)
        for block in self.blocks:
            x = block(x, visible)
        logits: Tensor = self.head(self.norm(x[:, length:]))
        return logits

    def prefill(self, prompts: Tensor) -> KVCache:
        """Read prompts [P, L] once; the cache has room for the response."""
        rows, length = prompts.shape
        x = self.prompt_embedding(prompts) + self.position.weight[:length]
        visible = _causal(self.visible_keys(prompts)[:, :length])
        heads = self.shape.heads
        size = (rows, heads, length + self.shape.response_length, self.shape.width // heads)
        dtype = self.head(x[:1, :1]).dtype  # what autocast, if any, makes of a linear layer's output
        keys = [x.new_zeros(size, dtype=dtype) for _ in self.blocks]
        values = [x.new_zeros(size, dtype=dtype) for _ in self.blocks]
        cache = KVCache(keys, values, filled=0)
        for layer, block in enumerate(self.blocks):
            x = block(x, visible, cache, layer)
        cache.filled = length
        return cache

    def step(self, tokens: Tensor, cache: KVCache, visible_keys: Tensor) -> Tensor:
        """Read one token per row and predict the next: tokens [b] -> logits [b, V].

        Args:
            tokens: the token before the one to be predicted; `start` at first.
            cache: everything before; the new position is appended.
            visible_keys: [b, S] from `visible_keys`, for the same rows.
        """
        at = cache.filled
        x = (self.token_embedding(tokens) + self.position.weight[at])[:, None]  # [b, width] -> [b, 1, width]
        visible = visible_keys[:, None, None, : at + 1]
        for layer, block in enumerate(self.blocks):
            x = block(x, visible, cache, layer)
        cache.filled = at + 1
        logits: Tensor = self.head(self.norm(x[:, 0]))
        return logits


def _causal(keys: Tensor) -> Tensor:
    """Where each of n positions may look, at itself and before: keys [b, n] that are no padding -> [b, 1, n, n]."""
    n = keys.shape[1]
    before = torch.ones(n, n, dtype=torch.bool, device=keys.device).tril()
    return (before & keys[:, None, :])[:, None]
