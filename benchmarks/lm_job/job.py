"""The job that every contender does: sizes, prompts, lengths, reward. Nothing here imports torch."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "cuda"]

PHASES = ("generate", "old", "reference", "forward", "loss", "backward", "optimizer", "reward", "other")
"""Of a step; "other" is what belongs to none of the others."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One GRPO step, over and over: one update per rollout, KL to a frozen reference, gradients clipped.

    Attributes:
        hidden: width of the Llama-style model, which has random weights.
        intermediate: width of its MLP; 0 means 2.6875 times `hidden`.
        layers: its blocks.
        heads: its attention heads.
        kv_heads: heads of keys and values; 0 means as many as `heads`.
        vocab: V.
        prompts: P per step.
        prompt_tokens: per prompt.
        group: G samples per prompt.
        new_tokens: per sample; with `ragged`, the most.
        micro: rows per forward and backward pass.
        lora: rank of an adapter on all linear layers; 0 trains all weights.
        ragged: lengths are log-normal (median a quarter of `new_tokens`, sigma 0.8), the same for every contender.
        device: "cpu" (fp32) or "cuda" (bf16 autocast over fp32 weights).
        threads: of torch on the CPU.
        beta: weight of the KL.
        learning_rate: of AdamW.
        seed: of weights, prompts and lengths.
    """

    hidden: int = 256
    intermediate: int = 0
    layers: int = 6
    heads: int = 8
    kv_heads: int = 0
    vocab: int = 16512
    prompts: int = 4
    prompt_tokens: int = 32
    group: int = 8
    new_tokens: int = 256
    micro: int = 8
    lora: int = 0
    ragged: bool = False
    device: Device = "cpu"
    threads: int = 2
    beta: float = 0.04
    learning_rate: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"vocab": 16, "group": 2, "intermediate": 0, "kv_heads": 0, "lora": 0}
        sizes = ("hidden", "layers", "heads", "prompts", "prompt_tokens", "new_tokens", "micro", "threads", *least)
        for name in sizes:
            if getattr(self, name) < least.get(name, 1):
                raise ValueError(f"{_option(name)} must be at least {least.get(name, 1)}, got {getattr(self, name)}")
        self._divides("heads", self.heads, "hidden", self.hidden)
        if self.hidden // self.heads % 2:
            raise ValueError(f"--hidden / --heads must be even, got {self.hidden // self.heads}")
        self._divides("kv_heads", self.kv_heads or self.heads, "heads", self.heads)
        self._divides("micro", self.micro, "prompts x --group", self.rows)

    @property
    def rows(self) -> int:
        """B = P * G."""
        return self.prompts * self.group

    @property
    def mlp(self) -> int:
        """The width of the MLP."""
        return self.intermediate or int(2.6875 * self.hidden)

    @property
    def key_width(self) -> int:
        """The width of a token's keys, and of its values."""
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    @property
    def pad(self) -> int:
        """The id that fills rows which have ended."""
        return 0

    @property
    def end(self) -> int:
        """The id that ends a row of `generate`: outside the vocabulary unless rows end early, so it is never drawn."""
        return 1 if self.ragged else self.vocab

    def prompt_ids(self, step: int) -> list[list[int]]:
        """The P prompts of a step, from 0."""
        rng = random.Random(f"prompts {self.seed} {step}")
        return [[rng.randrange(3, self.vocab) for _ in range(self.prompt_tokens)] for _ in range(self.prompts)]

    def lengths(self, step: int) -> list[int]:
        """The B numbers of new tokens in a step, the end token included."""
        if not self.ragged:
            return [self.new_tokens] * self.rows
        rng = random.Random(f"lengths {self.seed} {step}")
        drawn = [self.new_tokens / 4 * rng.lognormvariate(0, 0.8) for _ in range(self.rows)]
        return [min(max(1, round(length)), self.new_tokens) for length in drawn]

    def dumps(self) -> str:
        """One line for `loads`."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loads(cls, line: str) -> Job:
        """The job of a line of `dumps`."""
        return cls(**json.loads(line))

    def _divides(self, name: str, part: int, whole_name: str, whole: int) -> None:
        if whole % part:
            raise ValueError(f"{_option(name)} must divide {_option(whole_name)}: {part} does not divide {whole}")


class Even:
    """The reward, the share of even tokens, for all rows of a step.

    Attributes:
        distinct: how many different tokens the step's rows have.
    """

    distinct = 0

    def __call__(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """A score for each row of tokens."""
        self.distinct = len({token for row in rows for token in row})
        return [sum(token % 2 == 0 for token in row) / max(1, len(row)) for row in rows]


def words(ids: Sequence[int]) -> str:
    """The text of some tokens."""
    return " ".join(f"t{token}" for token in ids)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
