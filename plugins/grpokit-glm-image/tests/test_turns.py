"""The halves of a model take turns: tried on the CPU, which stands for the device."""

from __future__ import annotations

from contextlib import suppress

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
    return turns


def test_the_writer_is_back_after_decoding_even_after_an_error() -> None:
    log: list[str] = []
    turns = taking_turns(log)
    with turns.writing():
        assert log == []
    with suppress(KeyError), turns.decoding(), turns.decoding():
        assert log == ["writer leaves", "decoder enters"]
        with turns.writing():
            assert log[2:] == ["decoder leaves", "writer enters"]
        assert log[4:] == ["writer leaves", "decoder enters"]
        raise KeyError
    assert log[6:] == ["decoder leaves", "writer enters"]


def test_the_writer_is_back_if_the_decoder_did_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer then tries again with fewer rows."""
    log: list[str] = []
    turns = taking_turns(log)

    def enter() -> None:
        log.append("decoder does not fit")
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch, suppress(torch.OutOfMemoryError):
        patch.setattr(turns._decoder, "enter", enter)
        with turns.decoding():
            pytest.fail("The decoder is not there.")
    assert log == ["writer leaves", "decoder does not fit", "decoder leaves", "writer enters"]
    with turns.decoding():
        assert log[4:] == ["writer leaves", "decoder enters"]


def test_the_writer_is_back_after_a_second_try_if_it_did_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    turns = taking_turns(log)

    def enter() -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch, suppress(torch.OutOfMemoryError):
        patch.setattr(turns._writer, "enter", enter)
        with turns.decoding():
            pass
    with turns.writing(), turns.decoding():
        pass
    assert log[-2:] == ["decoder leaves", "writer enters"]


@pytest.mark.parametrize(("device", "offload"), [("cpu", "idle"), ("cuda", "none")])
def test_nothing_moves_where_nothing_must(device: str, offload: str) -> None:
    module = layer(1.0)
    place = module.weight.data_ptr()
    turns = Turns([layer(0.0)], [module], device=torch.device(device), offload=offload)
    with turns.decoding():
        assert module.weight.data_ptr() == place
    assert module.weight.data_ptr() == place


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
