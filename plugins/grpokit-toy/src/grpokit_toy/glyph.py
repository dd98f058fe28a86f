"""toy-glyph: draws the quoted word of a prompt as a sign, by writing visual tokens one after the other.

The smallest policy with the structure of a token-based image generator: a transformer reads the prompt, writes the
codes of a picture in raster order, and a deterministic decoder (the codebook) turns them into pixels. It starts
mediocre, from a supervised pre-training that was stopped early, and GRPO has to make its writing legible.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from grpokit import Prompt, UsageError
from grpokit.builtin.quotes import quotations
from grpokit_toy.autoregressive import AutoregressivePolicy, read_weights
from grpokit_toy.codebook import ALPHABET, COLUMNS, MAX_LETTERS, ROWS, START_FILE, checked_word, codebook
from grpokit_toy.transformer import Shape, Transformer

QUOTE = 1  # prompt tokens: 0 padding, 1 the quotation mark, then the letters


def quoted_word(text: str) -> str:
    """The one quoted word of a prompt, in capitals.

    Raises:
        UsageError: nothing or more than one thing is quoted, or the word cannot be drawn.

    >>> quoted_word('A sign that says "cat"')
    'CAT'
    """
    found = quotations(text)
    if len(found) != 1:
        raise UsageError(
            "toy-glyph needs a prompt with exactly one word in quotes, such as 'A sign that says \"CAT\"'; "
            f"{text!r} has {len(found)}."
        )
    return checked_word(found[0])


class ToyGlyph(AutoregressivePolicy):
    """A policy of 10 decisions per picture; about a quarter of a million parameters.

    The network reads the quoted word only; the words around it are for people.

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
        self.codebook = codebook()
        model = build(len(self.codebook.patches))
        read_weights(model, START_FILE if weights is None else Path(weights))
        super().__init__(model, temperature=temperature, eval_temperature=eval_temperature)

    def encode(self, prompt: Prompt) -> list[int]:
        """The quoted word between its quotation marks."""
        return prompt_tokens(quoted_word(prompt.text))

    def decode(self, tokens: Sequence[int]) -> Image.Image:
        """Look the codes up: 10 tokens -> a 96 x 32 picture."""
        return self.codebook.picture(tokens)


def prompt_tokens(word: str) -> list[int]:
    """A word in capitals as the network reads it."""
    return [QUOTE, *(ALPHABET.index(letter) + 2 for letter in word), QUOTE]


def build(codes: int) -> Transformer:
    """The network for a codebook of `codes` patches, without trained weights."""
    return Transformer(
        Shape(
            prompt_vocab=len(ALPHABET) + 2,
            vocab=codes,
            prompt_length=MAX_LETTERS + 2,
            response_length=ROWS * COLUMNS,
        )
    )
