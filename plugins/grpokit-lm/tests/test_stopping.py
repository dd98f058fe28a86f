"""A completion ends at the first token that completes a stop string, whatever the tokens' borders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny_models import EOS, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models

from grpokit import UsageError
from grpokit_lm.stopping import Stops

PIECES = ["▁a", "▁", "b", "ab", "\n", "\n\n", "▁END", "E", "ND", "D", "<0xC3>", "<0xBC>", "ü", "."]


def sentence_pieces() -> Any:
    """Pieces that hold a space in front, and bytes, as Llama's first tokenizers had them."""
    core = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(PIECES)}, merges=[], byte_fallback=True))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return core.decode


def first_end(tokens: Sequence[int], texts: Sequence[str], decode: Any) -> int | None:
    return next((n for n in range(1, len(tokens) + 1) if any(t in decode(tokens[:n]) for t in texts)), None)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("texts", [["\n\n"], [" END"], ["ü"], ["b ", ".\n"], ["aab", "ND."]])
@pytest.mark.parametrize("kind", ["pieces", "bytes"])
def test_ends_are_those_of_a_search_from_the_start(kind: str, texts: list[str], every: int) -> None:
    decode = sentence_pieces() if kind == "pieces" else tiny_tokenizer().decode
    if kind == "pieces":
        units = [[PIECES.index("<0xC3>"), PIECES.index("<0xBC>")], *([i] for i, p in enumerate(PIECES) if p[0] != "<")]
    else:
        units = [tiny_tokenizer().encode(text) for text in ("a", "b", ".", "\n", " ", " END", "EN", "D", "ü", "é")]
    chooser = random.Random(0)
    tokens = torch.tensor([[token for unit in chooser.choices(units, k=24) for token in unit][:24] for _ in range(60)])
    expected = [first_end(row, texts, decode) for row in tokens.tolist()]
    assert any(expected)
    stops = Stops([], texts, decode)
    found: list[int | None] = [None] * len(tokens)
    for first in range(0, 24, every):
        for row in stops.ended(tokens[:, : first + every], first).nonzero()[:, 0].tolist():
            found[row] = found[row] or first + every
    assert found == [None if n is None else -(-n // every) * every for n in expected]
    lengths, ended = stops.lengths(tokens)
    assert ended == [n is not None for n in expected]
    assert lengths == [n or 24 for n in expected]


def test_a_text_is_decoded_only_where_a_token_can_complete_a_stop_string() -> None:
    calls = []
    tokenizer: Any = tiny_tokenizer()

    def decode(tokens: Sequence[int]) -> str:
        calls.append(len(tokens))
        return tokenizer.decode(tokens)  # type: ignore[no-any-return]

    stops = Stops([EOS], ["xyz"], decode)
    tokens = torch.tensor([tokenizer.encode("abxyab" * 10), tokenizer.encode("baxyba" * 10)])
    for t in range(60):
        assert not stops.ended(tokens[:, : t + 1], t).any()
    assert calls == [2, 2, 2, 2]  # each of the four letters, once
    ended = stops.ended(torch.tensor([tokenizer.encode("axyz"), [*tokenizer.encode("axy"), EOS]]), 3)
    assert ended.tolist() == [True, True]
    assert len(calls) == 7  # "z", the end token, and the one row with "z"


@pytest.mark.parametrize("text", ["", 3])
def test_a_stop_string_that_is_none(text: Any) -> None:
    with pytest.raises(UsageError, match=f"stop must hold texts of at least one character, got {text!r}"):
        Stops([], [text], str)
