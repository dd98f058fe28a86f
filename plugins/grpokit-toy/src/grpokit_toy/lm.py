"""toy-lm: a character-level language model that adds two numbers by thinking aloud, digit by digit.

The smallest policy with the structure of a reasoning model. Asked `47+32`, a perfect answer is
`<think>7+2=9;4+3=7</think><answer>79</answer>`, written one character at a time. The problems are the 3,025 pairs of
two-digit numbers that add without a carry, so each step of the reasoning is one of 55 small sums, and a tiny network
can carry the skill over to problems that it has never seen. It starts mediocre, from a supervised pre-training that
was stopped early.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from grpokit import Prompt, UsageError
from grpokit.sampling import permutation
from grpokit_toy.autoregressive import AutoregressivePolicy, read_weights
from grpokit_toy.transformer import Shape, Transformer

START_FILE = Path(__file__).parent / "assets" / "toy-lm.safetensors"
CHARACTERS = "0123456789+=;<>/aehiknrstw"  # what a response is written in; behind them the end token
END = len(CHARACTERS)
PROMPT_CHARACTERS = "0123456789+"  # prompt token 0 is padding
LENGTH = len("<think>7+2=9;4+3=7</think><answer>79</answer>") + 1  # with the end token
SIZES = {"eval": 250, "pretrain": 1200}  # problems; the rest is `train`
SPLITS = ("train", "eval", "pretrain")


class ToyLM(AutoregressivePolicy):
    """A policy of up to 46 decisions per text; about a quarter of a million parameters.

    Args:
        weights: a safetensors file to begin from, such as policy.safetensors of a checkpoint; None for the mediocre
            start that ships with the package.
        temperature: of the training samples.
        eval_temperature: of the evaluation samples; None for `temperature`, 0 for greedy.
    """

    def __init__(
        self,
        *,
        weights: str | Path | None = None,
        temperature: float = 1.0,
        eval_temperature: float | None = None,
    ) -> None:
        model = build()
        read_weights(model, START_FILE if weights is None else Path(weights))
        super().__init__(model, temperature=temperature, eval_temperature=eval_temperature, eos=END)

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's characters."""
        return prompt_tokens(prompt.text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The response's characters, without the end token."""
        return "".join(CHARACTERS[token] for token in tokens if token != END)


def build() -> Transformer:
    """The network, without trained weights."""
    return Transformer(
        Shape(
            prompt_vocab=len(PROMPT_CHARACTERS) + 1,
            vocab=len(CHARACTERS) + 1,
            prompt_length=5,
            response_length=LENGTH,
        )
    )


def prompt_tokens(text: str) -> list[int]:
    """A problem as the network reads it.

    Raises:
        UsageError: it is empty or has a character that the network does not know.
    """
    strange = sorted({c for c in text if c not in PROMPT_CHARACTERS})
    if strange or not text:
        raise UsageError(
            f"toy-lm reads sums of two two-digit numbers such as '47+32'; {text!r} has "
            f"{', '.join(map(repr, strange)) if strange else 'no characters'}."
        )
    return [PROMPT_CHARACTERS.index(c) + 1 for c in text]


def response_tokens(text: str) -> list[int]:
    """A response as the network writes it, with the end token."""
    return [*(CHARACTERS.index(c) for c in text), END]


def solution(a: int, b: int) -> str:
    """The perfect response to `a+b`: ones, tens, and the sum.

    >>> solution(47, 32)
    '<think>7+2=9;4+3=7</think><answer>79</answer>'
    """
    tens, ones = divmod(a, 10)
    more_tens, more_ones = divmod(b, 10)
    thoughts = f"{ones}+{more_ones}={ones + more_ones};{tens}+{more_tens}={tens + more_tens}"
    return f"<think>{thoughts}</think><answer>{a + b:02d}</answer>"


def question(a: int, b: int) -> str:
    """The prompt's text: `47+32`, or `07+32` for a number below 10."""
    return f"{a:02d}+{b:02d}"


@lru_cache(maxsize=1)
def _splits() -> dict[str, list[tuple[int, int]]]:
    every = itertools.product(range(100), repeat=2)
    pairs = [(a, b) for a, b in every if a % 10 + b % 10 < 10 and a // 10 + b // 10 < 10]  # no carry
    problems = [pairs[i] for i in permutation(len(pairs), 2)]
    first, second = SIZES["eval"], SIZES["eval"] + SIZES["pretrain"]
    return {"eval": problems[:first], "pretrain": problems[first:second], "train": problems[second:]}


def sum_problems(split: str = "train") -> list[tuple[int, int]]:
    """The pairs of numbers of a split's problems, in a fixed mixed order; the splits are disjoint."""
    if split not in SPLITS:
        raise UsageError(f"toy-lm has the splits {', '.join(SPLITS)}; got {split!r}.")
    return list(_splits()[split])


def sum_prompts(split: str = "train", limit: int | None = None) -> list[Prompt]:
    """The prompts of a split, each with the sum as its target.

    Args:
        split: "train", "eval" or "pretrain".
        limit: only the first so many; None for all.
    """
    problems = sum_problems(split)[:limit]
    return [Prompt(text=question(a, b), target=str(a + b)) for a, b in problems]
