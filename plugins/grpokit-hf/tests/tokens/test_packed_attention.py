"""Packed attention against the model's own forward pass, sequence by sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_decoders import MODELS, build
from torch import Tensor
from torch.backends.cuda import can_use_flash_attention
from torch.nn.attention.bias import causal_lower_right

from grpokit import UsageError
from grpokit_hf.tokens import packed_attention
from grpokit_hf.tokens.packed_attention import Rules, SharedPrompts, attention, causal_attention, install, run

PROMPTS = (5, 0, 3)
SAMPLES = ((4, 4), (6,), (1, 7, 2))


def sequences() -> tuple[list[Tensor], list[list[Tensor]]]:
    generator = torch.Generator().manual_seed(1)

    def some(n: int) -> Tensor:
        return torch.randint(1, 50, (n,), generator=generator)

    return [some(n) for n in PROMPTS], [[some(n) for n in lengths] for lengths in SAMPLES]


def one_by_one(model: Any) -> Tensor:
    """The samples' hidden states, each sequence in a pass of its own: [n, H]."""
    parts = []
    for prompt, samples in zip(*sequences(), strict=True):
        for sample in samples:
            output = model.get_decoder()(input_ids=torch.cat([prompt, sample])[None], use_cache=False)
            parts.append(output.last_hidden_state[0, len(prompt) :])
    return torch.cat(parts)


def packed(model: Any) -> Tensor:
    """The same in one pass."""
    arrangement = SharedPrompts(PROMPTS, SAMPLES, device=torch.device("cpu"))
    tokens = [x for prompt, samples in zip(*sequences(), strict=True) for x in (prompt, *samples)]
    own = [flag for p, lengths in zip(PROMPTS, SAMPLES, strict=True) for flag in [False] * p + [True] * sum(lengths)]
    hidden = run(model.get_decoder(), torch.cat(tokens), arrangement.positions(), arrangement)
    return hidden[torch.tensor(own)]


@pytest.mark.parametrize(("spare", "negligible"), [(0, 32), (5, 1)])
@pytest.mark.parametrize("name", MODELS)
def test_one_packed_pass_equals_a_pass_for_each_sequence(
    name: str, spare: int, negligible: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with tokens behind them that belong to nobody, and with samples in several batches."""
    monkeypatch.setattr(packed_attention, "spare_rows", lambda count, like: spare)
    monkeypatch.setattr(packed_attention, "NEGLIGIBLE", negligible)
    model = build(name)
    want = one_by_one(model)
    weights = torch.randn(want.shape, generator=torch.Generator().manual_seed(2))
    want_gradients = torch.autograd.grad((want * weights).sum(), list(model.get_decoder().parameters()))
    install(model)
    have = packed(model)
    gradients = torch.autograd.grad((have * weights).sum(), list(model.get_decoder().parameters()))
    assert torch.allclose(have, want, rtol=0, atol=5e-6)
    for gradient, expected in zip(gradients, want_gradients, strict=True):
        assert (gradient - expected).norm() <= 1e-5 * expected.norm()


def test_samples_are_padded_to_those_of_about_their_length() -> None:
    lengths = [80, 900, 300, 0, 230, 600, 170, 120, 420]
    (block,) = SharedPrompts([32], [lengths], device=torch.device("cpu")).blocks
    assert block.shapes == [(1, 900), (1, 600), (1, 420), (2, 300), (2, 170), (1, 80)]
    even, none = SharedPrompts([3, 3], [[7, 7], [0, 0]], device=torch.device("cpu")).blocks
    assert (even.shapes, none.shapes) == ([(2, 7)], [])


@pytest.mark.parametrize("name", MODELS)
def test_the_model_still_works_for_everybody_else(name: str) -> None:
    model = build(name)
    ids = torch.tensor([[0, 0, 3, 4, 5, 6, 7, 8], [9, 8, 7, 6, 5, 4, 3, 2]])
    given = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    with torch.no_grad():
        before = model(**given).logits
        install(model)
        after = model(**given).logits
        unmasked = model(input_ids=ids[1:]).logits
    assert torch.allclose(after[given["attention_mask"].bool()], before[ids > 0], rtol=0, atol=5e-6)
    assert torch.allclose(unmasked[0], before[1], rtol=0, atol=5e-6)


def test_attention_with_fewer_queries_than_keys_by_hand() -> None:
    value = torch.eye(3)[None, None]  # so the output is the weights
    query, key = torch.ones(1, 1, 2, 1), torch.tensor([0.0, 1.0, 2.0]).view(1, 1, 3, 1)
    e = [torch.tensor(x).exp() for x in (0.0, 1.0, 2.0)]
    output = causal_attention(query, key, value, Rules(scale=1.0))[0, 0]
    assert torch.allclose(output[0], torch.stack([e[0], e[1], e[0] * 0]) / (e[0] + e[1]))
    assert torch.allclose(output[1], torch.stack(e) / sum(e))
    windowed = causal_attention(query, key, value, Rules(scale=1.0, window=1))[0, 0]
    assert windowed.tolist() == [[0, 1, 0], [0, 0, 1]]


def test_torch_is_asked_whether_flash_attention_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked what it will compute: a table is a mask to it, the rule of the last query is none."""
    query, key, table = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 5, 8), torch.ones(3, 5, dtype=torch.bool)
    asked = []

    def answer(params: Any) -> bool:
        asked.append((params.attn_mask is not None, params.is_causal, params.enable_gqa))
        return can_use_flash_attention(params)

    monkeypatch.setattr(packed_attention, "can_use_flash_attention", answer)
    for mask in ({"attn_mask": table}, {"attn_mask": causal_lower_right(3, 5)}, {"is_causal": True}):
        assert not packed_attention._flash(query, key, key, **mask)  # which is for CUDA only
    assert asked == [(True, False, True), (False, False, True), (False, True, True)]


def test_dropout_and_attention_sinks_are_refused() -> None:
    x = torch.zeros(1, 1, 1, 4)
    arrangement = SharedPrompts([0], [[1]], device=torch.device("cpu"))
    with pytest.raises(UsageError, match="has no dropout"):
        attention(None, x, x, x, None, packed=arrangement, dropout=0.1)
    with pytest.raises(UsageError, match="has no s_aux"):
        attention(None, x, x, x, None, packed=arrangement, s_aux=x)
