"""Recomputing layers changes memory, and neither log-probs nor gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, tiny_model
from torch import nn

from grpokit import UsageError
from grpokit_lm.adapters import AdapterSettings, add_adapter
from grpokit_lm.checkpointing import recomputed


def saved_and_gradients(model: Any) -> tuple[int, torch.Tensor, list[torch.Tensor]]:
    """Bytes kept for the backward pass, logits, gradients."""
    kept: list[int] = []
    tokens = torch.arange(64).reshape(2, 32)
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.nbytes), x)[1], lambda x: x):
        logits = model(input_ids=tokens, use_cache=False).logits
    logits.square().mean().backward()
    return sum(kept), logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_numbers_with_less_memory(family: str, adapter: bool) -> None:
    model: Any = tiny_model(family, num_hidden_layers=4) if family != "gemma3" else tiny_model(family)
    model = add_adapter(model, AdapterSettings(r=2)) if adapter else model
    full, logits, gradients = saved_and_gradients(model)
    with recomputed(model):
        less, again, others = saved_and_gradients(model)
        assert not any(m.training for m in model.modules() if isinstance(m, nn.Dropout))
    assert less < 0.8 * full
    assert torch.equal(again, logits)
    assert gradients
    for a, b in zip(gradients, others, strict=True):
        torch.testing.assert_close(a, b)
    assert not any(m.training for m in model.modules())
    assert saved_and_gradients(model)[0] == full


def test_a_model_that_cannot() -> None:
    with (
        pytest.raises(UsageError, match="Linear has no layers that transformers can recompute"),
        recomputed(nn.Linear(1, 1)),
    ):
        pass
