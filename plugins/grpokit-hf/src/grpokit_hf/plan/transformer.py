"""What a decoder-only transformer needs that draws tokens and scores them again, by its sizes.

It is arithmetic: a policy's plan counts the sizes, such as on torch's device "meta", and gets parts of memory and works
in time. The bytes per token are those of docs/memory.md, for the fast path. A forward pass takes two FLOP per weight
and token, and four per layer, pair of tokens and width of attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from grpokit_plan import REPLAY, Job, Moment, Part, Work

_UPDATE = 12  # bytes per weight that a step reads and writes, averages aside: weight and gradient, and the weight
_CHUNK = 1024  # tokens whose logits exist at a time
_COPIES = 3  # of these logits, at most
_LOGIT_PASSES = 6  # how often a draw reads or writes the logits
_KERNELS = 43  # of a layer of Llama or Qwen2, counted in a recorded step of decoding; a backward pass has twice as many
_DRAW_KERNELS, _CUT_KERNELS = 50, 25  # of a token's draw, outside the graph; the latter for top_p; counted likewise
_ADAPTER_KERNELS = 36  # six for each of six projections: two products, a scale, a sum and two casts

Kept: TypeAlias = Mapping[tuple[str, str], tuple[int, int, int]]
"""How it is computed, and what trains -> bytes per token that a layer keeps: of H, M and K."""

LLAMA: Kept = {
    ("fp32", "full"): (28, 8, 16),
    ("fp32", "lora"): (28, 16, 16),
    ("amp", "full"): (32, 8, 8),
    ("amp", "lora"): (24, 8, 8),
    ("bf16", "lora"): (36, 10, 8),  # float32 adapters around 16-bit layers, without autocast
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A transformer by its sizes.

    Attributes:
        layers: how many.
        hidden: H.
        mlp: M, the width of the MLP that a token goes through.
        heads: of attention.
        attention: the width of all heads' queries.
        keys: K, the width of a token's keys.
        vocabulary: V, rows of the output layer.
        matrices: weights of the layers' matrices.
        active: those of them that one token is multiplied by; fewer in a mixture of experts.
        stored: bytes of all weights, an adapter aside.
        wide: how many of these weights are float32.
        width: bytes of a weight of the layers, below 1 if they are quantised.
        trained: weights of the layers, the head and the embedding that train themselves.
        tables: those of them that are embeddings, whose averages are never rounded.
        adapted: weights of the layers under an adapter.
        adapter: weights of the adapter.
        ranks: the adapter's ranks, summed over the layers that it is in.
    """

    layers: int
    hidden: int
    mlp: int
    heads: int
    attention: int
    keys: int
    vocabulary: int
    matrices: int
    active: int
    stored: float
    wide: int
    width: float
    trained: int = 0
    tables: int = 0
    adapted: int = 0
    adapter: int = 0
    ranks: int = 0


@dataclass(frozen=True, kw_only=True)
class TokenWork:
    """A transformer with what it has to do in a step.

    Attributes:
        sizes: of the transformer.
        job: the step.
        prompt: tokens of a prompt.
        new: tokens of a sample.
        decisions: those of them that are decisions; None for all.
        scored: tokens of a sample that scoring reads; None for all.
        checkpointing: whether layers are computed again in the backward pass.
        head_trains: whether the output layer's weight trains.
        kept: bytes per token that a layer of its kind keeps for the backward pass.
        merged: whether adapted layers are drawn with as copies that have the adapter added.
        captured: whether the steps of decoding are captured in graphs; else each of their kernels is started.
        kernels: of a layer's forward pass.
        top_p: whether draws are cut at a sum of probabilities.
    """

    sizes: Sizes
    job: Job
    prompt: int
    new: int
    decisions: int | None = None
    scored: int | None = None
    checkpointing: bool = False
    head_trains: bool = False
    kept: Kept = field(default_factory=lambda: LLAMA)
    merged: bool = True
    captured: bool = True
    kernels: int = _KERNELS
    top_p: bool = False

    @property
    def amp(self) -> bool:
        """Whether there is an autocast."""
        return self.job.mixed_precision != "no"

    @property
    def number(self) -> int:
        """Bytes of a number in a cache or a copy of weights."""
        return 4 if self._computes == "fp32" else 2

    @property
    def _computes(self) -> Literal["fp32", "amp", "bf16"]:
        return "amp" if self.amp else "fp32" if self.sizes.width == 4 else "bf16"

    @property
    def exact(self) -> bool:
        """Whether a rollout's log-probs are those of the training pass: all is fp32."""
        return self._computes == "fp32"

    @property
    def head(self) -> int:
        """Weights of the output layer."""
        return self.sizes.vocabulary * self.sizes.hidden

    def parts(self) -> list[Part]:
        """The memory of the transformer and of its adapter."""
        s, job = self.sizes, self.job
        trained = s.trained + s.adapter
        scores: tuple[Moment, ...] = ("score", "train") if self._has_passes else ("train",)
        rows, prompts = job.micro_batch(self._decisions)
        tokens = rows * self._scored + prompts * self.prompt
        a_layer = self.kept_per_layer() * tokens
        kept = s.layers * a_layer
        if self.checkpointing:
            hidden = (4 if s.width == 4 else 2) * s.hidden * tokens
            kept = s.layers * hidden + a_layer
        copies = 2 * s.wide if self.amp else 0
        passes = a_layer if self._has_passes else 0
        logits = _COPIES * 4 * s.vocabulary
        scored = min(_CHUNK, rows * self._decisions)
        head = 4 * self.head if self.head_trains else 0
        return [
            Part(name="weights", bytes=s.stored),
            Part(name="adapter", bytes=4 * s.adapter),
            Part(name="optimizer", bytes=self.averages),
            Part(name="gradients", bytes=4 * trained, moments=("train",)),
            Part(name="16-bit copies", bytes=copies, moments=scores),
            Part(name="weights for drawing", bytes=self.drawing_weights(), moments=("rollout",)),
            Part(name="cache", bytes=self.cache(), moments=("rollout",)),
            Part(name="activations", bytes=kept, moments=("train",)),
            Part(name="activations", bytes=passes, moments=("score",)),
            Part(name="logits", bytes=logits * job.rollout_rows, moments=("rollout",)),
            Part(name="logits", bytes=logits * scored, moments=scores),
            Part(name="logits", bytes=head, moments=("train",)),
        ]

    @property
    def averages(self) -> float:
        """Bytes that the optimizer keeps."""
        s = self.sizes
        others = s.trained + s.adapter - s.tables
        return 8 * s.tables + self.job.averages * others

    def kept_per_layer(self) -> float:
        """Bytes per token that a layer keeps for its backward pass; docs/memory.md has the table."""
        s = self.sizes
        hidden, mlp, keys = self.kept[self._computes, "lora" if s.adapter else "full"]
        per_layer = hidden * s.hidden + mlp * s.mlp + keys * s.keys
        return per_layer + 4 * s.heads + 4 * s.ranks / s.layers

    def cache_per_token(self) -> int:
        """Bytes of a token's keys and values."""
        return 2 * self.sizes.layers * self.sizes.keys * self.number

    def cache(self) -> float:
        """Bytes of the keys and values of all that is drawn at a time: each prompt once, and room for every token."""
        job = self.job
        tokens = job.rollout_prompts * self.prompt + job.rollout_rows * self.new
        return self.cache_per_token() * tokens

    def drawing_weights(self) -> float:
        """Bytes of copies: the adapted layers with the adapter merged, and under autocast float32 layers in 16 bits."""
        s = self.sizes
        if s.width < 2:  # a quantised base is drawn with as it is
            return 0.0
        if self.amp and s.width == 4:
            copied = s.matrices + self.head
            return 2 * (copied if self.merged else copied - s.adapted)
        return s.adapted * s.width if self.merged else 0.0

    def works(self) -> list[Work]:
        """The time of the transformer; what rewards and decoders take is not in it."""
        s, job = self.sizes, self.job
        cuts = job.micro_batches(self._decisions)
        kernels = self.kernels * s.layers
        forward = self._work("old", self.forward() / cuts, kernels=kernels, times=cuts)
        works = self.rollout()
        if job.old_pass(exact=self.exact) or job.entropy:
            works.append(forward)
        if job.reference:
            works.append(replace(forward, phase="reference"))
        kernels *= 4 if self.checkpointing else 3
        trained = self.trained() / cuts
        works.append(self._work("train", trained, kernels=kernels, times=job.passes * cuts))
        updated = _UPDATE * (s.trained + s.adapter) + 2 * self.averages
        works.append(Work(phase="optimizer", bytes=updated, times=job.updates))
        return works

    @property
    def _decisions(self) -> int:
        return self.new if self.decisions is None else self.decisions

    @property
    def _scored(self) -> int:
        return self.new if self.scored is None else self.scored

    @property
    def _has_passes(self) -> bool:
        """Whether there is a pass without gradient."""
        job = self.job
        return job.reference or job.entropy or job.old_pass(exact=self.exact)

    def rollout(self) -> list[Work]:
        """Prompts are read once, and tokens are then drawn one after the other."""
        s, job = self.sizes, self.job
        rows, prompts, calls = job.rollout_rows, job.rollout_prompts, job.rollout_calls
        a_pair = 4 * s.layers * s.attention  # of a token and one that it looks at
        pairs = prompts * self.prompt**2 / 2
        read = 2 * s.active * prompts * self.prompt + a_pair * pairs
        before = self.prompt + self.new / 2  # tokens that a new one looks at, on average
        a_step = rows * (2 * (s.active + self.head) + a_pair * before)
        width = 2 if self.amp and s.width == 4 else s.width  # of the weights that are drawn with
        moved = (
            s.matrices * width
            + self.head * self.number
            + self.cache_per_token() * (prompts * self.prompt + rows * self.new / 2)
            + 4 * _LOGIT_PASSES * s.vocabulary * rows
        )
        beside = s.adapter > 0 and not self.merged  # the adapter's own products
        moved += 4 * s.adapter if beside else 0
        kernels = (self.kernels + (_ADAPTER_KERNELS if beside else 0)) * s.layers
        steps = calls * self.new
        return [
            self._work("rollout", read, kernels=kernels, times=calls),
            replace(
                self._work("rollout", a_step, kernels=kernels, times=steps),
                bytes=moved,
                captured=self.captured,
            ),
            Work(phase="rollout", kernels=self._draw_kernels, times=steps),
        ]

    @property
    def _draw_kernels(self) -> int:
        return _DRAW_KERNELS + (_CUT_KERNELS if self.top_p else 0)

    @property
    def launches(self) -> str:
        """What is assumed of the kernels of decoding."""
        return (
            f"A step of decoding has {self.kernels} kernels a layer, each {REPLAY * 1e6} µs on top of what it reads. "
            f"A draw has {self._draw_kernels}."
        )

    def forward(self) -> float:
        """FLOP of a forward pass over all rows of a step, each prompt once per micro-batch."""
        layers, attention = self._linear_and_attention()
        return layers + attention + self._head_flop()

    def trained(self) -> float:
        """FLOP of a forward and a backward pass over all rows: 6 per weight and token, 4 where it is frozen."""
        layers, attention = self._linear_and_attention()
        again = layers + attention if self.checkpointing else 0.0
        own = 6 * self.sizes.adapter * self._tokens()
        passes = 3 if self.sizes.trained else 2  # a weight that trains is multiplied once more
        head = (3 if self.head_trains else 2) * self._head_flop()
        return passes * layers + 3 * attention + head + again + own

    def _tokens(self) -> int:
        """Tokens that a pass over all rows reads."""
        return self.job.rows * self._scored + self._prompts_read() * self.prompt

    def _prompts_read(self) -> int:
        """How many prompts a pass over all rows reads: one of several micro-batches is read in each."""
        _, prompts = self.job.micro_batch(self._decisions)
        return self.job.micro_batches(self._decisions) * prompts

    def _linear_and_attention(self) -> tuple[float, float]:
        s, rows, length = self.sizes, self.job.rows, self._scored
        of_prompts = self._prompts_read() * self.prompt**2 / 2
        of_samples = rows * length * (self.prompt + length / 2)
        pairs = of_prompts + of_samples
        return 2 * s.active * self._tokens(), 4 * s.layers * s.attention * pairs

    def _head_flop(self) -> float:
        return 2 * self.head * self.job.rows * self._decisions

    def _work(self, phase: str, flop: float, *, kernels: int, times: float) -> Work:
        dtype: Literal["bf16", "fp32"] = "fp32" if self._computes == "fp32" else "bf16"
        return Work(phase=phase, flop=flop, kernels=kernels, times=times, dtype=dtype)
