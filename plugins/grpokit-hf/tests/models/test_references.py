"""References stay, or follow the policy by hand-computed numbers; nothing of the policy changes."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from tiny_models import tiny_model
from torch import nn

from grpokit import CheckpointError, UsageError
from grpokit.reference import Average, Twin
from grpokit_hf.models.adapters import AdapterSettings, add_adapter
from grpokit_hf.models.references import Base

TOKENS = torch.arange(12)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits  # type: ignore[no-any-return]


def change(model: nn.Module, by: float = 0.1) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(by)


def tied() -> nn.Linear:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 1.0)
    return net


def weight(reference: Twin) -> float:
    with reference.model() as model:
        return float(next(model.parameters()))


@pytest.mark.parametrize("offload", [False, True])
def test_a_frozen_twin_is_the_policy_as_it_was(offload: bool) -> None:
    model = tiny_model("qwen2")  # tied embeddings
    start = logits(model)
    reference = Twin(model, offload=offload)
    with reference.model() as twin:
        assert torch.equal(logits(twin), start)
    change(model)
    reference.updated(1)
    with reference.model() as twin:
        assert torch.equal(logits(twin), start)
        assert not any(p.requires_grad for p in twin.parameters())
    assert not torch.equal(logits(model), start)


def test_the_base_is_the_model_with_the_adapter_off() -> None:
    model = tiny_model("llama")
    start = logits(model)
    adapted = add_adapter(model, AdapterSettings(r=2))
    change(adapted)
    with Base(adapted).model() as base:
        assert torch.equal(logits(base), start)
    assert not torch.equal(logits(adapted), start)


def test_a_twin_of_smaller_dtype_takes_half_the_memory() -> None:
    model = tiny_model("llama")
    with Twin(model, dtype=torch.bfloat16).model() as twin:
        assert {p.dtype for p in twin.parameters()} == {torch.bfloat16}
        assert (logits(twin).float() - logits(model)).abs().max() < 0.3
    assert model.dtype == torch.float32


def test_an_average_moves_by_hand() -> None:
    live = tied()
    reference = Twin(live, average=Average(decay=0.75, every=2))
    assert reference.moves
    assert weight(reference) == 1.0
    found = []
    for version in range(1, 5):
        change(live, 1.0)  # 2, 3, 4, 5
        reference.updated(version)
        found.append(weight(reference))
    # 1 -> 0.75 * 1 + 0.25 * 3 = 1.5 -> 0.75 * 1.5 + 0.25 * 5 = 2.375
    assert found == [1.0, 1.5, 1.5, 2.375]


def test_an_average_of_an_adapter_shares_the_base() -> None:
    adapted = add_adapter(tiny_model("llama"), AdapterSettings(r=2))
    reference = Twin(adapted, average=Average(decay=0.5))
    own = {id(p) for p in adapted.parameters()}
    with reference.model() as twin:
        start = logits(twin)
        copied = [name for name, p in twin.named_parameters() if id(p) not in own]
    assert copied
    assert all("lora_" in name for name in copied)
    change(adapted)
    reference.updated(1)
    with reference.model() as twin:
        moved = logits(twin)
    assert not torch.equal(moved, start)
    assert not torch.equal(moved, logits(adapted))


def test_an_average_is_saved_and_restored_to_the_bit() -> None:
    def begun(live: nn.Module) -> Twin:
        reference = Twin(live, average=Average(decay=0.9))
        assert weight(reference) == 1.0  # as a trainer asks for it
        return reference

    def trained(reference: Twin, live: nn.Module, versions: range) -> None:
        for version in versions:
            change(live, 0.1)
            reference.updated(version)

    straight = tied()
    whole = begun(straight)
    trained(whole, straight, range(1, 7))
    first = tied()
    before = begun(first)
    trained(before, first, range(1, 4))
    state = {name: copy.deepcopy(x) for name, x in before.state_dict().items()}
    assert list(state) == ["reference/weight", "reference_version"]
    second = tied()
    after = begun(second)
    after.load_state_dict(state)
    second.load_state_dict(first.state_dict())
    after.updated(3)  # the version that was loaded: no step
    trained(after, second, range(4, 7))
    assert weight(after) == weight(whole)
    with pytest.raises(CheckpointError, match="saved without ema, old_ema, or reference_ema and a KL"):
        after.load_state_dict({})
    with pytest.raises(CheckpointError, match="belongs to another model: 'reference/weight' differs"):
        after.load_state_dict({**state, "reference/weight": torch.zeros(2, 2)})


@pytest.mark.parametrize("average", [None, Average(decay=0.5)], ids=["frozen", "moving"])
def test_a_copy_exists_only_where_a_reference_is_asked_for(average: Average | None) -> None:
    """So sampling, exporting and training without a KL hold the weights once, whatever they load."""
    model = tiny_model("llama")
    weights = {id(p) for p in model.parameters()}

    def copies() -> int:
        found = [x for x in gc.get_objects() if type(x) is nn.Parameter]
        return sum(p.shape == (272, 16) and id(p) not in weights for p in found)

    before = copies()
    reference = Twin(model, average=average)
    assert reference.state_dict() == {}
    reference.load_state_dict({})
    reference.updated(5)
    assert copies() == before
    asked = Twin(model, average=average)
    with asked.model():
        assert copies() == before + 2  # embeddings and head
    assert bool(asked.state_dict()) == (average is not None)


@pytest.mark.parametrize("work", ["an update", "a load"])
def test_a_reference_that_comes_too_late(work: str) -> None:
    """It would not have the weights of the start; one that was there before keeps them."""
    live = tied()
    reference, late = Twin(live), Twin(live)
    assert weight(reference) == 1.0
    for each in (reference, late):
        each.updated(1) if work == "an update" else each.load_state_dict({})
    change(live)
    assert weight(reference) == 1.0
    with pytest.raises(UsageError, match="asked for only after the policy's weights had changed"), late.model():
        pass


def test_averages_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="every must be at least 1, got 0"):
        Average(every=0)
