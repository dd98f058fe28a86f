"""A sampler draws by its settings, and never what is forbidden."""

from __future__ import annotations

import pytest
import torch

from grpokit_hf.tokens.sampler import Sampler


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("top_k", [0, 3])
def test_a_forbidden_token_is_never_drawn_and_takes_no_probability(temperature: float, top_k: int) -> None:
    logits = torch.tensor([[9.0, 1.0, 0.5, 0.0, -0.5]]).expand(200, -1)
    forbidden = torch.tensor([True, False, False, False, True])
    chances = torch.linspace(0.0005, 0.9995, 200, dtype=torch.float64)[:, None]
    sampler = Sampler(chances, temperature=temperature, scored_at=0.7, truncation={"top_k": top_k}, forbidden=forbidden)
    drawn = sampler(logits, 0, torch.arange(200))
    assert sorted({*drawn.tokens.tolist()}) == ([1, 2, 3] if temperature else [1])
    expected = (logits[:, 1:4] / 0.7).log_softmax(-1).gather(-1, drawn.tokens[:, None] - 1)[:, 0]
    assert torch.allclose(drawn.logprobs, expected, rtol=0, atol=1e-6)
    assert float(logits[0, 0]) == 9.0
