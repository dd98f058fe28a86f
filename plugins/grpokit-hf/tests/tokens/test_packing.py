"""Packed scoring gives the log-probs of plain passes, each token at its place, whatever counts the places."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GlmImageTextConfig, GlmImageTextModel

from grpokit import Ask
from grpokit_hf.tokens.fused_head import FusedHead
from grpokit_hf.tokens.linear_layers import Casts
from grpokit_hf.tokens.packed_attention import install
from grpokit_hf.tokens.packing import Completions, pack, score

CODES, TEMPERATURE = 24, 0.7
LENGTHS, COLUMNS = (3, 5), 6  # of prompts and of completions


def test_packing_by_hand() -> None:
    """Each prompt once, without its last token; each completion's inputs begin with that token."""
    completions = Completions(
        prompts=torch.tensor([[1, 2, 3], [4, 0, 0]]),
        prompt_lengths=(3, 1),
        tokens=torch.tensor([[5, 6, 7], [8, 0, 0], [9, 9, 0]]),
        lengths=(3, 1, 2),
        groups=(0, 1, 0),
    )
    plan = pack(completions, 1, width=2)
    assert plan is not None
    tokens = torch.cat([completions.prompts.flatten(), completions.tokens.flatten()])[plan.source]
    assert tokens.tolist() == [1, 2, 3, 5, 6, 3, 9]
    assert (plan.prompts, plan.samples) == ([2], [[3, 2]])
    assert plan.decided.tolist() == [3, 4, 6]
    assert plan.places.table(torch.tensor([1.0, 2.0, 3.0])).tolist() == [[1, 2], [0, 0], [3, 0]]
    assert pack(completions, 3, width=1) is None
    unread: dict[str, Any] = {"decoder": None, "layer": None, "head": FusedHead(), "casts": Casts(), "ask": Ask()}
    assert score(completions, 3, width=1, **unread).logprobs.tolist() == [[0]] * 3


def decoder_and_layer() -> tuple[Any, nn.Linear]:
    """The language model of GLM-Image, which counts places on three axes, and an output layer for codes alone."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
    config = GlmImageTextConfig(**sizes, **heads, rope_parameters=rope, initializer_range=0.3)
    return GlmImageTextModel(config).eval(), nn.Linear(32, CODES, bias=False)


def grid(length: int) -> Tensor:
    """[3, n]: a prompt, and cells of a grid of three columns."""
    cell = torch.arange(COLUMNS)
    behind = torch.stack([0 * cell, cell // 3, cell % 3]) + length
    return torch.cat([torch.arange(length).expand(3, -1), behind], 1)


def alone(decoder: Any, layer: nn.Linear, prompt: Tensor, tokens: Tensor, forbidden: Tensor) -> Tensor:
    """[T, CODES]: log-probs of one row by the model's own pass."""
    text = torch.cat([prompt, tokens[:-1]])
    positions = grid(len(prompt))[:, None, : len(text)]
    hidden = decoder(input_ids=text[None], position_ids=positions, use_cache=False).last_hidden_state
    logits = layer(hidden[0, len(prompt) - 1 :]).masked_fill(forbidden, float("-inf"))
    return (logits / TEMPERATURE).log_softmax(-1)


@pytest.mark.parametrize("start", [0, 2])
def test_three_axes_and_forbidden_tokens(start: int) -> None:
    decoder, layer = decoder_and_layer()
    prompts = torch.tensor([[30, 31, 32, 0, 0], [33, 34, 35, 36, 37]])
    tokens = torch.randint(16, (3, COLUMNS), generator=torch.Generator().manual_seed(1))
    groups, forbidden = (1, 0, 1), torch.arange(CODES) >= 16
    rows = [prompts[group, : LENGTHS[group]] for group in groups]
    dense = torch.stack([alone(decoder, layer, *row, forbidden) for row in zip(rows, tokens, strict=True)])
    slopes = torch.randn(3, COLUMNS - start, generator=torch.Generator().manual_seed(2))
    expected = dense.gather(-1, tokens[..., None])[:, start:, 0]
    (wanted,) = torch.autograd.grad((expected * slopes).sum(), layer.weight)
    install(decoder)
    completions = Completions(
        prompts=prompts,
        prompt_lengths=LENGTHS,
        tokens=tokens,
        lengths=[COLUMNS] * 3,
        groups=groups,
        positions=[grid(length) for length in LENGTHS],
    )
    view = score(
        completions,
        start,
        width=COLUMNS - start,
        decoder=decoder,
        layer=layer,
        head=FusedHead(),
        casts=Casts(),
        ask=Ask(entropy="value"),
        scale=1 / TEMPERATURE,
        forbidden=forbidden,
    )
    assert (view.logprobs - expected).abs().max() < 1e-5
    entropy = -(dense.exp() * dense.clamp(min=-1e4)).sum(-1)[:, start:]
    assert view.entropy is not None
    assert (view.entropy - entropy).abs().max() < 1e-5
    (gradient,) = torch.autograd.grad((view.logprobs * slopes).sum(), layer.weight)
    assert (gradient - wanted).norm() < 1e-5 * wanted.norm()
