"""The halves of a model take turns: tried on the CPU, which stands for the device."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from grpokit_glm_image.tiny import tiny_pipeline
from grpokit_glm_image.turns import Half, Turns

CPU = torch.device("cpu")


def layer(value: float) -> nn.Linear:
    module = nn.Linear(2, 2).requires_grad_(False)
    module.register_buffer("counter", torch.full((1,), value))
    nn.init.constant_(module.weight, value)
    return module


def test_a_half_comes_back_as_it_left_and_what_trains_stays() -> None:
    module = layer(1.0)
    module.bias.requires_grad_(True)
    places = {name: x.data_ptr() for name, x in module.state_dict().items()}
    before = {name: x.clone() for name, x in module.state_dict().items()}
    half = Half([module], CPU)
    for _ in range(2):
        half.leave()
        away = {name for name, x in module.state_dict().items() if x.data_ptr() != places[name]}
        assert away == {"weight", "counter"}
        waiting = module.weight.data_ptr()
        half.enter()
        assert module.weight.data_ptr() != waiting
        assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())


@pytest.mark.parametrize("how", ["in place", "anew"])
def test_changes_made_on_the_device_are_kept(how: str) -> None:
    module = layer(1.0)
    half = Half([module], CPU)
    half.leave()
    half.enter()
    if how == "in place":
        module.weight.add_(2)  # as merging an adapter does
    else:
        module.weight.data = module.weight.data + 2
    half.leave()
    half.enter()
    assert module.weight.tolist() == [[3, 3], [3, 3]]


def test_unchanged_weights_are_not_copied_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Half([layer(1.0)], CPU)
    half.leave()
    half.enter()
    monkeypatch.setattr(torch.Tensor, "copy_", pytest.fail)
    half.leave()


def test_who_has_entered_does_not_enter_again() -> None:
    module = layer(1.0)
    half = Half([module], CPU)
    half.leave()
    half.enter()
    module.weight.add_(2)
    half.enter()
    assert module.weight.tolist() == [[3, 3], [3, 3]]


def test_what_has_trained_stays_while_another_policy_learns() -> None:
    """A phase freezes what the others train. Full training begins after the decoder has left for the first time."""
    module = layer(1.0)
    half = Half([module], CPU)
    half.leave()
    half.enter()
    place = module.weight.data_ptr()
    for trains in (True, False):
        module.weight.requires_grad_(trains)
        half.leave()
        half.enter()
        assert module.weight.data_ptr() == place
    assert {id(x) for x in half._copies} == {id(module.bias), id(module.counter)}


class Recorded(Half):
    """Notes who comes and goes."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__([], CPU)
        self.name, self.log = name, log

    def leave(self) -> None:
        self.log.append(f"{self.name} leaves")

    def enter(self) -> None:
        self.log.append(f"{self.name} enters")


def taking_turns(log: list[str]) -> Turns:
    turns = Turns([], [], device=torch.device("cuda"), offload="idle")
    turns._writer, turns._decoder = Recorded("writer", log), Recorded("decoder", log)
    turns.let_write()
    log.clear()
    return turns


def test_who_is_asked_for_comes_and_stays() -> None:
    log: list[str] = []
    turns = taking_turns(log)
    turns.let_write()
    assert log == []
    turns.let_paint()
    turns.let_paint()
    assert log == ["writer leaves", "decoder enters"]
    turns.let_write()
    assert log[2:] == ["decoder leaves", "writer enters"]


@pytest.mark.parametrize("then", ["decoder", "writer"])
def test_if_memory_runs_out_the_next_one_finds_room(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer tries again with fewer rows."""
    log: list[str] = []
    turns = taking_turns(log)

    def enter() -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(turns._decoder, "enter", enter)
        with pytest.raises(torch.OutOfMemoryError):
            turns.let_paint()
    log.clear()
    (turns.let_paint if then == "decoder" else turns.let_write)()
    assert log == [f"{'writer' if then == 'decoder' else 'decoder'} leaves", f"{then} enters"]


@pytest.mark.parametrize(("device", "offload"), [("cpu", "idle"), ("cuda", "none")])
def test_nothing_moves_where_nothing_must(device: str, offload: str) -> None:
    modules = layer(0.0), layer(1.0)
    places = [module.weight.data_ptr() for module in modules]
    turns = Turns(modules[:1], modules[1:], device=torch.device(device), offload=offload)
    turns.let_paint()
    turns.let_write()
    assert [module.weight.data_ptr() for module in modules] == places


@torch.no_grad()
def test_a_real_model_with_an_adapter_takes_turns_unchanged() -> None:
    pipeline = tiny_pipeline()
    model, encoder = pipeline.vision_language_encoder, pipeline.text_encoder  # of which two embeddings are one
    adapted = get_peft_model(
        model.requires_grad_(False), LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    )
    tokens = torch.arange(64, 96)[None]

    def numbers() -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(32).expand(3, 1, -1)
        return adapted(input_ids=tokens, position_ids=positions).logits, encoder(tokens).last_hidden_state

    trained = {name: x.data_ptr() for name, x in model.named_parameters() if x.requires_grad}
    before, half = numbers(), Half([model, encoder.requires_grad_(False)], CPU)
    for _ in range(2):
        half.leave()
        half.enter()
        assert all(torch.equal(x, y) for x, y in zip(numbers(), before, strict=True))
    assert trained == {name: x.data_ptr() for name, x in model.named_parameters() if x.requires_grad}
    assert encoder.shared.weight is encoder.encoder.embed_tokens.weight
